"""How the commands find the controller, prove who calls, and say that it failed."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from spur import client
from tests.spur.controllerserver import ControllerServer, Refusal, run_here

NO_CONTACT = "Unable to contact slurm controller (connect failure)"


@pytest.fixture
def server() -> Iterator[ControllerServer]:
    with ControllerServer() as running:
        yield running


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


@pytest.mark.parametrize(
    ("argv", "stderr", "code"),
    [
        (["squeue"], f"slurm_load_jobs error: {NO_CONTACT}", 1),
        (["squeue", "-j", "3"], f"slurm_load_jobs error: {NO_CONTACT}", 1),
        (["squeue", "-s"], f"slurm_get_job_steps error: {NO_CONTACT}", 1),
        (["sinfo"], f"slurm_load_partitions: {NO_CONTACT}", 1),
        (["scancel", "3"], f"scancel: error: Kill job error on job id 3: {NO_CONTACT}", 8),
        (["scancel", "-u", "root"], f"slurm_load_jobs error: {NO_CONTACT}", 1),
        (["scontrol", "show", "job", "3"], f"slurm_load_jobs error: {NO_CONTACT}", 1),
        (["scontrol", "show", "node"], f"slurm_load_node error: {NO_CONTACT}", 1),
        (["scontrol", "show", "part"], f"slurm_load_partitions error: {NO_CONTACT}", 1),
        (["scontrol", "show", "config"], f"slurm_load_ctl_conf error: {NO_CONTACT}", 1),
        (["scontrol", "update", "nodename=n1", "state=resume"], f"slurm_update error: {NO_CONTACT}", 1),
        (["scontrol", "write", "batch_script", "3", "-"], f"job script retrieval failed: {NO_CONTACT}", 0),
        (["sbatch", "--wrap", "x"], f"sbatch: error: Batch job submission failed: {NO_CONTACT}", 1),
        (["sbatch", "--test-only", "--wrap", "x"], f"allocation failure: {NO_CONTACT}", 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_controller_that_is_away_is_told_in_slurms_words_and_then_where_it_was_looked_for(
    argv: list[str], stderr: str, code: int, server: ControllerServer, closed_port: int, tmp_path: Path
) -> None:
    result = server.run(tmp_path, *argv, env={"SPUR_CONTROLLER_ADDR": f"127.0.0.1:{closed_port}"})
    assert (result.stdout, result.code) == ("", code)
    assert result.stderr == f"{stderr}\n{argv[0]}: 127.0.0.1:{closed_port}: Connection refused\n"


def test_ping_says_that_it_is_down(server: ControllerServer, closed_port: int, tmp_path: Path) -> None:
    result = server.run(tmp_path, "scontrol", "ping", env={"SPUR_CONTROLLER_ADDR": f"127.0.0.1:{closed_port}"})
    assert result.code == 1
    assert result.stdout.splitlines()[0] == f"Slurmctld(primary) at 127.0.0.1:{closed_port} is DOWN"
    assert server.run(tmp_path, "scontrol", "ping").stdout == "Slurmctld(primary) at vm is UP\n"


def test_a_controller_that_starts_within_the_patience_is_found(closed_port: int, tmp_path: Path) -> None:
    server = ControllerServer(port=closed_port)
    environ = server.environ(tmp_path) | {"SPUR_CONNECT_SECS": "60"}
    timer = threading.Timer(0.5, server.__enter__)
    timer.start()
    result = run_here(environ, "squeue", "-h")
    timer.join()
    server.__exit__(None, None, None)
    assert (result.stderr, result.code) == ("", 0)


def test_of_several_addresses_the_first_that_answers_is_taken(
    server: ControllerServer, closed_port: int, tmp_path: Path
) -> None:
    addresses = f"127.0.0.1:{closed_port}, 127.0.0.1:{server.port}"
    assert server.run(tmp_path, "squeue", "-h", env={"SPUR_CONTROLLER_ADDR": addresses}).code == 0
    assert len(server.requests) == 1


def test_the_configuration_says_where_it_is_and_no_variable_of_slurm_does(
    server: ControllerServer, tmp_path: Path
) -> None:
    config = tmp_path / "conf.toml"
    config.write_text(
        f'[auth]\nplugin = "none"\n[agent]\nlisten = "127.0.0.1:0"\ncontroller = ["127.0.0.1:{server.port}"]\n'
    )
    environ = {"SPUR_CONF": str(config), "SLURM_CONF": "/no/such/file", "SLURM_CONTROLLER_ADDR": "127.0.0.1:1"}
    assert run_here(environ, "squeue", "-h").code == 0
    assert run_here({**environ, "SPUR_CONTROLLER_ADDR": ""}, "squeue", "-h").code == 0


@pytest.mark.parametrize("proxy", ["http_proxy", "https_proxy", "grpc_proxy"])
def test_no_proxy_is_asked(proxy: str, server: ControllerServer, closed_port: int, tmp_path: Path) -> None:
    result = server.process(tmp_path, "squeue", "-h", env={proxy: f"http://127.0.0.1:{closed_port}"})
    assert (result.stderr, result.code) == ("", 0)


def test_an_unusable_configuration_or_address_is_one_line(tmp_path: Path) -> None:
    missing = run_here({"SPUR_CONF": str(tmp_path / "none.toml")}, "squeue")
    assert missing.code == 1
    assert missing.stderr.startswith(f"squeue: error: {tmp_path}/none.toml: no such file")
    config = tmp_path / "spur.toml"
    config.write_text("bogus = 1\n")
    assert "bogus" in run_here({"SPUR_CONF": str(config)}, "sinfo").stderr
    config.write_text("")
    address = run_here({"SPUR_CONF": str(config), "SPUR_CONTROLLER_ADDR": "nowhere"}, "squeue")
    assert address.stderr == 'squeue: error: SPUR_CONTROLLER_ADDR is "nowhere", not HOST:PORT\n'


def test_who_calls_is_said_in_a_cluster_that_believes_it(server: ControllerServer, tmp_path: Path) -> None:
    server.run(tmp_path, "squeue", "-h")
    assert server.metadata[0]["spur-kind"] == "user"
    assert "authorization" not in server.metadata[0]


@contextmanager
def token_socket(path: Path, token: str) -> Iterator[None]:
    """A daemon's local socket that gives out one token."""
    path.parent.mkdir(parents=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(json.dumps({"parameters": {"token": token, "expires_at": 0.0}}).encode() + b"\0")

    thread = threading.Thread(target=answer)
    thread.start()
    yield
    thread.join()
    listener.close()


def test_every_call_carries_the_token_that_a_daemon_of_this_host_gives(
    server: ControllerServer, tmp_path: Path
) -> None:
    (tmp_path / "spur.toml").write_text(f'[controller]\nruntime_dir = "{tmp_path}/run"\n')
    with token_socket(tmp_path / "run" / "spurctld.sock", "abc.def"):
        assert server.run(tmp_path, "squeue", "-h").code == 0
    assert server.metadata[0]["authorization"] == "Bearer abc.def"


def test_without_a_daemon_there_is_no_token_and_it_is_said(server: ControllerServer, tmp_path: Path) -> None:
    (tmp_path / "spur.toml").write_text(
        f'[controller]\nruntime_dir = "{tmp_path}/run"\n[agent]\nruntime_dir = "{tmp_path}/run"\n'
    )
    result = server.run(tmp_path, "squeue")
    first, second = result.stderr.splitlines()
    assert first == f"slurm_load_jobs error: {NO_CONTACT}"
    assert second.startswith("squeue: no daemon of Spur on this host gives a token")
    assert not server.requests


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (grpc.StatusCode.UNAVAILABLE, NO_CONTACT),
        (grpc.StatusCode.CANCELLED, NO_CONTACT),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Socket timed out on send/recv operation"),
        (grpc.StatusCode.UNAUTHENTICATED, "Protocol authentication error"),
        (grpc.StatusCode.INTERNAL, "its details"),
        (grpc.StatusCode.PERMISSION_DENIED, "its details"),
    ],
)
def test_what_grpc_says_becomes_what_slurm_says(
    status: grpc.StatusCode, text: str, server: ControllerServer, tmp_path: Path
) -> None:
    server.refusals = {"ListJobs": Refusal("its details", status)}
    result = server.run(tmp_path, "squeue")
    assert result.stderr.splitlines()[0] == f"slurm_load_jobs error: {text}"


def test_a_controller_that_does_not_answer_is_given_up(server: ControllerServer, tmp_path: Path) -> None:
    stop = threading.Event()
    server.before = lambda _method: (stop.wait(30), None)[1]
    from spur.pb.spurctld_pb2 import PingRequest

    with client.connect(server.environ(tmp_path)) as controller:
        began = time.monotonic()
        with pytest.raises(client.ControllerError, match="timed out"):
            controller.call(controller.stub.Ping, PingRequest(), timeout_s=0.2)
        assert time.monotonic() - began < 20
    stop.set()


def test_a_table_of_very_many_jobs_comes_through(server: ControllerServer, tmp_path: Path) -> None:
    from spur.pb import common_pb2
    from spur.pb import spurctld_pb2 as pb

    path = "/some/long/directory" * 20
    server.jobs = [
        pb.JobInfo(job_id=number, state=common_pb2.PENDING, user="root", partition="main",
                   job=common_pb2.JobDescription(name="x", work_dir=path))
        for number in range(1, 15001)
    ]  # fmt: skip
    result = server.run(tmp_path, "squeue", "-h", "-o", "%i")
    assert result.code == 0
    assert len(result.stdout.splitlines()) == 15000
