"""What falls due by itself."""

from __future__ import annotations

import pytest

from spurctld.core.instructions import PurgeJob
from spurctld.core.states import JobState
from tests.spurctld.core.driver import Driver, state_of


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.register()
    return driver


def test_a_job_over_its_limit_is_timeout_before_its_processes_hear_of_it(driver: Driver) -> None:
    """Field report 6: the verdict is saved in the same turn, before the instruction leaves."""
    number, key = driver.run(time_limit_s=60)
    driver.wait(59)
    assert driver.job(number).state is JobState.RUNNING
    driver.wait(2)
    job = driver.job(number)
    assert (job.state, job.reason, job.completing) == (JobState.TIMEOUT, "TimeLimit", True)
    assert driver.terminations() == [(key, "timeout")]
    assert '"timeout"' in driver.disk.jobs[number]
    driver.end(key, 0)
    assert (job.state, job.exit_raw) == (JobState.TIMEOUT, 0)


def test_the_limit_holds_over_a_restart_of_the_controller(driver: Driver) -> None:
    number, _ = driver.run(time_limit_s=60)
    driver.restart(away_s=30)
    driver.wait(29)
    assert driver.job(number).state is JobState.RUNNING
    driver.wait(2)
    assert driver.job(number).state is JobState.TIMEOUT


def test_a_limit_that_passed_while_the_controller_was_away_is_noticed(driver: Driver) -> None:
    number, _ = driver.run(time_limit_s=60)
    driver.restart(away_s=100)
    driver.wait(0.1)
    assert driver.job(number).state is JobState.TIMEOUT


def test_a_step_of_the_wall_clock_times_nothing_out(driver: Driver) -> None:
    number, _ = driver.run(time_limit_s=60)
    driver.at += 100_000
    driver.wait(1)
    assert driver.job(number).state is JobState.RUNNING


def test_a_job_without_limit_runs_on(driver: Driver) -> None:
    number, key = driver.run()
    for _ in range(10):
        driver.beat(runs=[state_of(key)])
        driver.wait(80)
    assert driver.job(number).state is JobState.RUNNING


def test_records_go_after_their_time_and_not_before(driver: Driver) -> None:
    number, key = driver.run()
    driver.finish(key)
    driver.wait(299)
    assert number in driver.cluster.jobs
    driver.wait(2)
    assert number not in driver.cluster.jobs
    assert driver.of(PurgeJob) == [PurgeJob(number)]


def test_a_record_stays_as_long_as_something_is_booked_for_it(driver: Driver) -> None:
    number, key = driver.run()
    driver.end(key)
    driver.wait(80)
    driver.wait(1000)
    assert number in driver.cluster.jobs
    driver.register(boot_id="boot2")
    driver.beat()
    driver.wait(1)
    assert number not in driver.cluster.jobs


def test_the_age_of_a_record_counts_over_a_restart(driver: Driver) -> None:
    number, key = driver.run()
    driver.finish(key)
    driver.restart(away_s=200)
    driver.wait(99)
    assert number in driver.cluster.jobs
    driver.wait(2)
    assert number not in driver.cluster.jobs
