"""How an exit and a verdict become the end of a job. One pure function; Slurm's order of decision (job_mgr.c)."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from spurctld.core.states import ExitSource, JobState, Reason, VerdictKind
from spurctld.core.values import Exit, Verdict

RAW_NODE_FAIL = 1  # shown as 0:1, so that whoever waits for the job sees that it failed
RAW_OUT_OF_MEMORY = 253  # Slurm's pseudo status, shown as 0:125
RAW_LAUNCH_FAILURE = 53  # what Slurm shows, as 0:53, for a script that could not be started


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of a job whose run has ended. `exit_raw` is a wait status, pseudo statuses included."""

    state: JobState
    reason: str = Reason.NONE
    state_desc: str = ""
    exit_raw: int = 0


_BY_VERDICT = {
    VerdictKind.CANCELLED: Outcome(JobState.CANCELLED),
    VerdictKind.TIMEOUT: Outcome(JobState.TIMEOUT, Reason.TIME_LIMIT),
    VerdictKind.PREEMPTED: Outcome(JobState.PREEMPTED),
    VerdictKind.NODE_LOST: Outcome(JobState.NODE_FAIL, Reason.NODE_DOWN, exit_raw=RAW_NODE_FAIL),
    VerdictKind.STALE: Outcome(JobState.CANCELLED),
    VerdictKind.LAUNCH_FAILED: Outcome(JobState.FAILED, Reason.LAUNCH_FAILURE, exit_raw=RAW_LAUNCH_FAILURE),
    VerdictKind.CONFLICT: Outcome(JobState.NODE_FAIL, exit_raw=RAW_NODE_FAIL),
}


def outcome_of(verdict: Verdict | None, exit: Exit | None) -> Outcome:
    """The end of a job: what was decided before comes first, whatever its processes then made of it."""
    if verdict is not None:
        return _outcome_of_verdict(verdict, exit)
    if exit is None or exit.source is ExitSource.UNKNOWN or (exit.status is None and exit.source is not _NEVER):
        why = exit.detail if exit and exit.detail else "the exit of the job is unknown"
        return Outcome(JobState.NODE_FAIL, Reason.NODE_DOWN, why, RAW_NODE_FAIL)
    if exit.source is _NEVER:
        return Outcome(JobState.FAILED, Reason.LAUNCH_FAILURE, exit.detail, RAW_LAUNCH_FAILURE)
    assert exit.status is not None
    if exit.oom_kills:
        return Outcome(JobState.OUT_OF_MEMORY, Reason.OUT_OF_MEMORY, exit_raw=RAW_OUT_OF_MEMORY)
    if exit.status == 0:
        return Outcome(JobState.COMPLETED)
    return Outcome(JobState.FAILED, _failure(exit.status), exit.detail, exit_raw=exit.status)


_NEVER = ExitSource.NEVER_STARTED


def _outcome_of_verdict(verdict: Verdict, exit: Exit | None) -> Outcome:
    decided = _BY_VERDICT[verdict.kind]
    raw = decided.exit_raw or fill_in(decided.state, 0, exit)
    desc = verdict.reason if verdict.kind in (VerdictKind.LAUNCH_FAILED, VerdictKind.CONFLICT) else ""
    return Outcome(decided.state, decided.reason, desc, raw)


def fill_in(state: JobState, shown: int, exit: Exit | None) -> int:
    """The wait status to show for a job that was ended by decision, once its exit comes in late."""
    if state is JobState.NODE_FAIL or exit is None or exit.status is None:
        return shown
    return exit.status


def _failure(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"RaisedSignal:{number}({signal_name(number)})"
    return Reason.NON_ZERO_EXIT


def signal_name(number: int) -> str:
    """As the C library calls it: 9 is Killed."""
    try:
        return signal.strsignal(number) or f"Signal {number}"
    except ValueError:
        return f"Signal {number}"
