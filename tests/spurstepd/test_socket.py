"""The supervisor's socket: standard clients, classes of callers, peers that misbehave (M3)."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
import varlink

from tests.patience import wait_for
from tests.spurstepd.conftest import Bench, Peer, RunHandle

SLEEP = "#!/bin/bash\nexec sleep 1000\n"
OWNER, STRANGER = 65534, 65533


@pytest.fixture
def sleeper(bench: Bench) -> Iterator[RunHandle]:
    """A job of OWNER's that runs until it is cancelled."""
    bench.start_launcher()
    run = bench.start(SLEEP, uid=OWNER)
    run.wait_phase("running")
    yield run
    if run.dir.path.exists():
        run.call("Terminate", kind="cancelled")
        run.finish()


def test_standard_client_queries_a_running_job(sleeper: RunHandle) -> None:
    """The `varlink` package, which is not ours: introspection, state, pids, an error by its name."""
    with varlink.Client(f"unix:{sleeper.bench.dirs.socket(sleeper.run)}") as client:
        assert client.get_interfaces() == ["org.varlink.service", "org.spur.Run"]
        assert "method GetState() -> (state: State)" in client.get_interface("org.spur.Run").get_description()
        with client.open("org.spur.Run") as run:
            state = run.GetState()["state"]
            assert (state["job"], state["attempt"], state["phase"]) == (42, 1, "running")
            pids = run.ListPids()["pids"]
            assert state["leader"]["pid"] in pids
            assert run.HasPid(pids[0])["member"] is True
            assert run.HasPid(1)["member"] is False
            with pytest.raises(varlink.VarlinkError, match="NotSettled"):
                run.Acknowledge("recorded")


def as_user(uid: int, run: RunHandle, method: str, **parameters: object) -> dict[str, object]:
    """A call of a process of `uid`."""
    program = (
        "import json,os,socket,sys\n"
        f"s=socket.socket(socket.AF_UNIX); s.connect({str(run.bench.dirs.socket(run.run))!r})\n"
        f"s.sendall(json.dumps({{'method':{method!r},'parameters':{parameters!r}}}).encode()+b'\\0')\n"
        "print(s.recv(65536).rstrip(b'\\0').decode())"
    )
    done = subprocess.run(
        ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "/usr/bin/python3", "-c", program],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "method, parameters, needs",
    [
        ("GetState", {}, "anybody"),
        ("ListPids", {}, "anybody"),
        ("GetUsage", {}, "owner"),
        ("Signal", {"signal": 18, "scope": "batch"}, "owner"),
        ("Start", {}, "root"),
        ("Suspend", {}, "root"),
        ("Acknowledge", {"answer": "recorded"}, "root"),
        ("Release", {}, "root"),
    ],
)
def test_callers_come_in_three_classes(sleeper: RunHandle, method: str, parameters: dict, needs: str) -> None:
    refused = {"error": "org.varlink.service.PermissionDenied", "parameters": {}}
    stranger = as_user(STRANGER, sleeper, f"org.spur.Run.{method}", **parameters)
    owner = as_user(OWNER, sleeper, f"org.spur.Run.{method}", **parameters)
    assert (stranger == refused) == (needs != "anybody")
    assert (owner == refused) == (needs == "root")


def test_stranger_cannot_end_a_job_and_owner_cannot_lie_about_why(sleeper: RunHandle) -> None:
    assert "error" in as_user(STRANGER, sleeper, "org.spur.Run.Terminate", kind="cancelled")
    lie = as_user(OWNER, sleeper, "org.spur.Run.Terminate", kind="timeout")
    assert lie["error"] == "org.varlink.service.InvalidParameter"
    assert as_user(OWNER, sleeper, "org.spur.Run.Terminate", kind="cancelled", by_uid=0)["parameters"] == {
        "first": True
    }
    assert sleeper.finish()["verdict"]["by_uid"] == OWNER


def test_nonce_is_told_to_root_alone(sleeper: RunHandle) -> None:
    assert sleeper.call("Hello")["nonce"] == "abc"
    assert as_user(OWNER, sleeper, "org.spur.Run.Hello")["parameters"]["nonce"] is None


@pytest.mark.parametrize(
    "message, error",
    [
        ({"method": "org.spur.Run.Nothing"}, "org.varlink.service.MethodNotFound"),
        ({"method": "org.other.Thing.Do"}, "org.varlink.service.InterfaceNotFound"),
        ({"method": "org.spur.Run.HasPid", "parameters": {"pid": "1"}}, "org.varlink.service.InvalidParameter"),
        ({"method": "org.spur.Run.Signal", "parameters": {"signal": 999, "scope": "full"}},
         "org.varlink.service.InvalidParameter"),
        ({"method": "org.spur.Run.Release"}, "org.spur.Run.NotSettled"),
    ],
)  # fmt: skip
def test_bad_calls_get_a_named_error(sleeper: RunHandle, message: dict, error: str) -> None:
    peer = sleeper.peer()
    peer.socket.sendall(json.dumps(message).encode() + b"\0")
    assert peer.receive()["error"] == error
    peer.close()


