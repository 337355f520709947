"""From the decision to start a job to its running: what is sent, refused, sent again, and the controller's hooks."""

from __future__ import annotations

import pytest

from spurctld.core import events as e
from spurctld.core.instructions import LaunchRun, RunHook, StartRun
from spurctld.core.states import Fault, HookKind, JobState, Phase, Progress
from spurctld.core.values import NodeSpec, Policy, RunKey
from tests.spurctld.core.driver import Driver, grant, state_of

TWO = [NodeSpec("n1", cpus=4, memory_mb=1000), NodeSpec("n2", cpus=4, memory_mb=1000)]


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.register()
    return driver


@pytest.fixture
def pair() -> Driver:
    driver = Driver(TWO)
    driver.register("n1")
    driver.register("n2")
    return driver


def test_one_node_runs_from_its_allocation(driver: Driver) -> None:
    """Committed before the launch is sent: saves come first."""
    number = driver.submit()
    told = driver.schedule()
    assert driver.job(number).state is JobState.RUNNING
    assert driver.launches() == [RunKey(number, 1)]
    kinds = [type(one).__name__ for one in told]
    assert kinds.index("SaveJob") < kinds.index("LaunchRun")


def test_a_grant_is_kept(driver: Driver) -> None:
    number = driver.start(cpus_per_task=2)
    driver.apply(e.LaunchTaken, run=driver.key(number), node="n1", grant=grant(2))
    assert driver.job(number).runs[1].batch.grant == grant(2)


def test_a_node_that_refuses_gets_nothing_for_a_while_and_ever_longer(driver: Driver) -> None:
    """Field report 49, 50: no hot loop."""
    number = driver.start()
    pauses = []
    for _ in range(4):
        driver.refuse(driver.key(number))
        assert driver.job(number).state is JobState.PENDING
        assert driver.node().cpus_allocated == 0
        waited = 0.0
        while not driver.job(number).state.active:
            driver.wait(0.5)
            driver.schedule()
            waited += 0.5
        pauses.append(waited)
    assert pauses == [1.0, 2.0, 4.0, 8.0]


def test_a_job_that_no_node_takes_is_held(driver: Driver) -> None:
    number = driver.start()
    for _ in range(6):
        assert driver.job(number).state.active
        driver.refuse(driver.key(number))
        driver.wait(60)
        driver.beat()
        driver.schedule()
    assert driver.job(number).state is JobState.PENDING
    assert driver.job(number).held == "JobHoldMaxRequeue"
    assert driver.job(number).restarts == 0
    driver.apply(e.HoldAsked, job=number, by_uid=1000, release=True)
    driver.schedule()
    assert driver.job(number).state is JobState.RUNNING


def test_a_launch_that_is_the_users_fault_fails_the_job(driver: Driver) -> None:
    number = driver.start()
    driver.refuse(driver.key(number), Fault.USER, text="job.umask is 99999")
    job = driver.job(number)
    assert (job.state, job.reason, job.state_desc) == (JobState.FAILED, "JobLaunchFailure", "job.umask is 99999")
    assert not job.completing


def test_a_refusal_that_proves_nothing_keeps_the_resources_until_something_does(driver: Driver) -> None:
    number = driver.start()
    key = driver.key(number)
    driver.apply(e.LaunchRefused, run=key, node="n1", fault=Fault.NODE, text="crashed", proven=False)
    assert driver.terminations() == [(key, "launch_failed")]
    assert driver.job(number).state is JobState.PENDING
    assert driver.job(number).completing
    driver.wait(10)
    driver.schedule()
    assert not driver.job(number).state.active
    driver.apply(e.RunAbsent, run=key, node="n1")
    driver.schedule()
    assert driver.key(number) == RunKey(number, 2)


def test_a_refusal_of_an_earlier_attempt_changes_nothing(driver: Driver) -> None:
    number = driver.start()
    driver.refuse(driver.key(number))
    driver.wait(2)
    driver.schedule()
    driver.refuse(RunKey(number, 1))
    assert driver.job(number).state is JobState.RUNNING


def test_several_nodes_start_when_all_are_ready(pair: Driver) -> None:
    number = pair.start(nodes=2, tasks=2)
    key = pair.key(number)
    assert pair.job(number).state is JobState.CONFIGURING
    for name in ("n1", "n2"):
        pair.apply(e.LaunchTaken, run=key, node=name)
    pair.report(key, Phase.READY, "n2")
    assert pair.job(number).state is JobState.CONFIGURING
    assert not pair.of(StartRun)
    pair.report(key, Phase.READY, "n1")
    assert pair.job(number).state is JobState.RUNNING
    assert pair.of(StartRun) == [StartRun(key, "n1")]


