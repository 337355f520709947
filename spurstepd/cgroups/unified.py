"""Limits and counters by the controllers of cgroup v2, in the run's own directory.

The files and their rules: Documentation/admin-guide/cgroup-v2 in the kernel's sources.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from spurstepd.cgroups import files
from spurstepd.cgroups.container import Counters, Limits

CONTROLLERS = ("memory", "cpuset", "pids", "io")
"""What runs are limited and counted by. CPU time is counted without a controller."""


def settings(limits: Limits, controllers: frozenset[str]) -> Iterator[tuple[str, str]]:
    """(file, value) of what `controllers` can limit, in the order of writing."""
    if "memory" in controllers and limits.memory_limit_bytes is not None:
        yield "memory.max", str(limits.memory_limit_bytes)
        yield "memory.swap.max", "0"
        if limits.oom_group:
            yield "memory.oom.group", "1"
    if "cpuset" in controllers and limits.cpus is not None:
        yield "cpuset.cpus", _text(limits.cpus)
    if "pids" in controllers and limits.pids_max is not None:
        yield "pids.max", str(limits.pids_max)


OPTIONAL = frozenset({"memory.swap.max", "memory.oom.group"})
"""Files that a kernel may lack: without swap accounting there is no swap to limit, oom.group came with 4.19."""


def limit(directory: str, limits: Limits, controllers: frozenset[str]) -> Iterator[str]:
    """Put `limits` on `directory`; one line for each one that the kernel refused."""
    for name, value in settings(limits, controllers):
        try:
            files.write(f"{directory}/{name}", value)
        except OSError as error:
            if name not in OPTIONAL or error.errno not in files.GONE:
                yield f"{directory}/{name}: {value} is refused: {os.strerror(error.errno or 0)}"
        else:
            if name == "cpuset.cpus" and limits.cpus is not None:
                yield from _unconfined(directory, limits.cpus)


def _unconfined(directory: str, wanted: tuple[int, ...]) -> Iterator[str]:
    """The kernel takes CPUs that are not there, and gives the parent's for a set of nothing but those."""
    effective = files.read_if_there(f"{directory}/cpuset.cpus.effective") or ""
    if not cpu_list(effective) <= set(wanted):
        yield f"{directory}/cpuset.cpus: not confined to CPUs {_text(wanted)}: {effective.strip()} are in effect"


def cpu_list(text: str) -> set[int]:
    """The CPUs in a kernel list like "0-3,5"."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found


def _text(cpus: tuple[int, ...]) -> str:
    return ",".join(map(str, cpus))


def counters(directory: str) -> Counters:
    """What the kernel counts for `directory`. cpu.stat needs no controller; memory.peak came with Linux 5.19."""
    cpu = files.keyed(files.read_if_there(f"{directory}/cpu.stat") or "")
    read, written = _transferred(files.read_if_there(f"{directory}/io.stat"))
    return Counters(
        user_cpu_s=cpu["user_usec"] / 1e6 if "user_usec" in cpu else None,
        system_cpu_s=cpu["system_usec"] / 1e6 if "system_usec" in cpu else None,
        memory_bytes=files.number(f"{directory}/memory.current"),
        peak_memory_bytes=files.number(f"{directory}/memory.peak"),
        read_bytes=read,
        written_bytes=written,
    )


def _transferred(text: str | None) -> tuple[int | None, int | None]:
    """Sums over the devices of io.stat: "8:0 rbytes=1 wbytes=2 rios=..." per line."""
    if text is None:
        return None, None
    sums = {"rbytes": 0, "wbytes": 0}
    for word in text.split():
        name, _, value = word.partition("=")
        if name in sums and value.isdecimal():
            sums[name] += int(value)
    return sums["rbytes"], sums["wbytes"]


def oom_kills(directory: str) -> int | None:
    """Kills in and below `directory`; None where its memory is not counted."""
    text = files.read_if_there(f"{directory}/memory.events")
    return None if text is None else files.keyed(text).get("oom_kill", 0)
