"""The harness with a whole cluster: the least that everything else stands on."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.cluster import USER, Cluster


def test_a_job_runs_as_its_user_and_leaves_its_exit(cluster: Cluster) -> None:
    job = cluster.as_user(USER).sbatch("id -u; exit 7")
    ended = cluster.wait_job(job, "FAILED")
    assert ended["ExitCode"] == "7:0"
    assert cluster.output(job) == f"{USER}\n"
    cluster.wait_released()


def test_two_nodes_run_side_by_side(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(nodes=("n1", "n2"))
    jobs = [cluster.sbatch("exec sleep 60", "-w", name) for name in ("n1", "n2")]
    assert [cluster.wait_job(job, "RUNNING")["NodeList"] for job in jobs] == ["n1", "n2"]
    cluster.cancel(*jobs)
    for job in jobs:
        cluster.wait_job(job, "CANCELLED")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_daemons_stop_and_start_at_their_addresses(cluster: Cluster, number: int) -> None:
    job = cluster.sbatch("exec sleep 60")
    cluster.wait_job(job, "RUNNING")
    supervisor = cluster.agent.supervisor_pid(job)
    cluster.agent.restart(number)
    cluster.controller.stop(number)
    cluster.start_controller()
    cluster.agent.wait_event("registered")
    assert cluster.job(job)["JobState"] == "RUNNING"
    assert cluster.agent.supervisor_pid(job) == supervisor