def test_one_refusal_undoes_the_launch_on_all_nodes(pair: Driver) -> None:
    """Field report 42: all or nothing."""
    number = pair.start(nodes=2, tasks=2)
    key = pair.key(number)
    pair.apply(e.LaunchTaken, run=key, node="n1")
    pair.refuse(key, node="n2")
    assert pair.job(number).state is JobState.PENDING
    assert pair.terminations() == [(key, "launch_failed")]
    assert pair.node("n1").cpus_allocated == 1
    pair.schedule()
    assert not pair.job(number).state.active
    pair.report(key, Phase.RELEASED, "n1")
    pair.wait(10)
    pair.schedule()
    assert pair.job(number).attempt == 2


def test_the_end_of_the_script_ends_the_other_nodes(pair: Driver) -> None:
    number = pair.start(nodes=2, tasks=2)
    key = pair.key(number)
    for name in ("n1", "n2"):
        pair.apply(e.LaunchTaken, run=key, node=name)
        pair.report(key, Phase.READY, name)
    pair.report(key, Phase.RUNNING, "n1")
    pair.end(key, 0)
    assert pair.job(number).state is JobState.COMPLETED
    assert pair.terminations() == [(key, "stale")]
    assert pair.told
    pair.beat("n2", [state_of(key, "ready")])
    assert pair.terminations() == [(key, "stale")]


# The controller's hooks


@pytest.fixture
def hooked() -> Driver:
    driver = Driver(policy=Policy(controller_prolog=True, controller_epilog=True))
    driver.register()
    return driver


def test_nothing_is_launched_before_the_controllers_prolog_is_done(hooked: Driver) -> None:
    number = hooked.start()
    key = hooked.key(number)
    assert hooked.of(RunHook) == [RunHook(key, HookKind.PROLOG)]
    assert hooked.job(number).state is JobState.CONFIGURING
    hooked.beat()
    assert not hooked.of(LaunchRun)
    hooked.apply(e.HookEnded, run=key, kind=HookKind.PROLOG, ok=True)
    assert hooked.launches() == [key]
    assert hooked.job(number).state is JobState.RUNNING


def test_a_failed_prolog_sends_the_job_back(hooked: Driver) -> None:
    number = hooked.start()
    hooked.apply(e.HookEnded, run=hooked.key(number), kind=HookKind.PROLOG, ok=False)
    assert hooked.job(number).state is JobState.PENDING
    assert hooked.node().cpus_allocated == 0


def test_the_controllers_epilog_runs_once_when_the_run_is_gone(hooked: Driver) -> None:
    number = hooked.start()
    key = hooked.key(number)
    hooked.apply(e.HookEnded, run=key, kind=HookKind.PROLOG, ok=True)
    hooked.end(key)
    assert not hooked.of(RunHook)
    hooked.report(key, Phase.RELEASED)
    assert hooked.of(RunHook) == [RunHook(key, HookKind.EPILOG)]
    assert hooked.job(number).completing
    hooked.report(key, Phase.RELEASED)
    assert not hooked.of(RunHook)
    hooked.apply(e.HookEnded, run=key, kind=HookKind.EPILOG, ok=False)
    assert not hooked.job(number).completing
    assert hooked.job(number).state is JobState.COMPLETED


def test_hooks_that_died_with_the_controller_are_not_repeated(hooked: Driver) -> None:
    """R15 for the controller's own hooks."""
    number = hooked.start()
    key = hooked.key(number)
    hooked.restart()
    assert hooked.of(RunHook) == [RunHook(key, HookKind.EPILOG)]
    assert hooked.job(number).state is JobState.PENDING
    assert hooked.job(number).runs[1].prolog is Progress.UNKNOWN
    hooked.restart()
    assert not hooked.of(RunHook)
    hooked.beat()
    hooked.schedule()
    assert hooked.of(RunHook) == [RunHook(RunKey(number, 2), HookKind.PROLOG)]


def test_cancelled_during_the_prolog_nothing_is_launched(hooked: Driver) -> None:
    number = hooked.start()
    key = hooked.key(number)
    hooked.cancel(number)
    hooked.apply(e.HookEnded, run=key, kind=HookKind.PROLOG, ok=True)
    assert not hooked.of(LaunchRun)
    assert hooked.job(number).state is JobState.CANCELLED
