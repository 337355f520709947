"""Which cgroup hierarchies this process sees, and where it is in each: pure functions of /proc's text."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ESCAPED = re.compile(r"\\([0-7]{3})")
_SPECIAL = re.compile(r"[\s\\]")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted hierarchy, or a part of one. `root`: the cgroup that is visible at `point`. v2 has no `options`."""

    point: str
    root: str
    version: int
    options: frozenset[str]


def unescape(text: str) -> str:
    r"""A path as mountinfo writes it: blanks and backslashes as \ooo."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


def escape(path: str) -> str:
    """The reverse of `unescape`, for blanks and backslashes."""
    return _SPECIAL.sub(lambda match: f"\\{ord(match[0]):03o}", path)


def parse_mountinfo(text: str) -> list[Mount]:
    """The cgroup mounts in /proc/self/mountinfo, proc_pid_mountinfo(5), in their order."""
    found = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if len(fields) < 6 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if kind[0] == "cgroup2" else 1
        options = frozenset(kind[2].split(",")) if version == 1 else frozenset[str]()
        found.append(Mount(unescape(fields[4]), unescape(fields[3]), version, options))
    return found


def parse_own(text: str) -> dict[str, str]:
    """Path of this process by controller, from /proc/self/cgroup, cgroups(7); that of cgroup v2 under ""."""
    own = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        for name in names.split(",") if number != "0" else [""]:
            own[name] = path.removesuffix(" (deleted)")
    return own


def place(mount: Mount, path: str) -> str | None:
    """The directory of the cgroup `path` below `mount`; None where the mount does not show it."""
    if path == mount.root:
        return mount.point
    below = path.removeprefix(mount.root if mount.root.endswith("/") else mount.root + "/")
    if below == path or below.startswith("../"):
        return None
    return f"{mount.point}/{below}"


def places(mounts: list[Mount], own: dict[str, str]) -> dict[str, str]:
    """The directory of this process by controller, that of cgroup v2 under "". The first mount that shows it counts."""
    found: dict[str, str] = {}
    for mount in mounts:
        for name in [""] if mount.version == 2 else mount.options & own.keys():
            if name in own and name not in found:
                directory = place(mount, own[name])
                if directory is not None:
                    found[name] = directory
    return found
