"""What went wrong elsewhere with exits, verdicts and signals: each kind, with what has to happen."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.endtoend.conftest import Traced
from tests.endtoend.scripts import let_go, lives, wait_gone, wait_idle, wait_ran, wait_state, waiting
from tests.patience import wait_for

BRIEF = [{"name": "main", "default": True}, {"name": "brief", "default_time": "0:01"}]
STUBBORN = "trap '' TERM\nwhile :; do sleep 0.1; done"
EAT = "import sys; b = bytearray(300 << 20); [b.__setitem__(i, 1) for i in range(0, len(b), 4096)]"


@pytest.mark.parametrize(
    "script, exit_code",
    [
        ("trap 'exit 0' TERM\nwhile :; do sleep 0.05; done", "0:0"),
        ("trap 'exit 0' EXIT\nexec 2>&1\nwhile :; do sleep 0.05; done", "0:15"),
        ("#!/bin/bash\ntrap 'exit 4' TERM EXIT\nwhile :; do sleep 0.05; done", "4:0"),
        ("exec sleep 1000", "0:15"),
        (STUBBORN, "0:9"),
    ],
)
def test_cancelled_is_cancelled_however_the_script_takes_it(cluster: Cluster, script: str, exit_code: str) -> None:
    """Field report: a cancelled job was COMPLETED, because its trap had made something of the signal."""
    job = cluster.sbatch(script)
    leader = cluster.agent.leader_pid(job)
    wait_for(lambda: "sleep" in _children(leader), "it waits")
    cluster.cancel(job)
    cluster.wait_released()
    shown = cluster.job(job)
    assert (shown["JobState"], shown["ExitCode"]) == ("CANCELLED", exit_code)


def _children(leader: int) -> str:
    """The names of the leader and of its children."""
    pids = [str(leader), *Path(f"/proc/{leader}/task/{leader}/children").read_text().split()]
    return " ".join(Path(f"/proc/{pid}/comm").read_text() for pid in pids if Path(f"/proc/{pid}").exists())


def test_timed_out_is_timeout_however_the_script_takes_it(make_cluster: Callable[..., Cluster]) -> None:
    """Field report: only stubborn jobs were TIMEOUT; one that ended at the first signal was FAILED."""
    cluster = make_cluster(config={"partitions": BRIEF})
    scripts = {
        "exec sleep 1000": "0:15",
        "trap 'exit 0' TERM\nwhile :; do sleep 0.05; done": "0:0",
        "trap 'exit 9' TERM\nwhile :; do sleep 0.05; done": "9:0",
        STUBBORN: "0:9",
    }
    jobs = {cluster.sbatch(script, "-p", "brief"): code for script, code in scripts.items()}
    for job, code in jobs.items():
        shown = cluster.wait_job(job, "TIMEOUT", ExitCode=code)
        assert shown["Reason"] == "TimeLimit"


@pytest.mark.parametrize("partition, state", [("brief", "TIMEOUT"), ("main", "CANCELLED")])
def test_verdict_outlives_the_controller_that_came_to_it(
    make_cluster: Callable[..., Cluster], partition: str, state: str
) -> None:
    """Field report: with a change of leader, the reason for which a job was being ended was forgotten."""
    cluster = make_cluster(config={"partitions": BRIEF, "job": {"kill_wait_secs": 3}})
    job = cluster.sbatch(STUBBORN, "-p", partition)
    leader = cluster.agent.leader_pid(job)
    if state == "CANCELLED":
        cluster.cancel(job)
    wait_for(lambda: cluster.agent.manifest(job)["verdict"], "the node has the verdict", explain=cluster.story)
    cluster.controller.kill()
    cluster.agent.kill()
    assert lives(leader)
    wait_gone(leader)
    cluster.start_controller()
    cluster.agent.start()
    shown = cluster.wait_job(job, state)
    cluster.wait_released()
    assert cluster.job(job)["ExitCode"] == "0:9", shown


def test_node_stays_taken_until_what_timed_out_is_really_gone(make_traced: Callable[..., Traced]) -> None:
    """Field report: the time limit was recorded and the node freed, while the processes went on."""
    cluster, _ = make_traced(nodes={"n1": {"cpus": 1}}, config={"partitions": BRIEF, "job": {"kill_wait_secs": 1.5}})
    job = cluster.sbatch(STUBBORN, "-p", "brief")
    leader = cluster.agent.leader_pid(job)
    later = cluster.sbatch(f"[ -e /proc/{leader} ] && exit 1\nexit 0")
    wait_for(lambda: cluster.agent.manifest(job)["verdict"], "the node has the verdict", explain=cluster.story)
    taken = cluster.nodes()["n1"]["CPUAlloc"]
    assert taken == "1" or not lives(leader)
    cluster.wait_job(later, "COMPLETED")
    cluster.wait_job(job, "TIMEOUT", ExitCode="0:9")


def _memory_is_limited(cluster: Cluster) -> bool:
    """Whether runs here are limited in their memory."""
    job = cluster.sbatch(waiting(cluster), "--mem=60")
    wait_ran(cluster, job)
    place = str(cluster.agent.manifest(job)["cgroup"])
    let_go(cluster)
    cluster.wait_job(job)
    return "memory" in place or Path("/sys/fs/cgroup/cgroup.controllers").exists()


@pytest.mark.parametrize(
    "script", [f'exec python3 -S -c "{EAT}"', f'python3 -S -c "{EAT}"\nexit 0'], ids=["script", "child"]
)
def test_out_of_memory_is_that_and_not_failed(make_cluster: Callable[..., Cluster], script: str) -> None:
    """Field report: a job that the kernel had killed for memory was FAILED, or even COMPLETED, and exited with 0."""
    cluster = make_cluster(config={"agent": {"constrain_memory": True}})
    if not _memory_is_limited(cluster):
        pytest.skip("no memory controller for runs here")
    shown = cluster.wait_job(cluster.sbatch(script, "--mem=60"), "OUT_OF_MEMORY")
    assert (shown["ExitCode"], shown["Reason"]) == ("0:125", "OutOfMemory")


SPREAD = """#!/bin/bash
pids={pids}
say() {{ echo "$1 $(cut -d' ' -f22 /proc/$1/stat)" >> $pids; }}
trap '' TERM
setsid sleep 1000 & say $!
( trap '' TERM HUP INT; cd /; exec env -i setsid sh -c 'trap "" TERM; sleep 1001' < /dev/null > /dev/null 2>&1 ) & say $!
set -m; sleep 1002 & say $!
( setsid sh -c 'sleep 1003 & echo $! > {pids}.deep; exit' & ); while [ ! -s {pids}.deep ]; do sleep 0.02; done
say $(cat {pids}.deep)
trap - TERM
echo done >> $pids
{rest}
"""


@pytest.mark.parametrize(
    "rest, state", [("exec sleep 1004", "CANCELLED"), ("exit 7", "FAILED")], ids=["cancel", "exit"]
)
def test_nothing_of_a_job_is_left_whatever_its_processes_made_of_themselves(
    cluster: Cluster, rest: str, state: str
) -> None:
    """Field report: cancel reached the leader alone; what had detached itself stayed and held the node's GPUs."""
    pids = cluster.work / "pids"
    job = cluster.sbatch(SPREAD.format(pids=pids, rest=rest))
    wait_for(lambda: pids.exists() and "done" in pids.read_text(), "all are there", explain=cluster.story)
    members = [line.split() for line in pids.read_text().splitlines() if line != "done"]
    assert len(members) == 4
    if state == "CANCELLED":
        assert all(_start_ticks(int(pid)) == ticks for pid, ticks in members)
        cluster.cancel(job)
    cluster.wait_released(within_s=15)
    assert not [pid for pid, ticks in members if _start_ticks(int(pid)) == ticks]
    assert cluster.job(job)["JobState"] == state
    wait_idle(cluster)


