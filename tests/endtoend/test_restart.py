"""The agent goes and comes back under running jobs (R01 to R03, R10, R12, R13, R22, R24, R41)."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.patience import wait_for

JOBS = 200


def start_ticks(pid: int) -> str:
    """Field 22 of /proc/PID/stat: with the pid, this process and no other."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def counting(cluster: Cluster) -> str:
    """A script that writes a line every 20 ms until it is let go, then exits 7."""
    return f"#!/bin/bash\nn=0\nwhile [ ! -e {cluster.work}/go ]; do echo $((n++)); sleep 0.02; done\nexit 7\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_job_does_not_notice_a_restart_r03(cluster: Cluster, number: int) -> None:
    """The same processes, the same supervisor, output without a gap or a repeat."""
    job = cluster.sbatch(counting(cluster))
    leader = cluster.agent.leader_pid(job)
    supervisor = cluster.agent.supervisor_pid(job)
    before = [(pid, start_ticks(pid)) for pid in (leader, supervisor)]
    for _ in range(3):
        cluster.agent.restart(number)
    assert [(pid, start_ticks(pid)) for pid in (leader, supervisor)] == before
    assert cluster.agent.supervisor_pid(job) == supervisor
    assert cluster.job(job)["JobState"] == "RUNNING"
    (cluster.work / "go").touch()
    assert cluster.wait_job(job, "FAILED")["ExitCode"] == "7:0"
    lines = [int(line) for line in cluster.output(job).split()]
    assert lines == list(range(len(lines)))


def test_200_running_jobs_are_all_taken_back_after_kill_9() -> None:
    with Cluster(nodes={"n1": {"cpus": JOBS + 8, "memory_mb": 100000}}) as cluster:
        script = f"#!/bin/bash\necho ran >> {cluster.work}/ran.$SLURM_JOB_ID\nwhile [ ! -e {cluster.work}/go ]; do sleep 1; done\nexit 7\n"
        jobs = [cluster.sbatch(script, "-o", "/dev/null") for _ in range(JOBS)]
        for job in jobs:
            wait_for((cluster.work / f"ran.{job}").exists, f"job {job} runs", explain=cluster.story)
        supervisors = {job: cluster.agent.supervisor_pid(job) for job in jobs}
        started = {job: start_ticks(pid) for job, pid in supervisors.items()}
        cluster.agent.restart(signal.SIGKILL)
        running = cluster.run("squeue", "-h", "-t", "R", "-o", "%i", check=True).stdout.split()
        assert sorted(map(int, running)) == jobs
        assert {job: cluster.agent.supervisor_pid(job) for job in jobs} == supervisors
        assert {job: start_ticks(pid) for job, pid in supervisors.items()} == started
        (cluster.work / "go").touch()
        for job in jobs:
            assert cluster.wait_job(job, "FAILED", within_s=90)["ExitCode"] == "7:0"
        cluster.wait_released(within_s=90)
        assert all((cluster.work / f"ran.{job}").read_text() == "ran\n" for job in jobs)


def test_idle_agent_deregisters_at_once_r01(cluster: Cluster) -> None:
    assert cluster.agent.stop(signal.SIGTERM) == 0
    state = cluster.nodes()["n1"]["State"]
    assert state.startswith("DOWN"), state
    cluster.agent.start()
    wait_for(lambda: cluster.nodes()["n1"]["State"] == "IDLE", "the node is back", explain=cluster.story)


def test_busy_agent_leaves_without_deregistering_r02(cluster: Cluster) -> None:
    job = cluster.sbatch("exec sleep 1000")
    cluster.agent.leader_pid(job)
    assert cluster.agent.stop(signal.SIGTERM) == 0
    assert not cluster.nodes()["n1"]["State"].startswith("DOWN")
    assert cluster.job(job)["JobState"] == "RUNNING"
    cluster.agent.start()
    assert cluster.job(job)["JobState"] == "RUNNING"


