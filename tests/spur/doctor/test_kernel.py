"""The probes of the kernel: each must say something, leave no process behind, and agree with what is known otherwise."""

from __future__ import annotations

import os
import platform

import pytest

from spur.doctor import kernel
from spur.doctor.finding import Check, Grade


def version() -> tuple[int, int]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int(minor)


@pytest.mark.parametrize(
    "check", [kernel.pidfd, kernel.subreaper, kernel.identity, kernel.exit_record, kernel.peer_pidfd]
)
def test_a_probe_of_the_kernel_is_not_broken_here_and_leaves_no_child(check: Check) -> None:
    finding = check()
    assert finding.grade is not Grade.BROKEN
    assert "\n" not in finding.line()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.skipif(version() < (6, 15), reason="the kernel is older than what is looked for")
@pytest.mark.parametrize("check", [kernel.identity, kernel.exit_record, kernel.peer_pidfd])
def test_what_a_recent_kernel_has_is_found(check: Check) -> None:
    assert check().grade is Grade.OK
