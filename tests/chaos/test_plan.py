"""A seed decides everything, and the jobs do not depend on the faults."""

from __future__ import annotations

import subprocess
from itertools import islice
from pathlib import Path

import pytest

from tests.chaos.jobs import NEVER_BY_ITSELF, Ending, JobPlan, natural_end, script
from tests.chaos.plan import Cancel, CutLink, Decision, Fault, FaultKind, Fill, Options, StepClock, Submit, decisions

ALL = Options(3, frozenset(FaultKind))


def some(seed: int, options: Options = ALL, count: int = 2000) -> list[Decision]:
    return list(islice(decisions(seed, options), count))


def test_the_same_seed_decides_the_same_and_another_something_else() -> None:
    assert some(7) == some(7)
    assert some(7) != some(8)


def test_decisions_come_in_the_order_of_their_times() -> None:
    times = [one.at_s for one in some(7)]
    assert times == sorted(times)


def test_jobs_do_not_depend_on_the_faults() -> None:
    def jobs(options: Options) -> list[JobPlan]:
        return [one.action.job for one in some(7, options) if isinstance(one.action, Submit)][:300]

    assert jobs(ALL) == jobs(Options(3, frozenset({FaultKind.KILL})))


def test_only_the_faults_that_were_asked_for_are_injected() -> None:
    actions = [one.action for one in some(7, Options(3, frozenset({FaultKind.KILL, FaultKind.STOP})))]
    assert not any(isinstance(one, Fill | CutLink | StepClock) for one in actions)
    assert len([one for one in actions if isinstance(one, Fault)]) > 300
    assert not any(isinstance(one.action, Fault) for one in some(7, Options(3, frozenset())))


def test_a_job_is_cancelled_after_it_was_submitted_and_every_endless_one_is() -> None:
    submitted: set[int] = set()
    cancelled: set[int] = set()
    for one in some(7):
        match one.action:
            case Submit(job):
                submitted.add(job.index)
                assert job.cancel_after_s is not None or job.ending is Ending.OVERRUN or natural_end(job) is not None
            case Cancel(index):
                assert index in submitted
                cancelled.add(index)
    assert cancelled


@pytest.mark.parametrize(
    "ending", [one for one in Ending if one not in NEVER_BY_ITSELF], ids=lambda ending: ending.name
)
def test_a_script_ends_as_it_is_said_to(ending: Ending, tmp_path: Path) -> None:
    number = 11 if ending in (Ending.SIGNAL, Ending.CORE) else 7
    job = JobPlan(0, ending, number, 0.01)
    text = script(job, tmp_path).replace("100000", "1")  # what it leaves need not stay for a day
    run = tmp_path / "5.1"
    run.mkdir()
    (run / "script").write_text(text)
    environment = {"SLURM_JOB_ID": "5", "SLURMD_NODENAME": "n1", "PATH": "/usr/bin:/bin"}
    code = subprocess.run(["/bin/bash", run / "script"], env=environment, cwd=tmp_path, check=False).returncode
    end = natural_end(job)
    assert end is not None
    assert end.exit_code == (f"0:{-code}" if code < 0 else f"{code}:0")
    lines = [line.split() for line in (tmp_path / "script.5").read_text().splitlines()]
    assert [lines[0][:3], lines[-1][:3]] == [["begin", "5.1", "n1"], ["end", "5.1", "n1"]]
