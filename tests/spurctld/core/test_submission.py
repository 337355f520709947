"""Which jobs are taken, and what Slurm says of those that are not."""

from __future__ import annotations

import pytest

from spurctld.core.states import UNLIMITED, JobState, PartitionState, RefusalKind
from spurctld.core.values import Gres, NodeSpec, PartitionSpec, Policy, Refusal
from tests.spurctld.core.driver import Driver

NODES = [NodeSpec("n1", 4, 1000, (Gres("gpu", "a", 2),)), NodeSpec("n2", 8, 2000, ())]
PARTITIONS = [
    PartitionSpec("main", default=True, default_time_s=600, max_time_s=3600),
    PartitionSpec("free", nodes=("n2",)),
    PartitionSpec("closed", state=PartitionState.DRAIN),
]


@pytest.fixture
def driver() -> Driver:
    return Driver(NODES, PARTITIONS)


def test_numbers_count_up_and_defaults_are_filled_in(driver: Driver) -> None:
    assert [driver.submit(), driver.submit()] == [1, 2]
    assert driver.job(1).spec.partition == "main"
    assert driver.job(1).spec.time_limit_s == 600
    assert driver.job(1).state is JobState.PENDING
    assert driver.job(1).priority > driver.job(2).priority


def test_a_partition_without_default_time_has_its_longest() -> None:
    driver = Driver(partitions=[PartitionSpec("main", default=True)])
    assert driver.job(driver.submit()).spec.time_limit_s == UNLIMITED


@pytest.mark.parametrize(
    ("asked", "text", "note"),
    [
        ({"partition": "nope"}, "Invalid partition name specified", "invalid partition specified: nope"),
        ({"partition": "closed"}, "Required partition not available (inactive or drain)", ""),
        (
            {"cpus_per_task": 9},
            "Requested node configuration is not available",
            "CPU count per node can not be satisfied",
        ),
        ({"tasks": 13}, "Requested node configuration is not available", ""),
        (
            {"memory_mb": 2001},
            "Requested node configuration is not available",
            "Memory specification can not be satisfied",
        ),
        (
            {"memory_per_cpu_mb": 1001, "cpus_per_task": 2},
            "Requested node configuration is not available",
            "Memory specification can not be satisfied",
        ),
        ({"nodes": 3, "tasks": 3}, "Node count specification invalid", ""),
        ({"required": ("n9",)}, "Invalid node name specified", ""),
        ({"required": ("n1",), "excluded": frozenset({"n1"})}, "Invalid node name specified", ""),
        ({"required": ("n1",), "partition": "free"}, "Requested node configuration is not available", ""),
        ({"gres_per_node": (Gres("fpga", "", 1),)}, "Invalid generic resource (gres) specification", ""),
        ({"gres_per_node": (Gres("gpu", "", 3),)}, "Requested node configuration is not available", ""),
        ({"gres_per_node": (Gres("gpu", "b", 1),)}, "Requested node configuration is not available", ""),
        ({"time_limit_s": 3601}, "Requested time limit is invalid (missing or exceeds some limit)", ""),
        ({"time_limit_s": UNLIMITED}, "Requested time limit is invalid (missing or exceeds some limit)", ""),
    ],
)
def test_refuses_what_could_never_run(driver: Driver, asked: dict, text: str, note: str) -> None:  # type: ignore[type-arg]
    assert driver.try_submit(**asked) == Refusal(RefusalKind.INVALID, text, note)
    assert not driver.disk.jobs


def test_refuses_without_a_default_partition() -> None:
    refusal = Driver(partitions=[PartitionSpec("main")]).try_submit()
    assert isinstance(refusal, Refusal)
    assert refusal.text == "No partition specified or system default partition"


def test_tasks_that_fit_on_no_single_node_spread(driver: Driver) -> None:
    assert driver.job(driver.submit(tasks=8)).spec.request.nodes == 1
    assert driver.job(driver.submit(tasks=8, memory_per_cpu_mb=250)).spec.request.nodes == 1
    assert driver.job(driver.submit(tasks=8, gres_per_task=(), memory_mb=900, nodes=2)).spec.request.nodes == 2
    assert driver.job(driver.submit(tasks=3, cpus_per_task=3)).spec.request.nodes == 2


def test_tasks_per_node_say_how_many_nodes(driver: Driver) -> None:
    assert driver.job(driver.submit(tasks=4, tasks_per_node=2)).spec.request.nodes == 2


def test_what_nodes_have_that_never_registered_is_not_guessed() -> None:
    driver = Driver([NodeSpec("n1")])
    assert driver.job(driver.submit(cpus_per_task=1000)).state is JobState.PENDING


def test_a_test_leaves_nothing_behind(driver: Driver) -> None:
    from spurctld.core import events as e
    from spurctld.core.values import JobSpec, Submitted

    driver.apply(e.JobSubmitted, spec=JobSpec("t", 1, 1, "u", "g", ""), test_only=True)
    assert driver.reply() == Submitted(0)
    assert not driver.cluster.jobs


def test_more_jobs_than_allowed_are_refused() -> None:
    driver = Driver(policy=Policy(max_jobs=1))
    driver.submit()
    refusal = driver.try_submit()
    assert isinstance(refusal, Refusal)
    assert refusal.kind is RefusalKind.TOO_MANY


def test_numbers_begin_again_and_pass_over_those_in_use() -> None:
    driver = Driver(policy=Policy(first_job_id=5, max_job_id=7))
    assert [driver.submit() for _ in range(3)] == [5, 6, 7]
    driver.cancel(6)
    driver.wait(301)
    assert 6 not in driver.cluster.jobs
    assert driver.submit() == 6


def test_only_root_may_be_nice_to_itself(driver: Driver) -> None:
    mine, roots = driver.submit(nice=-5), driver.submit(nice=-5, uid=0)
    assert driver.job(mine).spec.nice == 0
    assert driver.job(roots).spec.nice == -5


def test_a_held_job_waits_for_its_user(driver: Driver) -> None:
    driver.register()
    number = driver.submit(hold=True)
    driver.schedule()
    assert driver.job(number).state is JobState.PENDING
    assert driver.job(number).held == "JobHeldUser"
