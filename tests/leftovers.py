"""What a test left behind: processes, sockets, directories, cgroups, descriptors."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARKER = "SPUR_TEST_CLUSTER"  # in the environment of everything that a cluster of the tests starts


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc shows it, with why it was found."""

    pid: int
    command: str
    why: str

    def __str__(self) -> str:
        return f"{self.pid} {self.command} ({self.why})"


def processes_of(mark: str, root: Path) -> list[Process]:
    """The processes that belong to the cluster `mark` at `root`, and their descendants; never the caller's own."""
    found: dict[int, Process] = {}
    for pid in _pids():
        if why := _belongs(pid, mark, root):
            found[pid] = Process(pid, _command(pid), why)
    while more := [pid for pid in _pids() if pid not in found and _parent(pid) in found]:
        found |= {pid: Process(pid, _command(pid), f"child of {_parent(pid)}") for pid in more}
    return [process for pid, process in sorted(found.items()) if pid not in (os.getpid(), os.getppid())]


def children() -> set[int]:
    """The pids of the processes that this one started and that are there, zombies too."""
    pids: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # that thread has just ended
            pids |= {int(pid) for pid in path.read_text().split()}
    return pids


def sockets_below(root: Path) -> list[Path]:
    return [path for path in _walk(root) if stat.S_ISSOCK(path.lstat().st_mode)]


def cgroups_named(names: set[str]) -> list[Path]:
    """The cgroup directories that are called one of `names`, in any hierarchy."""
    return [
        Path(directory) / name
        for mount in _cgroup_mounts()
        for directory, subdirectories, _ in os.walk(mount)
        for name in subdirectories
        if name in names
    ]


def descriptors() -> dict[int, str]:
    """The descriptors of this process that somebody opened: files, pipes and sockets with what is behind them.

    Left out is what libraries keep for good: event polls, pseudo devices, their own files.
    """
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if not target.startswith(("anon_inode:", "/dev/", "/proc/", "/sys/")):
            found[int(name)] = target
    return found


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _belongs(pid: int, mark: str, root: Path) -> str:
    """Why `pid` belongs to the cluster; empty: it does not."""
    base = Path(f"/proc/{pid}")
    try:
        if f"{MARKER}={mark}".encode() in (base / "environ").read_bytes().split(b"\0"):
            return "its environment"
        if str(root).encode() in (base / "cmdline").read_bytes():
            return "its command line"
        for link in (base / "cwd", *(base / "fd").iterdir()):
            if os.readlink(link).startswith(f"{root}/"):
                return f"{link} is {os.readlink(link)}"
    except OSError:  # it has gone, is a zombie, or is none of ours to look into
        pass
    return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return words[:160] or f"[{Path(f'/proc/{pid}/comm').read_text().strip()}]"
    except OSError:
        return "[gone]"


def _walk(root: Path) -> Iterator[Path]:
    for directory, _, files in os.walk(root):
        yield from (Path(directory) / name for name in files)


def _cgroup_mounts() -> list[str]:
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [fields[1] for fields in mounts if fields[2] in ("cgroup", "cgroup2")]
