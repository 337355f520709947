"""Processes as /proc shows them, and signals that reach only the process that was meant."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from spurstepd.cgroups.container import Leftover

TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the process table. `start_ticks` tells two holders of one pid apart."""

    pid: int
    ppid: int
    name: str
    state: str
    start_ticks: int
    user_ticks: int  # with those of the children that it has waited for
    system_ticks: int
    rss_bytes: int


def parse(stat: str) -> Entry:
    """The line of /proc/PID/stat, proc_pid_stat(5). The name may hold spaces and brackets."""
    opening, closing = stat.index("("), stat.rindex(")")
    rest = stat[closing + 2 :].split()
    return Entry(
        pid=int(stat[:opening]),
        ppid=int(rest[1]),
        name=stat[opening + 1 : closing],
        state=rest[0],
        start_ticks=int(rest[19]),
        user_ticks=int(rest[11]) + int(rest[13]),
        system_ticks=int(rest[12]) + int(rest[14]),
        rss_bytes=int(rest[21]) * PAGE_BYTES,
    )


def entry(pid: int) -> Entry | None:
    """The process `pid`, None where there is none."""
    text = proc_file(pid, "stat")
    return parse(text) if text else None


def proc_file(pid: int, name: str) -> str | None:
    """/proc/PID/NAME; None where the process is gone or the file cannot be read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return (file.readall() or b"").decode(errors="surrogateescape")
    except OSError:
        return None


def table() -> dict[int, Entry]:
    """All processes, by pid, one after another: not a picture of one moment."""
    return {found.pid: found for found in _entries()}


def _entries() -> Iterator[Entry]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            found = entry(int(name))
            if found is not None:
                yield found


def send(pid: int, signum: int, is_it: Callable[[int], bool]) -> bool:
    """Send `signum` to `pid` if `is_it(pid)` still holds once a pidfd keeps the number from being given away."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not is_it(pid):
            return False
        signal.pidfd_send_signal(fd, signum)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def describe(pids: Iterable[int]) -> list[Leftover]:
    """What can be said of `pids`; those that are gone are left out."""
    found = []
    for pid in pids:
        one = entry(pid)
        if one is not None:
            waiting_in = proc_file(pid, "wchan") or ""
            found.append(Leftover(pid, one.name, one.state, "" if waiting_in == "0" else waiting_in))
    return found
