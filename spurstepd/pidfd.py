"""Processes held by file descriptors: identity, signals and the kernel's exit record.

A pid is a number that the kernel gives away again; a pidfd is the process. All that this project signals or waits for
goes through here. Facts: pidfd_open(2), ioctl_pidfd(2) (struct pidfd_info, include/uapi/linux/pidfd.h).
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
from enum import Enum

from spurstepd.ledger import Process

_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, 64 bytes): the first form of struct pidfd_info, known to every kernel with it
_INFO_BYTES = 64
_WANT_EXIT = 8  # PIDFD_INFO_EXIT
_EXIT_CODE_AT = 60


class Likeness(Enum):
    """Whether the process of a record is the one that has its pid now. Unreadable is not dead."""

    SAME = "same"
    OTHER = "other"  # gone; its pid is free or somebody else's
    UNKNOWN = "unknown"


def exit_status(fd: int) -> int | None:
    """The raw wait status of the process behind pidfd `fd`, once it was reaped by whoever is its parent.

    None: it was not reaped yet, or this kernel keeps no such record (before 6.15: ENOTTY or EINVAL; a process of a
    foreign pid namespace: EREMOTE; before the record existed: ESRCH).
    """
    info = bytearray(_INFO_BYTES)
    struct.pack_into("=Q", info, 0, _WANT_EXIT)
    try:
        fcntl.ioctl(fd, _GET_INFO, info, True)
    except OSError:
        return None
    (filled,) = struct.unpack_from("=Q", info, 0)
    if not filled & _WANT_EXIT:
        return None
    (status,) = struct.unpack_from("=i", info, _EXIT_CODE_AT)
    return int(status)


def is_gone(fd: int) -> bool:
    """Whether the process behind pidfd `fd` has ended, reaped or not."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def is_reaped(fd: int) -> bool:
    """Whether the process behind `fd` has ended and was reaped (Linux 6.15 says so by POLLHUP; older ones never)."""
    poll = select.poll()
    poll.register(fd, 0)
    return bool(poll.poll(0))


def send_signal(fd: int, number: int) -> bool:
    """Send signal `number`; False where the process is gone."""
    try:
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    return True


def identify(pid: int, fd: int) -> Process:
    """The identity of the process behind `fd`, whose pid is `pid`."""
    return Process(pid, _inode(fd), _start_ticks(pid))


def open_same(process: Process) -> tuple[Likeness, int | None]:
    """Open a pidfd of `process`, a record of this boot, and say whether it is that process still.

    The descriptor is given for SAME alone. A process that ended and was not reaped yet is SAME.
    """
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return Likeness.OTHER, None
    except OSError:
        return Likeness.UNKNOWN, None
    likeness = _compare(process, identify(process.pid, fd))
    if likeness is Likeness.SAME:
        return likeness, fd
    os.close(fd)
    return likeness, None


def _compare(recorded: Process, found: Process) -> Likeness:
    if recorded.inode is not None and found.inode is not None:
        return Likeness.SAME if recorded.inode == found.inode else Likeness.OTHER
    if recorded.start_ticks is not None and found.start_ticks is not None:
        # Ticks alone cannot tell two processes of one tick apart, but they can refute.
        return Likeness.SAME if recorded.start_ticks == found.start_ticks else Likeness.OTHER
    return Likeness.UNKNOWN


def _inode(fd: int) -> int | None:
    """The inode of a pidfd where it is a number of its own: pidfs, since Linux 6.9; before, all pidfds share one."""
    return os.fstat(fd).st_ino if _has_pidfs() else None


def _has_pidfs() -> bool:
    global _pidfs
    if _pidfs is None:
        mine, init = os.pidfd_open(os.getpid()), os.pidfd_open(os.getppid() or os.getpid())
        try:
            _pidfs = os.getppid() != 0 and os.fstat(mine).st_ino != os.fstat(init).st_ino
        finally:
            os.close(mine)
            os.close(init)
    return _pidfs


_pidfs: bool | None = None


def _start_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat, proc_pid_stat(5): clock ticks since boot at which the process started."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fields = os.read(fd, 4096).rpartition(b")")[2].split()
        finally:
            os.close(fd)
        return int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