def _start_ticks(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except FileNotFoundError:
        return ""


def test_end_of_one_job_does_not_touch_another_of_the_same_user(cluster: Cluster) -> None:
    """Field report: an epilog that killed by user id ended the user's other job."""
    user = cluster.as_user()
    ends, stays = (user.sbatch(waiting(cluster)), user.sbatch("setsid sleep 1000 & exec sleep 1001"))
    leader = cluster.agent.leader_pid(stays)
    wait_ran(cluster, ends)
    os.kill(cluster.agent.supervisor_pid(ends), signal.SIGKILL)
    let_go(cluster)
    assert cluster.wait_job(ends, "FAILED")["ExitCode"] == "7:0"
    wait_for(lambda: cluster.agent.runs == [f"{stays}.1"], "the other alone is left", explain=cluster.story)
    assert lives(leader)
    assert cluster.job(stays)["JobState"] == "RUNNING"


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A cgroup of version 1, in whose frozen state not even SIGKILL ends a process."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    tops = [Path(mount[1]) for mount in mounts if mount[2] == "cgroup" and "freezer" in mount[3].split(",")]
    if not tops:
        pytest.skip("no freezer of cgroup version 1 on this machine")
    place = tops[0] / f"spur-unkillable-{os.getpid()}"
    place.mkdir()
    yield place
    (place / "freezer.state").write_text("THAWED")
    wait_for(lambda: not (place / "cgroup.procs").read_text(), "the freezer is empty")
    place.rmdir()


def test_what_does_not_die_drains_its_node_by_name_and_gives_it_back_once_it_has_died(
    make_cluster: Callable[..., Cluster], freezer: Path
) -> None:
    """Field report: "kill task failed", nobody knew of what, and the node stayed drained when it was long over."""
    cluster = make_cluster(nodes={"n1": {"cpus": 1}}, config={"job": {"kill_wait_secs": 0.2, "unkillable_secs": 1}})
    job = cluster.sbatch("exec sleep 1000")
    leader = cluster.agent.leader_pid(job)
    (freezer / "cgroup.procs").write_text(str(leader))
    (freezer / "freezer.state").write_text("FROZEN")
    cluster.cancel(job)
    node = wait_state(cluster, "n1", "DRAIN")
    assert f"job {job}: unkillable: {leader} (" in node["Reason"]
    assert node["CPUAlloc"] == "1"
    assert cluster.job(job)["JobState"] == "COMPLETING"
    cluster.agent.restart(signal.SIGKILL)
    assert f"unkillable: {leader}" in wait_state(cluster, "n1", "DRAIN")["Reason"]
    later = cluster.sbatch("exit 3")
    (freezer / "freezer.state").write_text("THAWED")
    assert cluster.wait_job(later, "FAILED")["ExitCode"] == "3:0"
    assert cluster.job(job)["JobState"] == "CANCELLED"
    wait_idle(cluster)