@pytest.mark.parametrize(
    "garbage",
    [b"\0", b"{}\0", b"[1]\0", b"not json\0", b'{"method": 7}\0', b"[" * 50000 + b"\0", b"x" * 200000],
    ids=["empty", "no method", "a list", "no json", "a number", "deep", "endless"],
)
def test_garbage_costs_a_peer_its_connection_and_nobody_else_anything(sleeper: RunHandle, garbage: bytes) -> None:
    peer = sleeper.peer()
    with pytest.raises(ConnectionError):
        peer.socket.sendall(garbage)
        peer.receive()
    peer.close()
    assert sleeper.state()["phase"] == "running"


def test_unknown_fields_are_ignored(sleeper: RunHandle) -> None:
    peer = sleeper.peer()
    peer.socket.sendall(b'{"method": "org.spur.Run.GetState", "parameters": {"later": 1}, "also": true}\0')
    assert peer.receive()["parameters"]["state"]["job"] == 42
    peer.close()


def test_silent_and_unread_peers_do_not_matter(sleeper: RunHandle) -> None:
    """More connections than are served, subscribers that never read: the run is asked and ends all the same."""
    peers = []
    for _ in range(150):
        with contextlib.suppress(BlockingIOError):  # more than the backlog at once
            peers.append(Peer(sleeper.bench.dirs.socket(sleeper.run)))
    for peer in peers:
        peer.close()
    unread = sleeper.peer()
    for _ in range(2000):
        try:
            unread.socket.settimeout(0.05)
            unread.send("org.spur.Run.GetState")
        except (TimeoutError, ConnectionError):
            break
    assert sleeper.state()["phase"] == "running"
    unread.close()


def test_descriptors_from_strangers_are_refused(sleeper: RunHandle) -> None:
    before = len(os.listdir(f"/proc/{sleeper.state()['supervisor']['pid']}/fd"))
    program = (
        "import socket\n"
        f"s=socket.socket(socket.AF_UNIX); s.connect({str(sleeper.bench.dirs.socket(sleeper.run))!r})\n"
        'socket.send_fds(s, [b\'{"method":"org.spur.Run.GetState"}\\0\'], [0, 1, 2]); print(s.recv(10))'
    )
    done = subprocess.run(
        ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", "/usr/bin/python3", "-c", program],
        capture_output=True, text=True,
    )  # fmt: skip
    assert "b''" in done.stdout or "ConnectionReset" in done.stderr
    supervisor = sleeper.state()["supervisor"]["pid"]
    wait_for(lambda: len(os.listdir(f"/proc/{supervisor}/fd")) <= before, "no descriptor more")


def test_subscriber_sees_every_phase(bench: Bench) -> None:
    """That of an ended run too, since something is left of it; otherwise it is finished with its exit."""
    bench.start_launcher()
    run = bench.start("#!/bin/bash\nsleep 1000 &\nexit 7\n", may_start=False)
    peer = run.peer()
    peer.send("org.spur.Run.Subscribe", more=True)
    first = peer.receive()
    assert first["continues"] is True
    run.call("Start")
    seen = [first["parameters"]["state"]["phase"]]
    while seen[-1] != "finished":
        phase = peer.receive()["parameters"]["state"]["phase"]
        if phase != seen[-1]:
            seen.append(phase)
    assert seen == ["ready", "running", "ended", "finished"]
    peer.close()
    run.finish()


def test_socket_path_may_be_longer_than_an_address(tmp_path: object, bench: Bench) -> None:
    """107 bytes are what a unix address takes; a spool can lie deeper."""
    long = bench.dirs.runtime.parent / ("d" * 90)
    deep = Bench(long)
    try:
        assert len(str(deep.dirs.sockets)) > 107
        deep.start_launcher()
        deep.start("#!/bin/bash\nexit 0\n").finish()
    finally:
        deep.close()


def test_launcher_refuses_everybody_but_root(bench: Bench) -> None:
    bench.start_launcher()
    path = bench.dirs.launchers / f"{bench.launchers[0].pid}.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
        peer.sendall(b'{"method": "org.spur.Launcher.Supervise", "parameters": {"job": 1, "attempt": 1}}\0')
        assert json.loads(peer.recv(4096).rstrip(b"\0"))["error"] == "org.spur.Launcher.NoSuchRun"
    assert sys.executable
