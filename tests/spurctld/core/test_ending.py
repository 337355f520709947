"""Exit and verdict to state, reason and ExitCode."""

from __future__ import annotations

import pytest

from spurctld.core.ending import Outcome, fill_in, outcome_of
from spurctld.core.states import ExitSource, JobState, VerdictKind
from spurctld.core.values import Exit, Verdict

WAITID = ExitSource.WAITID


def exited(status: int, **more: object) -> Exit:
    return Exit(WAITID, status, **more)  # type: ignore[arg-type]


def verdict(kind: VerdictKind) -> Verdict:
    return Verdict(kind, 0, 1.0, "why")


@pytest.mark.parametrize(
    ("exit", "outcome"),
    [
        (exited(0), Outcome(JobState.COMPLETED)),
        (exited(7 << 8), Outcome(JobState.FAILED, "NonZeroExitCode", "", 7 << 8)),
        (exited(9), Outcome(JobState.FAILED, "RaisedSignal:9(Killed)", "", 9)),
        (exited(0x80 | 11), Outcome(JobState.FAILED, "RaisedSignal:11(Segmentation fault)", "", 0x8B)),
        (exited(0, oom_kills=1), Outcome(JobState.OUT_OF_MEMORY, "OutOfMemory", "", 253)),
        (exited(9, oom_kills=3), Outcome(JobState.OUT_OF_MEMORY, "OutOfMemory", "", 253)),
        (
            Exit(ExitSource.NEVER_STARTED, detail="no such directory"),
            Outcome(JobState.FAILED, "JobLaunchFailure", "no such directory", 53),
        ),
        (
            Exit(ExitSource.UNKNOWN, detail="all witnesses died"),
            Outcome(JobState.NODE_FAIL, "NodeDown", "all witnesses died", 1),
        ),
        (None, Outcome(JobState.NODE_FAIL, "NodeDown", "the exit of the job is unknown", 1)),
        (Exit(ExitSource.WITNESS, 3 << 8), Outcome(JobState.FAILED, "NonZeroExitCode", "", 3 << 8)),
        (Exit(ExitSource.KERNEL, 0), Outcome(JobState.COMPLETED)),
    ],
)
def test_without_a_verdict_the_exit_decides(exit: Exit | None, outcome: Outcome) -> None:
    """R22; an unknown exit is never 0:0."""
    assert outcome_of(None, exit) == outcome


@pytest.mark.parametrize(
    ("kind", "exit", "state", "raw"),
    [
        (VerdictKind.CANCELLED, exited(0), JobState.CANCELLED, 0),
        (VerdictKind.CANCELLED, exited(15), JobState.CANCELLED, 15),
        (VerdictKind.CANCELLED, None, JobState.CANCELLED, 0),
        (VerdictKind.TIMEOUT, exited(0), JobState.TIMEOUT, 0),
        (VerdictKind.TIMEOUT, exited(1 << 8), JobState.TIMEOUT, 1 << 8),
        (VerdictKind.PREEMPTED, exited(77 << 8), JobState.PREEMPTED, 77 << 8),
        (VerdictKind.NODE_LOST, exited(0), JobState.NODE_FAIL, 1),
    ],
)
def test_what_was_decided_comes_before_what_the_processes_made_of_it(
    kind: VerdictKind, exit: Exit | None, state: JobState, raw: int
) -> None:
    """R24."""
    outcome = outcome_of(verdict(kind), exit)
    assert (outcome.state, outcome.exit_raw) == (state, raw)


def test_a_late_exit_never_makes_a_lost_job_look_fine() -> None:
    assert fill_in(JobState.NODE_FAIL, 1, exited(0)) == 1
    assert fill_in(JobState.CANCELLED, 0, exited(15)) == 15
    assert fill_in(JobState.CANCELLED, 0, Exit(ExitSource.UNKNOWN)) == 0
