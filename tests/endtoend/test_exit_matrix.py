"""Every way in which a script can end, times everything that can be away meanwhile: one exact exit (R22, R23).

The script of each row is as a user wrote it. That it waits for the signal to end is the business of its interpreter:
bash reads BASH_ENV before the script.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.cluster import Cluster, Job
from tests.patience import wait_for


@dataclass(frozen=True)
class Ending:
    script: str
    exit_code: str
    state: str
    reason: str


def fails(script: str, exit_code: str) -> Ending:
    return Ending(script, exit_code, "FAILED", "NonZeroExitCode")


def raises(number: int, name: str, script: str | None = None) -> Ending:
    return Ending(script or f"kill -{number} $$", f"0:{number}", "FAILED", f"RaisedSignal:{number}({name})")


ENDINGS = {
    "exit-0": Ending("exit 0", "0:0", "COMPLETED", "None"),
    "exit-1": fails("exit 1", "1:0"),
    "exit-7": fails("exit 7", "7:0"),
    "exit-255": fails("exit 255", "255:0"),
    "signal-1": raises(1, "Hangup"),
    "signal-6": raises(6, "Aborted"),
    "signal-9": raises(9, "Killed"),
    "signal-11": raises(11, "Segmentation_fault"),
    "signal-15": raises(15, "Terminated"),
    "core-dump": raises(11, "Segmentation_fault", "ulimit -c unlimited; kill -SEGV $$"),
    "kill-9-itself": raises(9, "Killed", "sleep 0 & kill -9 $$"),
    "exit-trap": fails("trap 'exit 3' EXIT; false; exit 0", "3:0"),
    "trailing-exec": fails("exec /bin/sh -c 'exit 9'", "9:0"),
    "syntax-error": fails("if then", "2:0"),
    "survived-term": fails("trap 'echo survived' TERM; kill -TERM $$; exit 5", "5:0"),
}


def nothing(cluster: Cluster, end: Callable[[], None]) -> None:
    end()


def sigterm_restart(cluster: Cluster, end: Callable[[], None]) -> None:
    assert cluster.agent.stop(signal.SIGTERM) == 0
    cluster.agent.start()
    end()


def kill_9_restart(cluster: Cluster, end: Callable[[], None]) -> None:
    cluster.agent.stop(signal.SIGKILL)
    cluster.agent.start()
    end()


def end_while_agent_is_away(cluster: Cluster, end: Callable[[], None]) -> None:
    cluster.agent.stop(signal.SIGKILL)
    end()
    wait_recorded(cluster)
    cluster.agent.start()


def end_while_controller_is_away(cluster: Cluster, end: Callable[[], None]) -> None:
    cluster.controller.stop(signal.SIGKILL)
    end()
    wait_recorded(cluster)
    cluster.start_controller()


def wait_recorded(cluster: Cluster) -> None:
    agent = cluster.agent
    wait_for(
        lambda: all(agent.manifest(int(run.partition(".")[0]))["exit"] is not None for run in agent.runs),
        "all exits are recorded",
        explain=cluster.story,
    )


ABSENCES = (nothing, sigterm_restart, kill_9_restart, end_while_agent_is_away, end_while_controller_is_away)


@pytest.fixture(scope="module", params=ABSENCES, ids=lambda one: one.__name__)
def jobs(request: pytest.FixtureRequest) -> Iterator[dict[str, Job]]:
    """All endings in one cluster, under one absence; what scontrol shows of each job afterwards."""
    with Cluster(nodes={"n1": {"cpus": 64}}) as cluster:
        go, waiting = cluster.work / "go", cluster.work / "wait.sh"
        waiting.write_text(f"echo $$ >> {cluster.work}/up.$SLURM_JOB_ID; while [ ! -e {go} ]; do sleep 0.05; done\n")
        ids = {
            name: cluster.sbatch(f"#!/bin/bash\n{ending.script}\n", env={"BASH_ENV": str(waiting)})
            for name, ending in ENDINGS.items()
        }
        wait_for(
            lambda: all((cluster.work / f"up.{job}").exists() for job in ids.values()),
            "all scripts wait",
            explain=cluster.story,
        )
        request.param(cluster, go.touch)
        ended = {name: cluster.wait_job(job) for name, job in ids.items()}
        cluster.wait_released()
        yield ended


@pytest.mark.parametrize("name", ENDINGS)
def test_exit_is_exact(jobs: dict[str, Job], name: str) -> None:
    shown, expected = jobs[name], ENDINGS[name]
    found = Ending(expected.script, shown["ExitCode"], shown["JobState"], shown["Reason"])
    assert found == expected
