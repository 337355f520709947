"""What the kernel does for the truth about exits. Each check does it once, with a child of its own."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
from collections.abc import Callable

import prctl

from spur.doctor.finding import Finding, broken, lacking, ok

_GET_INFO = 0xC040FF0B  # ioctl_pidfd(2): PIDFD_GET_INFO, the first form of struct pidfd_info, 64 bytes
_INFO_EXIT = 8
_EXIT_CODE_AT = 60
_PEER_PIDFD = 77  # SO_PEERPIDFD, asm-generic/socket.h
_TRIED_EXIT = 23


def pidfd() -> Finding:
    """pidfd_open(2) and pidfd_send_signal(2), Linux 5.3."""
    try:
        fd = os.pidfd_open(os.getpid())
    except OSError as error:
        return broken("pidfd", f"{os.strerror(error.errno or 0)}: no process can be told from its successor; Linux 5.3")
    try:
        signal.pidfd_send_signal(fd, 0)
    except OSError as error:
        return broken("pidfd", f"no signals through it: {os.strerror(error.errno or 0)}: jobs cannot be cancelled")
    finally:
        os.close(fd)
    return ok("pidfd", "processes are held and signalled by descriptor")


def exit_record() -> Finding:
    """PIDFD_INFO_EXIT: whoever holds a pidfd reads how the process ended, after somebody else reaped it."""
    child = _fork(lambda: _TRIED_EXIT)
    fd = os.pidfd_open(child)
    os.waitpid(child, 0)
    info = bytearray(64)
    struct.pack_into("=Q", info, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(fd, _GET_INFO, info, True)
    except OSError:
        info = bytearray(64)
    finally:
        os.close(fd)
    filled, status = struct.unpack_from("=Q", info, 0)[0], struct.unpack_from("=i", info, _EXIT_CODE_AT)[0]
    if filled & _INFO_EXIT and os.waitstatus_to_exitcode(status) == _TRIED_EXIT:
        return ok("exit record", "the kernel keeps an exit behind a pidfd")
    return lacking(
        "exit record",
        "the kernel keeps no exit behind a pidfd: one is unknown where supervisor and launcher both died; Linux 6.15",
    )


def identity() -> Finding:
    """pidfs: a pidfd's inode number is given once in a boot, Linux 6.9."""
    child = _fork(_sleep)
    mine, other = os.pidfd_open(os.getpid()), os.pidfd_open(child)
    differ = os.fstat(mine).st_ino != os.fstat(other).st_ino
    os.close(mine)
    os.close(other)
    _end(child)
    if differ:
        return ok("process identity", "each process of a boot has a number of its own")
    return lacking(
        "process identity",
        "a process is told from a later one with its pid by its start time, in clock ticks, alone; Linux 6.9",
    )


def subreaper() -> Finding:
    """PR_SET_CHILD_SUBREAPER, prctl(2): the launcher reaps for a dead supervisor."""
    child = _fork(_adopt)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) == 0:
        return ok("subreaper", "the launcher is a witness of exits")
    return broken("subreaper", "orphans do not come to it: an exit is unknown where a supervisor died")


def peer_pidfd() -> Finding:
    """SO_PEERPIDFD, Linux 6.5."""
    one, other = socket.socketpair()
    with one, other:
        try:
            found = one.getsockopt(socket.SOL_SOCKET, _PEER_PIDFD)
        except OSError:
            return lacking("peer pidfd", "how a supervisor itself died is not logged; Linux 6.5")
        os.close(found)
    return ok("peer pidfd", "how a supervisor itself died is logged")


def _adopt() -> int:
    """0 where this process, a subreaper, is handed the grandchild that a dead child leaves behind."""
    prctl.set_child_subreaper(1)
    between = _fork(_leave_a_child)
    statuses = {}
    try:
        while True:
            pid, status = os.wait()
            statuses[pid] = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        statuses.pop(between, None)
    return 0 if list(statuses.values()) == [_TRIED_EXIT] else 1


def _leave_a_child() -> int:
    _fork(lambda: _TRIED_EXIT)
    return 0


def _sleep() -> int:
    signal.pause()
    return 0


def _fork(work: Callable[[], int]) -> int:
    """The pid of a child that does `work` and exits with what it returns."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = work()
        finally:
            os._exit(code)
    return pid


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
