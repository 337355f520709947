"""The harness itself: what it finds, what it waits for, what it refuses to overlook."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from spur.config import load
from tests.cluster import Cluster, parse_record
from tests.daemon import Daemon
from tests.leftovers import MARKER, children, descriptors, processes_of, sockets_below
from tests.patience import wait_for


def test_a_configuration_is_laid_out_that_the_daemons_take() -> None:
    options = {
        "agent": {"cgroup": "none"},
        "partitions": [{"name": "a", "default": True}, {"name": "b", "nodes": "n1"}],
    }
    with Cluster(nodes={"n1": {"cpus": 2, "gres": ["gpu:1"]}, "n2": {}}, config=options, start=False) as cluster:
        config = load(cluster.conf)
        assert [node.name for node in config.nodes] == ["n1", "n2"]
        assert [partition.name for partition in config.partitions] == ["a", "b"]
        assert config.agent.cgroup.value == "none"
        assert config.auth.key_file == cluster.key
        root = cluster.root
    assert not root.exists()


def test_reads_the_records_of_scontrol() -> None:
    line = "JobId=3 JobName=a b=c UserId=nobody(65534) Reason=None ExitCode=7:0 Command=/x y/z StdOut=/tmp/slurm-3.out "
    assert parse_record(line) == {
        "JobId": "3",
        "JobName": "a b=c",
        "UserId": "nobody(65534)",
        "Reason": "None",
        "ExitCode": "7:0",
        "Command": "/x y/z",
        "StdOut": "/tmp/slurm-3.out",
    }


HIDING = """
import os, sys
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.chdir(sys.argv[1])
print(os.getpid(), flush=True)
os.close(1)
os.execve("/bin/sleep", ["sleep", "60"], {})
"""


def test_finds_a_process_that_hides(tmp_path: Path) -> None:
    """It is nobody's child, of a session of its own, with an empty environment: only its directory tells."""
    hidden = tmp_path / "work"
    hidden.mkdir()
    pid = int(subprocess.check_output([sys.executable, "-c", HIDING, str(hidden)]))
    try:
        wait_for(lambda: "sleep" in Path(f"/proc/{pid}/comm").read_text(), "it has become sleep")
        assert [process.pid for process in processes_of("no such mark", tmp_path)] == [pid]
    finally:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not processes_of("no such mark", tmp_path), "it has gone")


def test_finds_a_process_by_its_mark_and_its_children(tmp_path: Path) -> None:
    env = {**os.environ, MARKER: "test-mark"}
    with subprocess.Popen(["sh", "-c", "env -i sleep 60; :"], env=env) as shell:
        try:
            found = wait_for(lambda: (all := processes_of("test-mark", tmp_path))[1:] and all, "both are found")
            assert shell.pid in [process.pid for process in found]
            assert shell.pid in children()
        finally:
            for process in processes_of("test-mark", tmp_path):
                os.kill(process.pid, signal.SIGKILL)


def test_finds_sockets_and_descriptors(tmp_path: Path) -> None:
    before = descriptors()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "a.sock"))
        assert sockets_below(tmp_path) == [tmp_path / "a.sock"]
        assert set(descriptors()) - set(before) == {listener.fileno()}
    assert descriptors() == before


def test_a_cluster_that_leaves_a_process_fails_its_test() -> None:
    with pytest.raises(AssertionError, match=r"left behind: process .*sleep"), Cluster(start=False) as cluster:
        env = {**os.environ, MARKER: cluster.mark}
        left = subprocess.Popen(["sleep", "60"], env=env, start_new_session=True)
    assert left.wait() == -signal.SIGKILL


TALKER = 'import json, signal, sys\nprint(json.dumps({"event": "listening", "n": 1}), file=sys.stderr, flush=True)\nsignal.pause()'


def test_a_daemon_is_waited_for_by_what_it_logs(tmp_path: Path) -> None:
    daemon = Daemon("talker", lambda: [sys.executable, "-c", TALKER], tmp_path / "log", os.environ, ("listening",))
    daemon.start()
    assert daemon.wait_event("listening", n=1) == {"event": "listening", "n": 1}
    assert daemon.stop() == -signal.SIGTERM
    daemon.start()
    assert len(daemon.events("listening")) == 1
    assert len(daemon.events("listening", since_start=False)) == 2
    daemon.kill()


def test_a_daemon_that_ends_at_its_start_is_not_waited_for(tmp_path: Path) -> None:
    daemon = Daemon(
        "dead", lambda: [sys.executable, "-c", "exit('no key')"], tmp_path / "log", os.environ, ("listening",)
    )
    with pytest.raises(AssertionError, match=r"ended before it logged listening(.|\n)*no key"):
        daemon.start()
