"""Nodes that come, fall silent, return, leave, are drained and set down; and what becomes of their jobs."""

from __future__ import annotations

import pytest

from spurctld.core import events as e
from spurctld.core.instructions import LaunchRun
from spurctld.core.states import Answer, JobState, NodeOrder, NodeState, Phase, RefusalKind
from spurctld.core.values import Done, Gres, NodeSpec, Policy, Refusal, RunKey
from tests.spurctld.core.driver import Driver, state_of

TWO = [NodeSpec("n1", cpus=4, memory_mb=1000), NodeSpec("n2", cpus=4, memory_mb=1000)]


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.register()
    return driver


def order(driver: Driver, order: NodeOrder, reason: str = "", by_uid: int = 0, name: str = "n1") -> object:
    driver.apply(e.NodesOrdered, nodes=(name,), order=order, reason=reason, by_uid=by_uid)
    return driver.reply()


def test_only_configured_nodes_register() -> None:
    driver = Driver()
    assert driver.register("n9").kind is RefusalKind.NOT_FOUND
    driver = Driver([], policy=Policy(any_node=True))
    assert driver.register("n9") == Done()
    assert driver.start() == 1


def test_declared_amounts_win_and_measured_ones_fill_in() -> None:
    driver = Driver([NodeSpec("n1", cpus=64), NodeSpec("n2", gres=(Gres("gpu", "", 2),))])
    driver.register("n1", cpus=2, memory_mb=500)
    assert (driver.node().cpus, driver.node().memory_mb) == (64, 500)


def test_fewer_devices_than_promised_drain_the_node_until_they_are_there() -> None:
    driver = Driver([NodeSpec("n1", gres=(Gres("gpu", "", 2),))])
    driver.register(gres=(Gres("gpu", "a", 1),))
    assert "gres/gpu count reported lower than configured (1 < 2)" in driver.node().agent_drains
    driver.register(gres=(Gres("gpu", "a", 2),))
    assert not driver.node().draining


def test_an_unknown_incarnation_must_register(driver: Driver) -> None:
    driver.beats["n1"] = "other"
    assert driver.beat().register_again


def test_a_silent_node_is_down_after_the_timeout_and_not_before(driver: Driver) -> None:
    driver.wait(89)
    assert driver.node().state is NodeState.UP
    driver.wait(2)
    assert driver.node().state is NodeState.SILENT


def test_a_pause_of_the_controller_is_not_the_silence_of_its_nodes(driver: Driver) -> None:
    driver.wait(60)
    driver.wait(1000, away_s=999)
    assert driver.node().state is NodeState.UP
    driver.wait(28)
    assert driver.node().state is NodeState.UP
    driver.wait(3)
    assert driver.node().state is NodeState.SILENT


def test_no_node_is_down_before_a_whole_timeout_after_a_start(driver: Driver) -> None:
    """Field report 46."""
    driver.restart(away_s=100_000)
    driver.wait(89)
    assert driver.node().state is NodeState.UP
    driver.wait(2)
    assert driver.node().state is NodeState.SILENT


def test_a_lost_job_goes_back_to_the_queue_and_its_resources_stay_booked(driver: Driver) -> None:
    number, key = driver.run()
    driver.wait(91)
    job = driver.job(number)
    assert (job.state, job.restarts, job.completing) == (JobState.PENDING, 1, False)
    assert driver.node().runs == {key}
    assert driver.node().cpus_allocated == 1


def test_a_lost_job_that_may_not_run_again_fails(driver: Driver) -> None:
    number, _ = driver.run(requeue=False)
    driver.wait(91)
    job = driver.job(number)
    assert (job.state, job.exit_raw, job.failed_node) == (JobState.NODE_FAIL, 1, "n1")
    assert job.state_desc == "node n1 does not respond"


def test_a_node_that_returns_keeps_the_run_that_is_still_its_jobs(driver: Driver) -> None:
    """R07."""
    number, key = driver.run()
    driver.wait(91)
    driver.register(runs=[state_of(key)], incarnation="inc2")
    job = driver.job(number)
    assert (job.state, job.attempt, job.restarts) == (JobState.RUNNING, 1, 0)
    assert not driver.terminations()
    driver.finish(key, 0)
    assert job.state is JobState.COMPLETED


def test_a_report_brings_a_run_back_as_well(driver: Driver) -> None:
    number, key = driver.run()
    driver.wait(91)
    assert driver.end(key, 4 << 8) is Answer.RECORDED
    assert (driver.job(number).state, driver.job(number).exit_raw) == (JobState.FAILED, 4 << 8)


def test_a_site_that_does_not_take_runs_back_has_them_ended() -> None:
    driver = Driver(policy=Policy(take_back_runs=False))
    driver.register()
    number, key = driver.run()
    driver.wait(91)
    driver.register(runs=[state_of(key)])
    assert driver.terminations() == [(key, "node_lost")]
    assert driver.job(number).state is JobState.PENDING


def test_a_job_given_up_for_good_stays_so(driver: Driver) -> None:
    number, key = driver.run(requeue=False)
    driver.wait(91)
    driver.register(runs=[state_of(key)])
    assert driver.terminations() == [(key, "node_lost")]
    driver.finish(key, 15)
    assert (driver.job(number).state, driver.job(number).exit_raw) == (JobState.NODE_FAIL, 1)
    assert not driver.node().runs


