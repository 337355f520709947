"""Processes by descriptor: identity in three values, the kernel's exit record, signals (R19, R25, R26)."""

from __future__ import annotations

import os
import select
import signal
from dataclasses import replace

import pytest

from spurstepd import pidfd
from spurstepd.ledger import Process
from spurstepd.pidfd import Likeness


def fork_exit(status: int) -> tuple[int, int]:
    """A child that has ended with raw wait status `status` and is not reaped: its pid and a pidfd."""
    pid = os.fork()
    if pid == 0:
        if status & 0x7F:
            signal.signal(status & 0x7F, signal.SIG_DFL) if status & 0x7F != signal.SIGKILL else None
            os.kill(os.getpid(), status & 0x7F)
        os._exit(status >> 8)
    fd = os.pidfd_open(pid)
    assert select.select([fd], [], [], 30)[0]
    return pid, fd


@pytest.mark.parametrize("status", [0, 7 << 8, 255 << 8, signal.SIGTERM, signal.SIGKILL])
def test_the_kernel_keeps_the_exit_for_whoever_holds_a_pidfd(status: int) -> None:
    pid, fd = fork_exit(status)
    try:
        assert pidfd.is_gone(fd)
        assert pidfd.exit_status(fd) is None  # a zombie: its status is its parent's still
        assert os.waitpid(pid, 0)[1] == status
        kept = pidfd.exit_status(fd)
        if kept is None:
            pytest.skip("this kernel keeps no exit behind a pidfd (before 6.15)")
        assert kept == status
        assert pidfd.is_reaped(fd)
        assert pidfd.send_signal(fd, signal.SIGTERM) is False
    finally:
        os.close(fd)


def mine() -> Process:
    fd = os.pidfd_open(os.getpid())
    try:
        return pidfd.identify(os.getpid(), fd)
    finally:
        os.close(fd)


def test_a_process_is_recognised() -> None:
    likeness, fd = pidfd.open_same(mine())
    assert likeness is Likeness.SAME
    assert fd is not None
    os.close(fd)


@pytest.mark.parametrize("lie", [{"inode": 1}, {"inode": None, "start_ticks": 1}])
def test_another_process_with_the_same_pid_is_refuted(lie: dict[str, int | None]) -> None:
    assert pidfd.open_same(replace(mine(), **lie)) == (Likeness.OTHER, None)


def test_an_identity_that_was_never_read_is_unknown_and_not_dead_r19() -> None:
    """Field report: a start time of 0 declared living jobs dead."""
    assert pidfd.open_same(Process(os.getpid(), None, None)) == (Likeness.UNKNOWN, None)


def test_a_pid_that_nobody_has_is_another() -> None:
    pid, fd = fork_exit(0)
    identity = pidfd.identify(pid, fd)
    os.waitpid(pid, 0)
    os.close(fd)
    assert pidfd.open_same(identity)[0] is Likeness.OTHER
