"""What a job was given, and nothing else: memory, processors, devices, processes, with whole clusters (R30 to R35)."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.patience import wait_for

EATER = "python3 -c 'x = bytearray(400 << 20)'"
MakeCluster = Callable[..., Cluster]


def limited(make_cluster: MakeCluster, controller: str, **agent: bool) -> Cluster:
    """A cluster whose node limits runs; skipped where nothing here can limit them so."""
    cluster = make_cluster(config={"agent": agent}, nodes={"n1": {"memory_mb": 4000}})
    hierarchies = Path("/proc/self/cgroup").read_text()
    if f":{controller}:" not in hierarchies and controller not in _v2_controllers():
        pytest.skip(f"no {controller} controller on this machine")
    return cluster


def _v2_controllers() -> str:
    try:
        return Path("/sys/fs/cgroup/cgroup.controllers").read_text()
    except OSError:
        return ""


def test_job_that_eats_memory_is_out_of_memory_and_its_neighbour_lives(make_cluster: MakeCluster) -> None:
    cluster = limited(make_cluster, "memory", constrain_memory=True)
    neighbour = cluster.sbatch(f"while [ ! -e {cluster.work}/go ]; do sleep 0.1; done; exit 4", "--mem=100")
    eater = cluster.sbatch(EATER, "--mem=100")
    shown = cluster.wait_job(eater, "OUT_OF_MEMORY")
    assert (shown["ExitCode"], shown["Reason"]) == ("0:125", "OutOfMemory")
    (cluster.work / "go").touch()
    assert cluster.wait_job(neighbour, "FAILED")["ExitCode"] == "4:0"


def test_script_that_goes_on_after_a_kill_for_memory_is_out_of_memory_too(make_cluster: MakeCluster) -> None:
    """On cgroup v2 the whole run is killed; on v1 the script goes on, and its exit 0 does not hide it."""
    cluster = limited(make_cluster, "memory", constrain_memory=True)
    job = cluster.sbatch(f"{EATER}\nexit 0", "--mem=100")
    assert cluster.wait_job(job, "OUT_OF_MEMORY")["ExitCode"] == "0:125"


def test_fork_bomb_stays_inside_and_dies_with_its_job(cluster: Cluster) -> None:
    bomb = f"ulimit -u 400\nb() {{ b | b & }}\ntouch {cluster.work}/up\nb 2>/dev/null\nsleep 1000"
    job = cluster.as_user().sbatch(f"#!/bin/bash\n{bomb}\n", "-o", "/dev/null")
    wait_for((cluster.work / "up").exists, "the bomb", explain=cluster.story)
    cluster.cancel(job)
    cluster.wait_job(job, "CANCELLED")
    cluster.wait_released()
    assert [one for one in cluster.processes() if "spurstepd: " in one.command and "launcher" not in one.command] == []


def test_daemon_that_detached_itself_dies_with_the_run(cluster: Cluster) -> None:
    told = cluster.work / "pid"
    job = cluster.sbatch(
        f"setsid sh -c 'echo $$ > {told}; exec sleep 1000' &\nwhile [ ! -s {told} ]; do sleep 0.05; done"
    )
    cluster.wait_job(job, "COMPLETED")
    cluster.wait_released()
    assert not Path(f"/proc/{told.read_text().strip()}").exists()


def test_suspended_job_does_nothing_and_can_be_resumed_and_cancelled(cluster: Cluster) -> None:
    beat = cluster.work / "beat"
    job = cluster.sbatch(f"while :; do echo >> {beat}; sleep 0.02; done")
    wait_for(beat.exists, "the job", explain=cluster.story)
    cluster.run("scontrol", "suspend", str(job), check=True)
    assert cluster.job(job)["JobState"] == "SUSPENDED"
    size = wait_for(standing_still(beat), "it stands still", pause_s=0.2)
    cluster.run("scontrol", "resume", str(job), check=True)
    assert cluster.job(job)["JobState"] == "RUNNING"
    wait_for(lambda: beat.stat().st_size > size, "it goes on")
    cluster.run("scontrol", "suspend", str(job), check=True)
    cluster.cancel(job)
    cluster.wait_job(job, "CANCELLED")
    cluster.wait_released()


def standing_still(path: Path) -> Callable[[], int | None]:
    """A look that gives the size of `path` once it is the same as at the look before."""
    before = -1

    def look() -> int | None:
        nonlocal before
        size, last = path.stat().st_size, before
        before = size
        return size if size == last else None

    return look


def gpu_cluster(make_cluster: MakeCluster, tmp_path: Path) -> Cluster:
    """A node of four GPUs, for which files stand in."""
    files = []
    for number in range(4):
        file = tmp_path / f"gpu{number}"
        file.touch()
        files.append(str(file))
    return make_cluster(nodes={"n1": {"cpus": 4, "gres": ["gpu:4"], "gpu_files": files}})


def test_claims_survive_the_agent_and_are_not_given_twice_r30(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """Specific CPUs and GPUs: unchanged after kill -9, and a job that wants the same waits."""
    cluster = gpu_cluster(make_cluster, tmp_path)
    holder = cluster.sbatch("echo $CUDA_VISIBLE_DEVICES; exec sleep 1000", "--gres=gpu:3", "-c", "3")
    cluster.agent.leader_pid(holder)
    granted = cluster.agent.manifest(holder)["granted"]
    assert [one["index"] for one in granted["gpus"]] == [0, 1, 2]
    cluster.agent.restart(signal.SIGKILL)
    assert cluster.agent.manifest(holder)["granted"] == granted
    waiting = cluster.sbatch("echo $CUDA_VISIBLE_DEVICES", "--gres=gpu:2")
    fitting = cluster.sbatch("echo $CUDA_VISIBLE_DEVICES", "--gres=gpu:1")
    none = cluster.sbatch('echo "none:$CUDA_VISIBLE_DEVICES"')
    for job in (fitting, none):
        cluster.wait_job(job, "COMPLETED")
    assert (cluster.output(holder), cluster.output(fitting), cluster.output(none)) == ("0,1,2\n", "3\n", "none:\n")
    assert cluster.wait_job(waiting, "PENDING", Reason="Resources")
    cluster.cancel(holder)
    cluster.wait_job(waiting, "COMPLETED")
    assert cluster.output(waiting) == "0,1\n"


def test_gpu_that_vanishes_under_a_job_drains_the_node(make_cluster: MakeCluster, tmp_path: Path) -> None:
    cluster = gpu_cluster(make_cluster, tmp_path)
    job = cluster.sbatch("exec sleep 1000", "--gres=gpu:2")
    cluster.agent.leader_pid(job)
    (tmp_path / "gpu1").unlink()
    node = wait_for(
        lambda: (n := cluster.nodes()["n1"]) and "DRAIN" in n["State"] and n, "a drain", explain=cluster.story
    )
    assert str(tmp_path / "gpu1") in node["Reason"]


def test_two_records_of_one_core_end_with_one_run_alive_r31(make_cluster: MakeCluster) -> None:
    """The record of a second run is made to claim what the first holds: one stays, the other is ended aloud."""
    cluster = make_cluster(nodes={"n1": {"cpus": 2}})
    jobs = [cluster.sbatch("exec sleep 1000", "--no-requeue") for _ in range(2)]
    for job in jobs:
        cluster.agent.leader_pid(job)
    cluster.agent.stop(signal.SIGKILL)
    _claim_the_same(cluster, *jobs)
    cluster.agent.start()
    loser = wait_for(
        lambda: next((j for j in jobs if cluster.job(j)["JobState"] not in ("RUNNING", "COMPLETING")), None),
        "one is ended", explain=cluster.story,
    )  # fmt: skip
    (winner,) = set(jobs) - {loser}
    reason = cluster.job(loser)["Reason"]
    assert f"{winner}.1" in reason and f"{loser}.1" in reason, reason
    assert cluster.job(winner)["JobState"] == "RUNNING"


def _claim_the_same(cluster: Cluster, first: int, second: int) -> None:
    """Supervisors hold their ledgers; the agent reads those of dead ones. So both are replaced under a stopped node."""
    for launcher in cluster.agent.launcher_pids():
        os.kill(launcher, signal.SIGKILL)
    for job in (first, second):
        os.kill(cluster.agent.supervisor_pid(job), signal.SIGKILL)
    path = cluster.agent.run_dir(second) / "manifest.json"
    record = json.loads(path.read_text())
    record["granted"]["cpus"] = cluster.agent.manifest(first)["granted"]["cpus"]
    path.write_text(json.dumps(record))


def test_required_containment_refuses_to_run_without(make_cluster: MakeCluster) -> None:
    """cgroup = "required" on a machine that has what it needs: jobs run. What it lacks is tested with the launcher."""
    cluster = make_cluster(config={"agent": {"cgroup": "required"}})
    job = cluster.sbatch("exit 3")
    shown = cluster.wait_job(job, "FAILED", "PENDING")
    if shown["JobState"] == "FAILED":
        assert shown["ExitCode"] == "3:0"
    else:
        assert "no containment" in cluster.nodes()["n1"]["Reason"]
        cluster.cancel(job)
