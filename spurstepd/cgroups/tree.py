"""The cgroup v2 tree: membership, events, killing and freezing. Needs no controller."""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Callable

from spurstepd.cgroups import files, processes

WALKS = 32
"""How often a kill without cgroup.kill looks for new members before it leaves the rest to the next call."""


def directories(top: str) -> list[str]:
    """`top` and every cgroup below it, parents first; what vanishes meanwhile is left out."""
    found: list[str] = [top]
    for directory in found:  # grows while it is walked
        try:
            with os.scandir(directory) as entries:
                found.extend(entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError as error:
            if error.errno not in files.GONE:
                raise
    return found


def pids(top: str) -> list[int]:
    """The processes in and below `top`. Those of other pid namespaces, which read as 0, are left out."""
    found: list[int] = []
    for directory in directories(top):
        text = files.read_if_there(f"{directory}/cgroup.procs")
        if text:
            found.extend(int(line) for line in text.split() if line != "0")
    return found


def member_of(top: str) -> Callable[[int], bool]:
    """A test whether a pid is in or below `top` now."""
    tail = "/".join(["", *top.split("/")[-2:]])  # of spur-KEY/42.1: the mount point is not part of what /proc says

    def is_it(pid: int) -> bool:
        for line in (processes.proc_file(pid, "cgroup") or "").splitlines():
            if line.startswith("0::"):
                return f"{tail}/" in f"{line[3:]}/"
        return False

    return is_it


def send(top: str, signum: int) -> int:
    """Send `signum` to every process in and below `top`; how many got it."""
    is_it = member_of(top)
    return sum(processes.send(pid, signum, is_it) for pid in pids(top))


def kill(top: str) -> None:
    """Kill everything in and below `top`, at once where the kernel can (cgroup.kill, Linux 5.14)."""
    try:
        files.write(f"{top}/cgroup.kill", "1")
    except OSError as error:
        if error.errno not in files.GONE:
            raise
        if os.path.isdir(top):
            kill_one_by_one(top)


def kill_one_by_one(top: str) -> None:
    """Kill every process in and below `top`, frozen first where that is possible so that none can fork meanwhile.

    A frozen process of cgroup v2 dies of SIGKILL as it is; new ones in a frozen cgroup are born frozen.
    """
    freeze(top, True)
    for _ in range(WALKS):
        if not send(top, signal.SIGKILL):
            break
    freeze(top, False)


def freeze(top: str, frozen: bool) -> bool:
    """Stop or let go on. False: the kernel cannot (before Linux 5.2), or `top` is gone."""
    try:
        files.write(f"{top}/cgroup.freeze", "1" if frozen else "0")
    except OSError as error:
        if error.errno not in files.GONE:
            raise
        return False
    return True


def make(directory: str) -> None:
    """A cgroup that may be there already. OSError."""
    try:
        os.mkdir(directory, 0o755)
    except FileExistsError:
        pass


def remove(top: str, wait_s: float = 0.0) -> bool:
    """Remove `top` and all below it, waiting at most `wait_s` for those who are leaving. False: it is populated."""
    until = time.monotonic() + wait_s
    for directory in reversed(directories(top)):
        while not _rmdir(directory):
            if time.monotonic() >= until:
                return False
            time.sleep(0.001)  # a dead process leaves its cgroup only after its last context switch: no event for that
    return True


def _rmdir(directory: str) -> bool:
    try:
        os.rmdir(directory)
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        if error.errno not in files.GONE:
            raise
    return True


class Events:
    """The changes of cgroup.events of one cgroup, as a descriptor that any selector can wait on.

    The kernel reports them as POLLPRI on a file that is always POLLIN too; an epoll set around it that asks for
    POLLPRI alone is readable exactly then.
    """

    def __init__(self, directory: str) -> None:
        """OSError: no such cgroup."""
        self._file = os.open(f"{directory}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        self._set = select.epoll(1)
        self._set.register(self._file, select.EPOLLPRI)

    def fileno(self) -> int:
        return self._set.fileno()

    def populated(self) -> bool:
        """Whether a process is in or below it; this read also arms the descriptor for the next change."""
        try:
            text = os.pread(self._file, 4096, 0)
        except OSError as error:
            if error.errno in files.GONE:
                return False
            raise
        return b"populated 1" in text

    def close(self) -> None:
        self._set.close()
        os.close(self._file)
