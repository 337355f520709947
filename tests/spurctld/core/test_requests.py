"""Cancel, signal, suspend, requeue, hold: what they do, whose jobs they touch, and Slurm's words where they do not."""

from __future__ import annotations

import pytest

from spurctld.core import events as e
from spurctld.core.instructions import SignalRun, SuspendRun
from spurctld.core.states import JobState, Phase, RefusalKind, SignalScope
from spurctld.core.values import Done, NodeSpec, Refusal, RunKey
from tests.spurctld.core.driver import Driver, state_of


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.register()
    return driver


def ask(driver: Driver, kind: type[e.Event], job: int, by_uid: int = 0, **facts: object) -> object:
    driver.apply(kind, job=job, by_uid=by_uid, **facts)
    reply = driver.reply()
    return reply.text if isinstance(reply, Refusal) else reply


# Cancel


def test_a_pending_job_is_cancelled_at_once(driver: Driver) -> None:
    number = driver.submit()
    assert driver.cancel(number, 1000) is None
    job = driver.job(number)
    assert (job.state, job.completing, job.exit_raw) == (JobState.CANCELLED, False, 0)
    assert job.elapsed_s(driver.at) == 0


def test_a_running_job_is_cancelled_and_completing(driver: Driver) -> None:
    number, key = driver.run()
    driver.cancel(number, 1000)
    job = driver.job(number)
    assert (job.state, job.completing) == (JobState.CANCELLED, True)
    assert driver.terminations() == [(key, "cancelled")]
    assert job.runs[1].verdict.by_uid == 1000  # type: ignore[union-attr]


def test_a_cancel_reaches_every_node_that_may_have_been_sent_the_launch() -> None:
    """Field reports 10, 42."""
    driver = Driver([NodeSpec("n1", 4, 100), NodeSpec("n2", 4, 100)])
    driver.register("n1")
    driver.register("n2")
    number = driver.start(nodes=2, tasks=2)
    driver.apply(e.LaunchTaken, run=driver.key(number), node="n1")
    driver.cancel(number)
    assert [run for run, _ in driver.terminations()] == [RunKey(number, 1)] * 2


def test_only_the_owner_and_root_touch_a_job(driver: Driver) -> None:
    """Field report 67."""
    number, _ = driver.run()
    refusal = driver.cancel(number, 1001)
    assert refusal is not None
    assert (refusal.kind, refusal.text) == (RefusalKind.DENIED, "Access/permission denied")
    for kind in (e.RequeueAsked, e.HoldAsked, e.SuspendAsked):
        assert ask(driver, kind, number, 1001) == "Access/permission denied"
    assert driver.job(number).state is JobState.RUNNING


def test_what_cannot_be_cancelled(driver: Driver) -> None:
    assert driver.cancel(99).text == "Invalid job id specified"  # type: ignore[union-attr]
    number, _ = driver.run()
    driver.cancel(number)
    assert driver.cancel(number).text == "Job/step already completing or completed"  # type: ignore[union-attr]


@pytest.mark.parametrize("scope", [SignalScope.STEPS, SignalScope.FULL])
def test_kill_is_a_cancel(driver: Driver, scope: SignalScope) -> None:
    number, _ = driver.run()
    driver.cancel(number, signal=9, scope=scope)
    assert driver.job(number).state is JobState.CANCELLED


def test_kill_of_the_batch_shell_alone_is_a_signal(driver: Driver) -> None:
    number, key = driver.run()
    driver.cancel(number, signal=9, scope=SignalScope.BATCH)
    assert driver.of(SignalRun) == [SignalRun(key, "n1", 9, SignalScope.BATCH, 0)]
    assert driver.job(number).state is JobState.RUNNING


def test_a_pending_job_takes_no_signal(driver: Driver) -> None:
    number = driver.submit()
    assert driver.cancel(number, signal=10).text == "Job can not be altered now, try again later"  # type: ignore[union-attr]


# Suspend


def test_suspended_time_does_not_count(driver: Driver) -> None:
    number, key = driver.run(time_limit_s=100)
    driver.wait(60)
    assert ask(driver, e.SuspendAsked, number) == Done()
    assert driver.of(SuspendRun) == [SuspendRun(key, "n1", resume=False)]
    for _ in range(5):
        driver.beat(runs=[state_of(key, suspended=True)])
        driver.wait(80)
    assert driver.job(number).state is JobState.SUSPENDED
    assert driver.job(number).elapsed_s(driver.at) == 60
    driver.beat(runs=[state_of(key, suspended=True)])
    assert ask(driver, e.SuspendAsked, number, resume=True) == Done()
    driver.wait(39)
    assert driver.job(number).state is JobState.RUNNING
    driver.wait(2)
    assert driver.job(number).state is JobState.TIMEOUT


