"""What nodes report of runs: once in effect, for the right attempt only, and never against what was decided."""

from __future__ import annotations

import pytest

from spurctld.core.states import Answer, ExitSource, JobState, Phase, VerdictKind
from spurctld.core.values import Exit, RunKey, Verdict
from tests.spurctld.core.driver import Driver, state_of


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.register()
    return driver


def test_a_job_runs_ends_and_is_released(driver: Driver) -> None:
    number, key = driver.run()
    job = driver.job(number)
    assert driver.end(key, 7 << 8) is Answer.RECORDED
    assert (job.state, job.exit_raw, job.completing) == (JobState.FAILED, 7 << 8, True)
    assert driver.node().cpus_allocated == 1
    assert driver.report(key, Phase.FINISHED) is Answer.RECORDED
    assert driver.node().cpus_allocated == 1
    assert driver.report(key, Phase.RELEASED) is Answer.RECORDED
    assert driver.node().cpus_allocated == 0
    assert not job.completing


def test_a_report_counts_once_however_often_it_comes(driver: Driver) -> None:
    """R14."""
    number, key = driver.run()
    assert driver.end(key, 0) is Answer.RECORDED
    assert driver.end(key, 9) is Answer.ALREADY_RECORDED
    assert driver.job(number).state is JobState.COMPLETED
    driver.report(key, Phase.FINISHED)
    assert driver.report(key, Phase.FINISHED) is Answer.ALREADY_RECORDED
    driver.report(key, Phase.RELEASED)
    assert driver.report(key, Phase.FINISHED) is Answer.ALREADY_RECORDED


def test_only_the_owed_report_may_come(driver: Driver) -> None:
    """FINISHED says it all where ENDED was superseded, or the controller was away."""
    number = driver.start()
    key = driver.key(number)
    exit = Exit(ExitSource.WAITID, 3 << 8, 5.0)
    assert driver.report(key, Phase.FINISHED, exit=exit) is Answer.RECORDED
    assert driver.job(number).exit_raw == 3 << 8
    assert driver.job(number).completing


def test_an_exit_recorded_never_changes(driver: Driver) -> None:
    number, key = driver.run()
    driver.end(key, 0)
    driver.report(key, Phase.FINISHED, exit=Exit(ExitSource.WITNESS, 9))
    assert driver.job(number).runs[1].exit.status == 0  # type: ignore[union-attr]


def test_a_job_that_ended_while_the_controller_was_away_ended_then(driver: Driver) -> None:
    number, key = driver.run()
    began = driver.at
    driver.restart(away_s=500)
    driver.report(key, Phase.FINISHED, exit=Exit(ExitSource.WAITID, 0, began + 60))
    driver.report(key, Phase.RELEASED)
    job = driver.job(number)
    assert (job.ended_at, job.elapsed_s(driver.at)) == (began + 60, 60)
    driver.wait(299)
    assert number in driver.cluster.jobs, "it is kept from when we came to know"
    driver.wait(2)
    assert number not in driver.cluster.jobs


@pytest.mark.parametrize(("clock", "shown"), [(-1000.0, 0.0), (1000.0, 30.0)])
def test_a_nodes_clock_that_is_off_does_not_turn_time_round(driver: Driver, clock: float, shown: float) -> None:
    number, key = driver.run()
    driver.wait(30)
    driver.report(key, Phase.ENDED, exit=Exit(ExitSource.WAITID, 0, driver.at + clock))
    assert driver.job(number).elapsed_s(driver.at) == shown


def test_an_older_attempt_is_stale_and_touches_nothing(driver: Driver) -> None:
    """Field reports 30, 31."""
    number = driver.start()
    driver.refuse(driver.key(number))
    driver.wait(2)
    driver.schedule()
    assert driver.end(RunKey(number, 1), 9) is Answer.STALE_ATTEMPT
    assert driver.job(number).state is JobState.RUNNING
    assert driver.report(RunKey(number, 3), Phase.ENDED) is Answer.UNKNOWN_JOB


def test_a_job_that_is_not_known(driver: Driver) -> None:
    assert driver.report(RunKey(77, 1), Phase.FINISHED) is Answer.UNKNOWN_JOB


def test_a_node_that_the_run_is_not_on_is_not_believed(driver: Driver) -> None:
    number, key = driver.run()
    assert driver.end(key, 9, node="n9") is Answer.STALE_ATTEMPT
    assert driver.job(number).state is JobState.RUNNING


