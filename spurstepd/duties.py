"""What a supervisor does next, as a pure function of the ledger and of what it sees.

The same function drives a run from its first step and a successor from wherever the ledger stands: there is no second
path for recovery. Each answer is one step; the supervisor takes it and asks again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spurstepd.ledger import Duty, Manifest, Progress


class Step(Enum):
    SKIP_PROLOG = "skip the prolog: the run is being ended before it"
    START_PROLOG = "start the prolog"
    INTERRUPTED_PROLOG = "record that the prolog was interrupted"
    AWAIT_HOOK = "wait for the hook"
    AWAIT_START = "wait for the permission to start"
    START_TASK = "start the task"
    GIVE_UP = "record that no user code ran"
    WATCH_TASK = "watch a task that a predecessor started"
    AWAIT_TASK = "wait for the task"
    CLEAR = "end what is left"
    START_EPILOG = "start the epilog"
    INTERRUPTED_EPILOG = "record that the epilog was interrupted"
    AWAIT_ANSWER = "wait for the controller's answer to the report"
    AWAIT_RELEASE = "wait for the release"
    LEAVE = "remove the records and leave"


@dataclass(frozen=True, slots=True)
class Sight:
    """What the supervisor knows beside the ledger."""

    same_boot: bool
    may_start: bool
    hook: Duty | None = None  # the hook that is a child of ours; RUN: a task epilog
    task_watched: bool = False  # the leader is held by a pidfd of ours


def next_step(ledger: Manifest, sight: Sight) -> Step:
    """The step that falls due. The order is that of `Duty`."""
    if sight.hook is not None:
        return Step.AWAIT_HOOK
    if not ledger.progress(Duty.PROLOG).settled:
        return _prolog(ledger, sight)
    if not ledger.progress(Duty.RUN).settled:
        return _run(ledger, sight)
    if not ledger.progress(Duty.EPILOG).settled:
        interrupted = ledger.progress(Duty.EPILOG) is Progress.RUNNING
        return Step.INTERRUPTED_EPILOG if interrupted else Step.START_EPILOG
    if not ledger.progress(Duty.REPORT).settled:
        return Step.AWAIT_ANSWER
    if not ledger.progress(Duty.RELEASE).settled:
        return Step.AWAIT_RELEASE
    return Step.LEAVE


def _prolog(ledger: Manifest, sight: Sight) -> Step:
    if ledger.progress(Duty.PROLOG) is Progress.RUNNING:
        return Step.INTERRUPTED_PROLOG
    if ledger.verdict is not None or not sight.same_boot:
        return Step.SKIP_PROLOG
    return Step.START_PROLOG


def _run(ledger: Manifest, sight: Sight) -> Step:
    if ledger.exit is not None:
        return Step.CLEAR
    if ledger.leader is not None:
        return Step.AWAIT_TASK if sight.task_watched else Step.WATCH_TASK
    if why_not_to_start(ledger, same_boot=sight.same_boot) is not None:
        return Step.GIVE_UP
    return Step.START_TASK if sight.may_start else Step.AWAIT_START


def why_not_to_start(ledger: Manifest, *, same_boot: bool) -> str | None:
    """Why no user code may run any more for this run; None: it may."""
    prolog = ledger.obligations[Duty.PROLOG]
    if prolog.progress in (Progress.FAILED, Progress.UNKNOWN):
        return prolog.detail
    if ledger.verdict is not None:
        return ledger.verdict.reason or f"ended before it started: {ledger.verdict.kind.value}"
    if not same_boot:
        return "the node was rebooted before it started"
    return None


PHASES = ("accepted", "prolog", "ready", "running", "ending", "ended", "finished", "answered")
"""What a run is called on the outside, in order."""


def phase(ledger: Manifest) -> str:
    """The phase of the run, one of PHASES.

    ended: the exit is recorded. finished: nothing of it lives and the epilog has ended; the report can be sent.
    """
    progress = ledger.progress
    if progress(Duty.REPORT).settled:
        return "answered"
    if progress(Duty.EPILOG).settled and progress(Duty.RUN).settled:
        return "finished"
    if ledger.exit is not None:
        return "ended"
    if ledger.leader is not None:
        return "running" if ledger.verdict is None else "ending"
    if ledger.verdict is not None:
        return "ending"
    if progress(Duty.PROLOG).settled:
        return "ready"
    return "prolog" if progress(Duty.PROLOG) is Progress.RUNNING else "accepted"
