"""What spurd keeps of a leader, and what systemd's descriptor store keeps of it for the next spurd."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from spur.servicemanager import KeptDescriptor, Notifier
from spurd.witness import Witness
from spurstepd import pidfd
from spurstepd.ids import RunId
from spurstepd.ledger import Process

RUN = RunId(42, 1)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(5)
        yield heard


def start_leader() -> tuple[subprocess.Popen[bytes], Process]:
    leader = subprocess.Popen(["sh", "-c", "read go; exit 42"], stdin=subprocess.PIPE)
    fd = os.pidfd_open(leader.pid)
    try:
        return leader, pidfd.identify(leader.pid, fd)
    finally:
        os.close(fd)


def end(leader: subprocess.Popen[bytes]) -> None:
    assert leader.stdin is not None
    leader.stdin.close()
    assert leader.wait(10) == 42


def taken(manager: socket.socket) -> tuple[str, tuple[int, ...]]:
    message, descriptors, _, _ = socket.recv_fds(manager, 4096, 1)
    return message.decode(), tuple(descriptors)


def test_a_leader_that_is_reaped_while_no_spurd_lives_can_be_asked_by_the_next_one(manager: socket.socket) -> None:
    """M4, R22: the descriptor store carries the pidfd over the absence."""
    leader, process = start_leader()
    first = Witness(Notifier(manager.getsockname()))
    first.hold(RUN, process)
    message, (stored,) = taken(manager)
    assert message == "FDSTORE=1\nFDPOLL=0\nFDNAME=leader-42.1"
    first.close()
    end(leader)
    if process.inode is None:
        os.close(stored)
        pytest.skip("this kernel has no pidfs, so a kept descriptor proves nothing")
    second = Witness(Notifier(manager.getsockname()), [KeptDescriptor("leader-42.1", stored)])
    second.hold(RUN, process)
    held = second.leader(RUN)
    assert held is not None
    assert held.pidfd == stored
    if (status := pidfd.exit_status(stored)) is not None:  # else this kernel keeps no exits
        assert os.waitstatus_to_exitcode(status) == 42
    second.forget(RUN)
    assert taken(manager)[0] == "FDSTOREREMOVE=1\nFDNAME=leader-42.1"


def test_a_kept_descriptor_of_another_process_is_not_taken_for_the_leader(manager: socket.socket) -> None:
    """R26."""
    leader, process = start_leader()
    witness = Witness(Notifier(manager.getsockname()), [KeptDescriptor("leader-42.1", os.pidfd_open(os.getpid()))])
    witness.hold(RUN, process)
    assert taken(manager)[0].startswith("FDSTOREREMOVE=1")
    message, (stored,) = taken(manager)
    assert message.startswith("FDSTORE=1")
    assert pidfd.identify(leader.pid, stored) == process
    os.close(stored)
    witness.close()
    end(leader)


def test_what_was_kept_for_a_run_that_is_gone_is_given_back(manager: socket.socket) -> None:
    """R41: the store does not grow over restarts."""
    witness = Witness(Notifier(manager.getsockname()), [KeptDescriptor("leader-7.2", os.pidfd_open(os.getpid()))])
    witness.forget_others([RUN])
    assert taken(manager)[0] == "FDSTOREREMOVE=1\nFDNAME=leader-7.2"
    witness.close()


def test_without_a_service_manager_a_leader_is_held_all_the_same() -> None:
    leader, process = start_leader()
    witness = Witness(Notifier())
    witness.hold(RUN, process)
    held = witness.leader(RUN)
    assert held is not None
    assert held.pid == leader.pid
    witness.close()
    end(leader)