def test_a_late_exit_fills_in_the_code_of_a_cancelled_job(driver: Driver) -> None:
    """R24; the verdict is durable before the signal leaves."""
    number, key = driver.run()
    driver.cancel(number)
    assert driver.job(number).state is JobState.CANCELLED
    driver.end(key, 0)
    assert (driver.job(number).state, driver.job(number).exit_raw) == (JobState.CANCELLED, 0)
    number, key = driver.run()
    driver.cancel(number)
    driver.end(key, 15)
    assert (driver.job(number).state, driver.job(number).exit_raw) == (JobState.CANCELLED, 15)


def test_the_supervisors_own_time_limit_counts(driver: Driver) -> None:
    number, key = driver.run(time_limit_s=60)
    driver.end(key, 15, verdict=Verdict(VerdictKind.TIMEOUT, 0, 1.0, "limit"))
    assert (driver.job(number).state, driver.job(number).reason) == (JobState.TIMEOUT, "TimeLimit")
    assert driver.job(number).exit_raw == 15


def test_a_failed_prolog_drains_the_node_and_holds_the_job(driver: Driver) -> None:
    """Field report 34, 9: requeued under the same number, held; attempt 2 when released."""
    number = driver.start()
    key = driver.key(number)
    driver.end(
        key, None, source=ExitSource.NEVER_STARTED, detail="prolog", requeue_held=True, drain_reason="prolog of 1.1: 3"
    )
    job = driver.job(number)
    assert (job.state, job.state_desc, job.completing) == (JobState.PENDING, "launch failed requeued held", True)
    assert driver.node().draining
    assert list(driver.node().hook_drains) == ["prolog of 1.1: 3"]
    driver.report(key, Phase.RELEASED)
    from spurctld.core import events as e

    driver.apply(e.HoldAsked, job=number, by_uid=1000, release=True)
    driver.beat()
    driver.schedule()
    assert job.state is JobState.PENDING, "the node is drained still"
    from spurctld.core.states import NodeOrder

    driver.apply(e.NodesOrdered, nodes=("n1",), order=NodeOrder.RESUME, reason="", by_uid=0)
    driver.schedule()
    assert driver.key(number) == RunKey(number, 2)


def test_a_failed_epilog_drains_and_leaves_the_result(driver: Driver) -> None:
    """R16: the drain is durable with the answer, and stays until an operator lifts it."""
    number, key = driver.run()
    driver.end(key, 0)
    driver.report(key, Phase.FINISHED, drain_reason="epilog of 1.1 failed")
    assert driver.job(number).state is JobState.COMPLETED
    driver.beat(runs=[state_of(key, "finished")])
    driver.restart()
    assert driver.node().draining


def test_a_drain_is_noted_even_where_the_report_is_stale(driver: Driver) -> None:
    driver.report(RunKey(77, 1), Phase.FINISHED, drain_reason="epilog of 77.1 failed")
    assert driver.node().draining


def test_an_unknown_exit_runs_again_only_where_the_user_said_so(driver: Driver) -> None:
    silent, key = driver.run()
    driver.finish(key, None, source=ExitSource.UNKNOWN, detail="all witnesses died")
    job = driver.job(silent)
    assert (job.state, job.exit_raw, job.state_desc) == (JobState.NODE_FAIL, 1, "all witnesses died")
    wished, key = driver.run(requeue=True)
    driver.end(key, None, source=ExitSource.UNKNOWN)
    assert (driver.job(wished).state, driver.job(wished).restarts) == (JobState.PENDING, 1)


def test_a_requeued_job_waits_until_its_run_is_gone(driver: Driver) -> None:
    """Field report 32: the epilog ends before the next prolog."""
    number, key = driver.run(requeue=True)
    driver.end(key, None, source=ExitSource.UNKNOWN)
    driver.schedule()
    assert driver.job(number).state is JobState.PENDING
    driver.report(key, Phase.FINISHED)
    driver.schedule()
    assert driver.job(number).state is JobState.PENDING
    driver.report(key, Phase.RELEASED)
    driver.schedule()
    assert driver.key(number) == RunKey(number, 2)


def test_an_end_without_an_exit_is_unknown(driver: Driver) -> None:
    number, key = driver.run()
    driver.report(key, Phase.FINISHED)
    assert driver.job(number).state is JobState.NODE_FAIL


def test_a_job_that_never_started_says_why(driver: Driver) -> None:
    number = driver.start()
    driver.end(driver.key(number), None, source=ExitSource.NEVER_STARTED, detail="chdir /gone: No such file")
    job = driver.job(number)
    assert (job.state, job.reason, job.state_desc) == (JobState.FAILED, "JobLaunchFailure", "chdir /gone: No such file")