def test_a_run_that_was_started_elsewhere_is_cleaned_up_when_its_node_returns() -> None:
    """R08."""
    driver = Driver(TWO)
    driver.register("n1")
    driver.register("n2")
    number, old = driver.run()
    for _ in range(4):
        driver.wait(30)
        driver.beat("n2")
    driver.schedule()
    new = driver.key(number)
    assert new == RunKey(number, 2)
    assert list(driver.job(number).runs[2].parts) == ["n2"]
    assert not driver.terminations(), "nobody is told while the node is away"
    driver.register("n1", [state_of(old)], incarnation="inc2")
    assert driver.terminations() == [(old, "stale")]
    assert driver.job(number).state is JobState.RUNNING
    assert driver.report(old, Phase.FINISHED, "n1") is Answer.STALE_ATTEMPT
    assert driver.report(old, Phase.RELEASED, "n1") is Answer.STALE_ATTEMPT
    assert not driver.node("n1").runs
    assert list(driver.job(number).runs) == [2]


def test_a_second_attempt_does_not_go_where_the_first_may_still_be(driver: Driver) -> None:
    number, _ = driver.run()
    driver.wait(91)
    driver.register(runs=[], incarnation="inc2")
    driver.schedule()
    assert driver.job(number).state is JobState.PENDING
    driver.wait(31)
    driver.beat()
    assert not driver.node().runs
    driver.schedule()
    assert driver.key(number) == RunKey(number, 2)


def test_an_idle_node_leaves_and_comes_back(driver: Driver) -> None:
    """R01; the record stays (field report 4)."""
    driver.apply(e.NodeLeft, node="n1", incarnation="inc1", reason="stopped")
    assert driver.reply() == Done()
    assert driver.node().state is NodeState.LEFT
    driver.submit()
    driver.schedule()
    assert not driver.of(LaunchRun)
    driver.register()
    assert driver.node().state is NodeState.UP


def test_a_busy_node_may_not_leave(driver: Driver) -> None:
    """R02: a launch that may be under way counts."""
    driver.start()
    driver.apply(e.NodeLeft, node="n1", incarnation="inc1")
    assert isinstance(driver.reply(), Refusal)
    assert driver.node().state is NodeState.UP


def test_an_operators_drain_stays(driver: Driver) -> None:
    order(driver, NodeOrder.DRAIN, "disk")
    driver.beat()
    driver.register()
    driver.restart()
    driver.beat()
    assert driver.node().draining
    driver.submit()
    driver.schedule()
    assert not driver.of(LaunchRun)
    order(driver, NodeOrder.RESUME)
    driver.schedule()
    assert driver.of(LaunchRun)


def test_a_draining_node_lets_its_jobs_run(driver: Driver) -> None:
    number, _ = driver.run()
    order(driver, NodeOrder.DRAIN, "disk")
    assert driver.job(number).state is JobState.RUNNING


def test_the_agents_drain_lifts_by_itself(driver: Driver) -> None:
    """An unkillable process: the node is good again once it is gone (field report 42)."""
    assert driver.beat(drain_reasons=("unkillable 7",)).drain_noted
    assert driver.node().draining
    driver.restart()
    assert driver.node().draining
    driver.beat()
    assert not driver.node().draining


def test_a_node_set_down_loses_its_jobs_and_stays_down(driver: Driver) -> None:
    """Field report 48."""
    number, key = driver.run()
    order(driver, NodeOrder.DOWN, "fan")
    assert driver.terminations() == [(key, "node_lost")]
    assert driver.job(number).state is JobState.PENDING
    driver.beat(runs=[state_of(key)])
    driver.register(runs=[state_of(key)])
    assert driver.node().state is NodeState.DOWN
    driver.finish(key, 15)
    order(driver, NodeOrder.RESUME)
    assert driver.node().state is NodeState.UP


def test_a_site_may_want_to_be_asked_before_a_node_is_used_again() -> None:
    driver = Driver(policy=Policy(return_to_service=False))
    driver.register()
    driver.wait(91)
    driver.register()
    assert driver.node().state is NodeState.DOWN
    order(driver, NodeOrder.RESUME)
    assert driver.node().state is NodeState.UP


@pytest.mark.parametrize(
    ("wanted", "reason", "by_uid", "name", "text"),
    [
        (NodeOrder.DRAIN, "x", 1000, "n1", "Access/permission denied"),
        (NodeOrder.DRAIN, "x", 0, "n9", "Invalid node name specified"),
        (
            NodeOrder.DOWN,
            "",
            0,
            "n1",
            "You must specify a reason when DOWNING or DRAINING a node. Request denied",
        ),
        (NodeOrder.RESUME, "", 0, "n1", "Invalid node state specified"),
    ],
)
def test_orders_that_cannot_be(
    driver: Driver, wanted: NodeOrder, reason: str, by_uid: int, name: str, text: str
) -> None:
    refusal = order(driver, wanted, reason, by_uid, name)
    assert isinstance(refusal, Refusal)
    assert refusal.text == text


def test_a_known_node_takes_jobs_again_once_it_was_reached(driver: Driver) -> None:
    """After a restart of the controller, before its next heartbeat."""
    driver.restart()
    driver.submit()
    driver.schedule()
    assert not driver.of(LaunchRun)
    driver.apply(e.NodeAnswered, node="n1", incarnation="inc1")
    driver.schedule()
    assert driver.of(LaunchRun)
