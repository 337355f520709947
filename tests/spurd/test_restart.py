"""The agent goes and comes back under runs: R03, R09, R22, R24, R34."""

from __future__ import annotations

import signal

import pytest

from spur.pb import common_pb2
from tests.patience import wait_for
from tests.spurd.conftest import Stand
from tests.spurd.registry import Phase

WAIT = "while [ ! -e go ]; do sleep 0.02; done"
BOTH = pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])


@BOTH
def test_a_run_does_not_notice_a_restart(stand: Stand, how: signal.Signals) -> None:
    """R03: the same processes, the same supervisor, output without a gap or a repeat."""
    stand.launch(30, f"echo begun; {WAIT}; echo done; exit 7")
    stand.wait_running(30)
    before = stand.agent.leader_pid(30), stand.agent.supervisor_pid(30)
    granted = stand.agent.manifest(30)["granted"]
    stand.agent.restart(how)
    assert (stand.agent.leader_pid(30), stand.agent.supervisor_pid(30)) == before
    assert [(one.run.job_id, one.phase) for one in stand.registry.registrations[-1].runs] == [(30, "running")]
    assert stand.agent.manifest(30)["granted"] == granted
    (stand.root / "work" / "go").touch()
    assert stand.ended(30).wait_status == 7 << 8
    stand.wait_released(30)
    assert stand.output(30) == "begun\ndone\n"


@BOTH
@pytest.mark.parametrize(("script", "status"), [("exit 7", 7 << 8), ("kill -9 $$", 9), ("kill -TERM $$", 15)])
def test_the_exit_is_exact_where_the_run_ended_without_an_agent(
    stand: Stand, how: signal.Signals, script: str, status: int
) -> None:
    """R22"""
    stand.launch(31, f"{WAIT}; {script}")
    stand.wait_running(31)
    stand.agent.stop(how)
    (stand.root / "work" / "go").touch()
    wait_for(lambda: stand.agent.manifest(31)["exit"], "the exit is recorded")
    stand.agent.start()
    ended = stand.ended(31)
    assert (ended.wait_status, ended.source) == (status, common_pb2.WAITID)
    stand.wait_released(31)


@BOTH
def test_a_cancel_after_a_restart_is_a_cancel(stand: Stand, how: signal.Signals) -> None:
    """R24"""
    stand.launch(32, "trap 'exit 0' TERM; " + WAIT)
    stand.wait_running(32)
    stand.agent.restart(how)
    stand.terminate(32)
    status = stand.registry.wait_report(32, Phase.FINISHED).status
    assert status.verdict.kind == common_pb2.VERDICT_CANCELLED
    stand.wait_released(32)


def test_claims_are_in_place_before_anything_is_granted(stand: Stand) -> None:
    """R33"""
    first = list(stand.launch(33, WAIT, cpus=3).grant.cpus)
    stand.wait_running(33)
    stand.agent.restart(signal.SIGKILL)
    second = list(stand.launch(34, WAIT, cpus=5).grant.cpus)
    assert sorted(first + second) == list(range(8))


def test_a_run_that_waits_for_its_start_holds_its_claim(stand: Stand) -> None:
    """R34"""
    first = list(stand.launch(35, WAIT, cpus=6, may_start=False).grant.cpus)
    stand.registry.wait_report(35, Phase.READY)
    stand.agent.restart(signal.SIGKILL)
    second = list(stand.launch(36, WAIT, cpus=2).grant.cpus)
    assert sorted(first + second) == list(range(8))


def test_many_runs_are_taken_back_at_once(stand: Stand) -> None:
    jobs = range(100, 140)
    for job in jobs:
        stand.launch(job, "sleep 1000", cpus=0)
    for job in jobs:
        stand.wait_running(job)
    supervisors = {job: stand.agent.supervisor_pid(job) for job in jobs}
    stand.agent.restart(signal.SIGKILL)
    for job in jobs:
        stand.agent.wait_event("supervisor_connected", job=job)
    assert {job: stand.agent.supervisor_pid(job) for job in jobs} == supervisors
    assert not stand.agent.events("supervisor_started")
    for job in jobs:
        stand.terminate(job)
    for job in jobs:
        stand.wait_released(job)
