"""Kill -9 of everybody, and of everybody together, at every point of a run's life (R09, R14, R15, R17, R18, R50).

Afterwards: the exit is exact, or unknown where nobody who saw it is left; the epilog ran once, or its interruption is
recorded and the node drained; nothing remains, neither process, cgroup, socket, directory nor claim.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster import Cluster, Job
from tests.patience import wait_for

POINTS = {
    "accepted": "launch-accepted",
    "claimed": "launch-claimed",
    "forked": "supervisor-forked",
    "locked": "locked",
    "prolog-started": "prolog-started",
    "ready": "prolog-done",
    "started": "task-recorded",
    "executed": "task-executed",
    "exited": "task-exited",
    "exit-recorded": "exit-recorded",
    "leftovers-killed": "leftovers-killed",
    "epilog-started": "epilog-started",
    "epilog-done": "epilog-done",
    "report-sent": "report-answered",
    "answered": "report-acknowledged",
    "released": "released",
}
VICTIMS = (
    ("supervisor",),
    ("launcher",),
    ("spurd",),
    ("spurctld",),
    ("supervisor", "launcher"),
    ("spurd", "supervisor"),
    ("supervisor", "launcher", "spurd", "spurctld"),
)
AFTER_THE_TASK = ("exited", "exit-recorded", "leftovers-killed", "epilog-started", "epilog-done", "report-sent",
                  "answered", "released")  # fmt: skip


@dataclass
class Trial:
    """The cluster of one set of victims, and where its hooks leave their traces."""

    cluster: Cluster
    victims: tuple[str, ...]

    def ran(self, hook: str, job: int) -> int:
        """How often the hook was started for the job."""
        trace = self.cluster.work / f"{hook}.{job}"
        return len(trace.read_text().splitlines()) if trace.exists() else 0

    def pids(self, victim: str, job: int) -> list[int]:
        """The processes that are meant; none where it does not live at this point."""
        match victim:
            case "spurd":
                return [self.cluster.agent.pid]
            case "spurctld":
                return [self.cluster.controller.pid]
            case "launcher":
                return self.titled("spurstepd: launcher")
        found = self.titled(f"spurstepd: {job}.1")
        return [pid for pid in found if parent(pid) not in found]  # a child that has not executed yet is the job's

    def titled(self, title: str) -> list[int]:
        found = []
        for process in self.cluster.processes():
            try:
                line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            except OSError:
                continue
            if line.rstrip(b"\0").decode(errors="replace") == title:
                found.append(process.pid)
        return found

    def kill(self, job: int) -> None:
        """All at once, as far as that goes: stopped first, so that none acts on the death of another."""
        pids = [pid for victim in self.victims for pid in self.pids(victim, job)]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, number)

    def bring_back(self) -> None:
        if "spurctld" in self.victims:
            self.cluster.controller.wait()
            self.cluster.start_controller()
        if "spurd" in self.victims:
            self.cluster.agent.wait()
            self.cluster.agent.start()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def write_hook(directory: Path, name: str) -> str:
    program = directory / name
    program.write_text(f"#!/bin/sh\necho ran >> {directory}/work/{name}.$SLURM_JOB_ID\n")
    program.chmod(0o755)
    return str(program)


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, id="+".join(one), marks=pytest.mark.xdist_group("+".join(one))) for one in VICTIMS],
)
def trial(request: pytest.FixtureRequest) -> Iterator[Trial]:
    root = Path(f"/tmp/spur-m{os.getpid()}-{VICTIMS.index(request.param)}")
    hooks = {"prolog": str(root / "prolog"), "epilog": str(root / "epilog")}
    cluster = Cluster(root, config={"hooks": hooks})
    for name in hooks:
        write_hook(root, name)
    with cluster:
        yield Trial(cluster, request.param)


@pytest.mark.parametrize("point", POINTS)
def test_kill_9_at(trial: Trial, point: str) -> None:
    cluster, name = trial.cluster, POINTS[point]
    go = cluster.work / f"go.{point}"
    cluster.faults.order(name, "wait")
    if point in AFTER_THE_TASK:
        go.touch()
    job = cluster.sbatch(
        f"echo line >> {cluster.work}/lines.$SLURM_JOB_ID\nwhile [ ! -e {go} ]; do sleep 0.05; done\nexit 7\n"
    )
    cluster.faults.reached(name)
    trial.kill(job)
    cluster.faults.let_go(name)
    trial.bring_back()
    go.touch()
    try:
        check(trial, point, job)
    finally:
        cluster.faults.withdraw(name)
        if "DRAIN" in cluster.nodes()["n1"]["State"]:
            cluster.run("scontrol", "update", "nodename=n1", "state=resume", check=True)
    check_nothing_left(trial, job)


def check(trial: Trial, point: str, job: int) -> None:
    cluster, died = trial.cluster, "supervisor" in trial.victims
    if point == "prolog-started" and died:
        held = cluster.wait_job(job, "PENDING")
        assert held["Reason"] in ("launch_failed_requeued_held", "JobHeldAdmin"), held
        check_drained(cluster, "prolog was interrupted")
        assert not (cluster.work / f"lines.{job}").exists()
        cluster.wait_released()
        assert (trial.ran("prolog", job) <= 1, trial.ran("epilog", job)) == (True, 1)
        cluster.cancel(job)
        return
    ended = cluster.wait_job(job)
    cluster.wait_released()
    check_exit(trial, point, ended)
    assert (cluster.work / f"lines.{job}").read_text() == "line\n"
    assert trial.ran("prolog", job) == 1
    if point == "epilog-started" and died:
        assert trial.ran("epilog", job) <= 1
        check_drained(cluster, "epilog was interrupted")
    else:
        assert trial.ran("epilog", job) == 1


def check_exit(trial: Trial, point: str, ended: Job) -> None:
    nobody_left = point == "exited" and {"supervisor", "launcher", "spurd"} <= set(trial.victims)
    if nobody_left and ended["JobState"] == "NODE_FAIL":
        return  # the one case of the table: who saw it is dead, and no pidfd was kept anywhere
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "7:0"), ended


def check_drained(cluster: Cluster, why: str) -> None:
    node = wait_for(
        lambda: (n := cluster.nodes()["n1"]) and "DRAIN" in n["State"] and n, "a drain", explain=cluster.story
    )
    assert why in node["Reason"]


def check_nothing_left(trial: Trial, job: int) -> None:
    cluster = trial.cluster
    assert not trial.titled(f"spurstepd: {job}.1")
    assert not list((cluster.agent.runtime_dir / "runs").iterdir())
    node = wait_for(
        lambda: (n := cluster.nodes()["n1"]) and n["State"] == "IDLE" and n, "an idle node", explain=cluster.story
    )
    assert node["CPUAlloc"] == "0"
