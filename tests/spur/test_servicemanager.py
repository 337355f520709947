"""What spurd says to a service manager, heard on a real socket."""

from __future__ import annotations

import array
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spur.servicemanager import Handover, Notifier, from_environment


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(5)
        yield heard


def test_states_are_told_line_by_line(manager: socket.socket) -> None:
    notifier = Notifier(manager.getsockname())
    assert notifier.ready("3 runs\nadopted")
    assert manager.recv(4096) == b"READY=1\nSTATUS=3 runs adopted"
    assert notifier.stopping("leaving")
    assert manager.recv(4096) == b"STOPPING=1\nSTATUS=leaving"
    assert notifier.status("2 runs")
    assert manager.recv(4096) == b"STATUS=2 runs"
    assert notifier.watchdog()
    assert manager.recv(4096) == b"WATCHDOG=1"
    assert notifier.main_pid(42)
    assert manager.recv(4096) == b"MAINPID=42"
    assert notifier.extend_start(1.5)
    assert manager.recv(4096) == b"EXTEND_TIMEOUT_USEC=1500000"


def test_a_reload_carries_the_time_that_systemd_compares(manager: socket.socket) -> None:
    assert Notifier(manager.getsockname()).reloading()
    first, second = manager.recv(4096).decode().splitlines()
    assert first == "RELOADING=1"
    assert second.startswith("MONOTONIC_USEC=")
    assert second.partition("=")[2].isdigit()


def test_a_descriptor_is_stored_without_polling_and_removed_by_name(manager: socket.socket) -> None:
    notifier = Notifier(manager.getsockname())
    pidfd = os.pidfd_open(os.getpid())
    try:
        assert notifier.store("leader-42.1", pidfd)
        message, ancillary, _, _ = manager.recvmsg(4096, socket.CMSG_SPACE(4))
        assert message == b"FDSTORE=1\nFDPOLL=0\nFDNAME=leader-42.1"
        ((level, kind, data),) = ancillary
        assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
        (passed,) = array.array("i", data)
        assert os.readlink(f"/proc/self/fd/{passed}") == os.readlink(f"/proc/self/fd/{pidfd}")
        os.close(passed)
    finally:
        os.close(pidfd)
    assert notifier.remove("leader-42.1")
    assert manager.recv(4096) == b"FDSTOREREMOVE=1\nFDNAME=leader-42.1"


@pytest.mark.parametrize("name", ["", "a:b", "line\nbreak", "ä", "x" * 256])
def test_a_name_that_systemd_would_not_take_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be called"):
        Notifier().store(name, 0)


def test_an_abstract_address_is_reached() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"\0spur-test-{os.getpid()}")
        heard.settimeout(5)
        assert Notifier(f"@spur-test-{os.getpid()}").watchdog()
        assert heard.recv(4096) == b"WATCHDOG=1"


def test_without_a_manager_nothing_is_said_and_nothing_fails(tmp_path: Path) -> None:
    assert not Notifier().ready("here")
    assert not Notifier(str(tmp_path / "gone")).ready("here")


def test_a_manager_that_reads_nothing_is_not_waited_for_for_long(manager: socket.socket) -> None:
    notifier = Notifier(manager.getsockname())
    queue_limit = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
    assert any(not notifier.watchdog() for _ in range(queue_limit + 2))


def test_the_environment_of_the_service_is_used_up() -> None:
    environment = {
        "NOTIFY_SOCKET": "/run/systemd/notify",
        "WATCHDOG_USEC": "30000000",
        "WATCHDOG_PID": str(os.getpid()),
        "PATH": "/bin",
    }
    assert from_environment(environment) == Handover(Notifier("/run/systemd/notify", 15.0), ())
    assert environment == {"PATH": "/bin"}


@pytest.mark.parametrize("meant", ["1", "0"])
def test_a_watchdog_or_descriptors_meant_for_another_process_are_not_ours(meant: str) -> None:
    environment = {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": meant, "LISTEN_PID": meant, "LISTEN_FDS": "2"}
    assert from_environment(environment) == Handover(Notifier(), ())


TAKE_BACK = """
import os
from spur.servicemanager import from_environment
os.environ["LISTEN_PID"] = str(os.getpid())
for kept in from_environment(os.environ).kept:
    print(kept.name, kept.descriptor, os.get_inheritable(kept.descriptor), os.read(kept.descriptor, 9).decode())
"""


def test_stored_descriptors_come_back_under_their_names_and_are_not_inherited(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("first")
    (tmp_path / "two").write_text("second")
    # A shell puts the files where the service manager would: from descriptor 3 on.
    command = f'exec 3<"{tmp_path}/one" 4<"{tmp_path}/two"; exec "$0" -c "$1"'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, TAKE_BACK],
        env={**os.environ, "LISTEN_FDS": "2", "LISTEN_FDNAMES": "leader-1.1:leader-2.1"},
        capture_output=True,
        text=True,
        check=True,
        close_fds=True,
    )
    assert done.stdout.splitlines() == ["leader-1.1 3 False first", "leader-2.1 4 False second"]
