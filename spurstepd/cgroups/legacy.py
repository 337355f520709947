"""Limits and counters by the controllers of cgroup v1, each in a hierarchy of its own.

The files and their rules: Documentation/admin-guide/cgroup-v1 in the kernel's sources.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from spurstepd.cgroups import files, tree
from spurstepd.cgroups.container import Limits

CONTROLLERS = ("memory", "cpuset", "pids", "devices")
"""What runs are limited and counted by. CPU time is counted in the v2 tree, transfers of a v1 hierarchy are not
attributed to who caused them."""


def needed(limits: Limits) -> Iterator[str]:
    """The controllers that a run with `limits` has to be in. Memory is always counted."""
    yield "memory"
    if limits.cpus is not None:
        yield "cpuset"
    if limits.pids_max is not None:
        yield "pids"
    if limits.denied_devices:
        yield "devices"


def settings(controller: str, limits: Limits) -> Iterator[tuple[str, str]]:
    """(file, value) of what `controller` limits, in the order of writing."""
    match controller:
        case "memory" if limits.memory_limit_bytes is not None:
            # The limit on memory and swap together must not be below the one on memory: it is set second.
            yield "memory.limit_in_bytes", str(limits.memory_limit_bytes)
            yield "memory.memsw.limit_in_bytes", str(limits.memory_limit_bytes)
        case "cpuset" if limits.cpus is not None:
            yield "cpuset.cpus", ",".join(map(str, limits.cpus))
        case "pids" if limits.pids_max is not None:
            yield "pids.max", str(limits.pids_max)
        case "devices":
            for device in limits.denied_devices:
                yield "devices.deny", f"{device} rwm"


def make(controller: str, directory: str) -> None:
    """A cgroup of `controller` that a process can be in. It may be there already. OSError."""
    tree.make(directory)
    if controller == "cpuset":
        _inherit(directory)


def _inherit(directory: str) -> None:
    """A cpuset of v1 starts without CPUs and memory nodes, and nothing can be in it then."""
    parent = os.path.dirname(directory)
    for name in ("cpuset.mems", "cpuset.cpus"):
        if not files.read(f"{directory}/{name}").strip():
            files.write(f"{directory}/{name}", files.read(f"{parent}/{name}").strip())


def limit(controller: str, directory: str, limits: Limits) -> Iterator[str]:
    """Put `limits` on `directory`; one line for each one that the kernel refused."""
    for name, value in settings(controller, limits):
        try:
            files.write(f"{directory}/{name}", value)
        except OSError as error:
            if name != "memory.memsw.limit_in_bytes" or error.errno not in (*files.GONE, errno.EOPNOTSUPP):
                yield f"{directory}/{name}: {value} is refused: {os.strerror(error.errno or 0)}"


def memory(directory: str) -> tuple[int | None, int | None]:
    """(current, peak) bytes of the memory cgroup `directory`."""
    return (
        files.number(f"{directory}/memory.usage_in_bytes"),
        files.number(f"{directory}/memory.max_usage_in_bytes"),
    )


def oom_kills(directory: str) -> int:
    """Kills in the memory cgroup `directory` (in memory.oom_control since Linux 4.13)."""
    return files.keyed(files.read_if_there(f"{directory}/memory.oom_control") or "").get("oom_kill", 0)