def test_cancel_after_a_restart_is_cancelled_r24(cluster: Cluster) -> None:
    job = cluster.sbatch("trap 'exit 0' TERM; while :; do sleep 0.1; done")
    cluster.agent.leader_pid(job)
    cluster.agent.restart(signal.SIGKILL)
    cluster.cancel(job)
    shown = cluster.wait_job(job, "CANCELLED")
    assert shown["JobState"] == "CANCELLED"
    cluster.wait_released()


def test_job_that_was_cancelled_while_the_agent_was_away_is_ended_when_it_returns(cluster: Cluster) -> None:
    job = cluster.sbatch("exec sleep 1000")
    leader = cluster.agent.leader_pid(job)
    cluster.agent.stop(signal.SIGKILL)
    cluster.cancel(job)
    assert cluster.job(job)["JobState"] == "COMPLETING"
    assert Path(f"/proc/{leader}").exists()
    cluster.agent.start()
    cluster.wait_job(job, "CANCELLED")
    cluster.wait_released()
    assert not Path(f"/proc/{leader}").exists()


def test_agent_starts_without_its_controller_and_jobs_end_exactly_r21(cluster: Cluster) -> None:
    job = cluster.sbatch(counting(cluster))
    cluster.agent.leader_pid(job)
    cluster.controller.stop(signal.SIGKILL)
    cluster.agent.stop(signal.SIGKILL)
    cluster.agent.start(wait=False)
    cluster.agent.wait_event("listening")
    (cluster.work / "go").touch()
    wait_for(lambda: cluster.agent.manifest(job)["exit"], "the exit is recorded", explain=cluster.story)
    cluster.start_controller()
    assert cluster.wait_job(job, "FAILED")["ExitCode"] == "7:0"


def test_nothing_leaks_over_many_restarts_r41(cluster: Cluster) -> None:
    """Twenty restarts, a job in each: afterwards as many descriptors and processes as before."""
    agent = cluster.agent
    counts = []
    for round in range(20):
        job = cluster.sbatch(f"exit {round}")
        agent.restart(signal.SIGKILL if round % 2 else signal.SIGTERM)
        assert cluster.wait_job(job)["ExitCode"] == f"{round}:0"
        cluster.wait_released()
        counts.append(len(os.listdir(f"/proc/{agent.pid}/fd")))
    wait_for(lambda: len(agent.launcher_pids()) == 1, "old launchers have left", explain=cluster.story)
    assert counts[-1] <= counts[1] + 2
    assert not list((agent.runtime_dir / "runs").iterdir())


def test_deleted_installation_under_a_running_job(tmp_path: Path) -> None:
    """The package files vanish while a job runs: the exit is recorded all the same, and reported by the next agent."""
    import spurstepd
    from tests import cluster as clusters

    copy = tmp_path / "lib"
    shutil.copytree(Path(spurstepd.__file__).parents[1], copy, ignore=_only_packages)
    with Cluster(start=False) as cluster:
        environment = {"PYTHONPATH": str(copy)}
        cluster.start_controller()
        cluster.agent.start(env=environment)
        job = cluster.sbatch(counting(cluster))
        cluster.agent.leader_pid(job)
        shutil.rmtree(copy)
        cluster.agent.stop(signal.SIGKILL)
        (cluster.work / "go").touch()
        wait_for(lambda: cluster.agent.manifest(job)["exit"], "the exit is recorded", explain=cluster.story)
        cluster.agent.start()
        assert cluster.wait_job(job, "FAILED")["ExitCode"] == "7:0"
    assert clusters.BIN.exists()


def _only_packages(directory: str, names: list[str]) -> set[str]:
    top = Path(directory).joinpath("spurstepd").is_dir()
    packages = {"spur", "spurd", "spurctld", "spurstepd"}
    return {name for name in names if name == "__pycache__" or (top and name not in packages)}
