"""The records as they are stored, and the controller that is made of them again."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from spurctld.core import events as e
from spurctld.core.instructions import PingNode
from spurctld.core.rows import RowError, decode_job, decode_spec, encode_job, encode_node, encode_spec
from spurctld.core.states import ExitSource, JobState, NodeOrder, Phase
from spurctld.core.transitions import ImpossibleTransition
from spurctld.core.values import Device, Exit, Grant, Gres, NodeSpec, PartitionSpec, RunKey, Usage
from tests.spurctld.core.driver import Driver


@pytest.fixture
def driver() -> Driver:
    driver = Driver([NodeSpec("n1", 4, 1000, (Gres("gpu", "a", 2),)), NodeSpec("n2", 4, 1000, ())])
    driver.register(gres=(Gres("gpu", "a", 2),))
    driver.register("n2")
    return driver


def test_everything_that_is_saved_comes_back(driver: Driver) -> None:
    number = driver.start(gres_per_node=(Gres("gpu", "", 1),), memory_mb=100, excluded=frozenset({"n2"}), account="a")
    given = Grant((0,), 100, (Device("gpu", "a", 1, "/dev/x"),))
    driver.apply(e.LaunchTaken, run=driver.key(number), node="n1", grant=given)
    exit = Exit(ExitSource.WITNESS, 3, 5.5, 1, "said twice", Usage(1.5, 0.5, 7, 8, 9, 10))
    driver.report(driver.key(number), Phase.ENDED, exit=exit)
    driver.apply(e.NodesOrdered, nodes=("n2",), order=NodeOrder.DRAIN, reason="fan", by_uid=5)
    driver.apply(e.NodesOrdered, nodes=("n2",), order=NodeOrder.DRAIN, reason="fan", by_uid=0)
    job, node = driver.job(number), driver.node("n2")
    saved = (encode_spec(job.spec), encode_job(job), encode_node(node))
    driver.restart()
    job, node = driver.job(number), driver.node("n2")
    assert (encode_spec(job.spec), encode_job(job), encode_node(node)) == saved
    assert job.runs[1].exit == exit
    assert job.runs[1].batch.grant == given


def test_what_is_owed_is_derived_again(driver: Driver) -> None:
    sent = driver.start()
    cancelled, key = driver.run()
    driver.cancel(cancelled)
    driver.restart()
    assert driver.launches() == [RunKey(sent, 1)]
    assert driver.terminations() == [(key, "cancelled")]
    assert {one.node for one in driver.of(PingNode)} == {"n1", "n2"}


def test_a_job_number_is_not_given_out_twice_even_if_its_record_is_gone(driver: Driver) -> None:
    number = driver.submit()
    driver.cancel(number)
    driver.wait(80)
    for _ in range(5):
        driver.wait(80)
        driver.beat()
        driver.beat("n2")
    assert number not in driver.cluster.jobs
    driver.restart()
    assert driver.submit() == number + 1


def test_a_node_that_left_the_configuration_takes_its_jobs_with_it(driver: Driver) -> None:
    number, _ = driver.run(required=("n2",), requeue=False)
    driver.restart(nodes=[NodeSpec("n1", 4, 1000)])
    assert driver.job(number).state is JobState.NODE_FAIL
    assert "n2" not in driver.cluster.nodes
    driver.restart()
    assert not driver.job(number).runs[1].booked


def test_a_partition_that_left_the_configuration_keeps_its_jobs_waiting(driver: Driver) -> None:
    number = driver.submit()
    driver.restart(partitions=[PartitionSpec("other", default=True)])
    driver.beat()
    driver.schedule()
    assert driver.job(number).state is JobState.PENDING
    assert driver.start() == number + 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state": "FLYING"}, "job 1.state is 'FLYING', no JobState"),
        ({"attempt": "x"}, "job 1.attempt is 'x', not of type int"),
        ({"runs": None}, "job 1.runs is None, not of type list"),
        ({"runs": [{"parts": []}]}, "job 1.runs[0].parts is empty"),
    ],
)
def test_a_row_that_cannot_be_is_refused_by_its_field(driver: Driver, change: dict[str, Any], said: str) -> None:
    number, _ = driver.run()
    job = driver.job(number)
    row = json.loads(json.dumps(encode_job(job))) | change
    with pytest.raises(RowError) as error:
        decode_job(number, job.spec, row)
    assert str(error.value) == said


def test_a_row_of_another_kind_is_refused() -> None:
    with pytest.raises(RowError, match=r"job 3\.spec is not an object"):
        decode_spec([], "job 3.spec")


def test_an_impossible_step_is_told_with_the_story_of_its_job(driver: Driver) -> None:
    number, key = driver.run()
    driver.finish(key)
    job = copy.copy(driver.job(number))
    with pytest.raises(ImpossibleTransition) as error:
        driver.cluster.move_job(job, JobState.RUNNING)
    text = str(error.value)
    assert text.startswith(f"job {number} cannot go from COMPLETED to RUNNING")
    for part in ("submitted", "PENDING -> RUNNING", f"{key}: exit waitid 0", "RUNNING -> COMPLETED"):
        assert part in text


def test_a_run_does_not_go_back(driver: Driver) -> None:
    number, _ = driver.run()
    job = driver.job(number)
    run = job.runs[1]
    with pytest.raises(ImpossibleTransition):
        driver.cluster.move_part(job, run, run.batch, Phase.ACCEPTED)
