"""What a node has against what is booked on it, at each registration and heartbeat."""

from __future__ import annotations

import pytest

from spurctld.core import events as e
from spurctld.core.instructions import SuspendRun, TerminateRun
from spurctld.core.states import JobState, Phase
from spurctld.core.values import Gres, NodeSpec, RunKey
from tests.spurctld.core.driver import Driver, grant, state_of


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.register()
    return driver


def test_an_unanswered_launch_is_sent_again(driver: Driver) -> None:
    number = driver.start()
    driver.beat()
    assert driver.launches() == [driver.key(number)]
    driver.register()
    assert driver.launches() == [driver.key(number)]


def test_a_launch_whose_answer_was_lost_is_found_in_the_list(driver: Driver) -> None:
    number = driver.start()
    driver.beat(runs=[state_of(driver.key(number), "accepted")])
    assert driver.job(number).runs[1].batch.phase is Phase.ACCEPTED
    assert not driver.launches()


def test_one_list_without_a_run_proves_nothing(driver: Driver) -> None:
    """It may have been made before the launch arrived."""
    number, _ = driver.run()
    driver.beat()
    assert driver.job(number).state is JobState.RUNNING


def test_a_run_that_its_node_lost_ends_after_one_grace_period(driver: Driver) -> None:
    """Field report 1: never silently RUNNING."""
    number, key = driver.run(requeue=False)
    driver.beat()
    driver.wait(29)
    driver.beat()
    assert driver.job(number).state is JobState.RUNNING
    driver.wait(2)
    driver.beat()
    job = driver.job(number)
    assert (job.state, job.state_desc) == (JobState.NODE_FAIL, "node n1 lost the run")
    assert not driver.node().runs
    assert not job.completing
    assert key == RunKey(number, 1)


def test_a_run_that_appears_again_is_believed_in_again(driver: Driver) -> None:
    number, key = driver.run()
    driver.beat()
    driver.wait(31)
    driver.beat(runs=[state_of(key)])
    driver.wait(31)
    driver.beat()
    assert driver.job(number).state is JobState.RUNNING


def test_a_reboot_without_records_proves_the_run_dead_at_once(driver: Driver) -> None:
    number, _ = driver.run()
    driver.register(boot_id="boot2", incarnation="inc2")
    assert driver.job(number).state is JobState.PENDING
    assert not driver.node().runs


def test_a_reboot_with_records_is_reported_by_the_node(driver: Driver) -> None:
    number, key = driver.run()
    driver.register(boot_id="boot2", incarnation="inc2", runs=[state_of(key, "ended")])
    assert driver.job(number).state is JobState.RUNNING


def test_lists_free_what_has_ended_when_its_release_was_never_reported(driver: Driver) -> None:
    _, key = driver.run()
    driver.end(key, 0)
    driver.report(key, Phase.FINISHED)
    driver.beat()
    assert driver.node().runs == {key}
    driver.beat()
    assert not driver.node().runs


def test_a_run_that_nobody_knows_is_ended_and_counts_until_it_is_gone(driver: Driver) -> None:
    """Field report 39; its number is not given out again."""
    stray = RunKey(40, 2)
    driver.beat(runs=[state_of(stray, grant=grant(3, 100))])
    assert driver.of(TerminateRun)[0].run == stray
    assert driver.node().cpus_allocated == 3
    assert driver.submit() == 41
    driver.beat()
    assert driver.node().cpus_allocated == 0


def test_a_list_that_was_made_before_the_release_books_nothing(driver: Driver) -> None:
    _, key = driver.run()
    driver.finish(key)
    driver.beat(runs=[state_of(key, "finished", grant=grant(1))])
    assert driver.node().cpus_allocated == 0


def test_an_end_that_did_not_arrive_is_sent_again_until_the_node_has_it(driver: Driver) -> None:
    number, key = driver.run()
    driver.cancel(number)
    driver.beat(runs=[state_of(key)])
    assert driver.terminations() == [(key, "cancelled")]
    driver.apply(e.TerminateTaken, run=key, node="n1")
    driver.beat(runs=[state_of(key)])
    assert not driver.terminations()
    driver.restart()
    assert driver.terminations() == [(key, "cancelled")]


def test_a_run_that_never_arrived_is_free_once_the_node_says_so(driver: Driver) -> None:
    number = driver.start()
    key = driver.key(number)
    driver.cancel(number)
    assert driver.terminations() == [(key, "cancelled")]
    assert driver.job(number).completing
    driver.apply(e.RunAbsent, run=key, node="n1")
    assert not driver.job(number).completing
    assert not driver.node().runs


def test_suspension_is_brought_in_line(driver: Driver) -> None:
    number, key = driver.run()
    driver.apply(e.SuspendAsked, job=number, by_uid=0)
    driver.beat(runs=[state_of(key)])
    assert driver.of(SuspendRun) == [SuspendRun(key, "n1", resume=False)]
    driver.beat(runs=[state_of(key, suspended=True)])
    assert not driver.of(SuspendRun)


def test_what_a_run_waits_for_is_kept_to_be_shown(driver: Driver) -> None:
    number, key = driver.run()
    driver.end(key)
    driver.beat(runs=[state_of(key, "ended", why_waiting="pid 7 in state D")])
    assert driver.job(number).runs[1].batch.why_waiting == "pid 7 in state D"


def test_nothing_is_granted_that_a_stray_holds() -> None:
    driver = Driver([NodeSpec("n1", cpus=4, memory_mb=1000, gres=(Gres("gpu", "a", 1),))])
    driver.register(gres=(Gres("gpu", "a", 1),))
    driver.beat(runs=[state_of(RunKey(9, 1), grant=grant(4))])
    number = driver.submit()
    driver.schedule()
    assert driver.job(number).state is JobState.PENDING