def test_what_cannot_be_suspended(driver: Driver) -> None:
    pending = driver.submit(hold=True)
    running, key = driver.run()
    assert ask(driver, e.SuspendAsked, pending) == "Job is pending execution"
    assert ask(driver, e.SuspendAsked, running, resume=True) == "Job is not suspended"
    assert ask(driver, e.SuspendAsked, running, 1000) == "Access/permission denied"
    driver.finish(key)
    assert ask(driver, e.SuspendAsked, running) == "Job/step already completing or completed"
    assert ask(driver, e.SuspendAsked, 99) == "Invalid job id specified"


def test_a_suspended_job_can_be_cancelled(driver: Driver) -> None:
    number, key = driver.run()
    ask(driver, e.SuspendAsked, number)
    driver.cancel(number)
    assert driver.terminations() == [(key, "cancelled")]


# Requeue


def test_a_running_job_is_requeued_under_its_number(driver: Driver) -> None:
    """Field report 80."""
    number, key = driver.run()
    assert ask(driver, e.RequeueAsked, number, 1000) == Done()
    job = driver.job(number)
    assert (job.state, job.completing, job.restarts) == (JobState.PENDING, True, 1)
    driver.finish(key, 15)
    assert job.state is JobState.PENDING
    assert job.exit_raw == 0
    driver.schedule()
    assert driver.key(number) == RunKey(number, 2)


def test_a_job_that_has_ended_is_requeued(driver: Driver) -> None:
    number, key = driver.run()
    driver.finish(key, 1 << 8)
    assert ask(driver, e.RequeueAsked, number) == Done()
    driver.schedule()
    assert (driver.job(number).state, driver.job(number).attempt) == (JobState.RUNNING, 2)


def test_requeue_and_hold(driver: Driver) -> None:
    number, key = driver.run()
    ask(driver, e.RequeueAsked, number, 0, hold=True)
    driver.finish(key, 15)
    driver.schedule()
    job = driver.job(number)
    assert (job.state, job.state_desc, job.held) == (
        JobState.PENDING,
        "job requeued in held state",
        "JobHeldAdmin",
    )


def test_what_cannot_be_requeued(driver: Driver) -> None:
    pending = driver.submit(hold=True)
    stubborn, _ = driver.run(requeue=False)
    assert ask(driver, e.RequeueAsked, pending) == "Job is pending execution"
    assert ask(driver, e.RequeueAsked, stubborn) == "Requested operation is presently disabled"
    assert ask(driver, e.RequeueAsked, 99) == "Invalid job id specified"


def test_a_requeued_job_that_still_completes_can_be_cancelled(driver: Driver) -> None:
    number, key = driver.run()
    ask(driver, e.RequeueAsked, number)
    assert driver.cancel(number) is None
    assert driver.job(number).state is JobState.CANCELLED
    driver.finish(key, 15)
    assert not driver.node().runs


# Hold


def test_a_held_job_does_not_start_until_it_is_released(driver: Driver) -> None:
    number = driver.submit()
    assert ask(driver, e.HoldAsked, number, 1000) == Done()
    driver.schedule()
    assert (driver.job(number).state, driver.job(number).held) == (JobState.PENDING, "JobHeldUser")
    assert ask(driver, e.HoldAsked, number, 1000, release=True) == Done()
    driver.schedule()
    assert driver.job(number).state is JobState.RUNNING


def test_what_root_holds_only_root_releases(driver: Driver) -> None:
    number = driver.submit()
    ask(driver, e.HoldAsked, number, 0)
    assert driver.job(number).held == "JobHeldAdmin"
    assert ask(driver, e.HoldAsked, number, 1000, release=True) == "Access/permission denied"


def test_an_ended_job_cannot_be_held(driver: Driver) -> None:
    number, key = driver.run()
    driver.finish(key)
    assert ask(driver, e.HoldAsked, number) == "Job has already finished"
    assert driver.job(number).runs[1].batch.phase is Phase.RELEASED
