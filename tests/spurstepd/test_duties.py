"""The pure decisions: what is done next, whose word counts for an exit, how a run is ended."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spurstepd import ledger as ledgers
from spurstepd.duties import PHASES, Sight, Step, next_step, phase
from spurstepd.ids import RunId
from spurstepd.ladder import Ladder, Rung
from spurstepd.ledger import Duty, Exit, ExitSource, Manifest, Process, Progress, Verdict, VerdictKind
from spurstepd.settle import settle
from spurstepd.witness import Witness

LEADER = Process(4711, 99, 1234)
SIGHT = Sight(same_boot=True, may_start=True)
CANCELLED = Verdict(VerdictKind.CANCELLED, 0, 1.0)


def new(prolog: bool = True, epilog: bool = True) -> Manifest:
    return Manifest(
        run=RunId(1, 1), boot_id="b", nonce="n", uid=0, obligations=ledgers.owed(prolog=prolog, epilog=epilog, at=1.0)
    )


def carry_out(ledger: Manifest, step: Step) -> Manifest:
    """What the ledger is after `step` went well."""
    match step:
        case Step.SKIP_PROLOG:
            return ledger.marked(Duty.PROLOG, Progress.NONE, 2.0)
        case Step.START_PROLOG:
            return ledger.marked(Duty.PROLOG, Progress.DONE, 2.0)
        case Step.INTERRUPTED_PROLOG:
            return ledger.marked(Duty.PROLOG, Progress.UNKNOWN, 2.0, "interrupted")
        case Step.START_TASK:
            return replace(ledger.marked(Duty.RUN, Progress.RUNNING, 2.0), leader=LEADER)
        case Step.WATCH_TASK | Step.AWAIT_TASK:
            return replace(ledger, exit=Exit(ExitSource.WAITID, 0, 3.0))
        case Step.GIVE_UP:
            return replace(ledger, exit=Exit(ExitSource.NEVER_STARTED, None, 3.0))
        case Step.CLEAR:
            return ledger.marked(Duty.RUN, Progress.DONE, 4.0)
        case Step.START_EPILOG:
            return ledger.marked(Duty.EPILOG, Progress.DONE, 5.0)
        case Step.INTERRUPTED_EPILOG:
            return ledger.marked(Duty.EPILOG, Progress.UNKNOWN, 5.0)
        case Step.AWAIT_ANSWER:
            return ledger.marked(Duty.REPORT, Progress.DONE, 6.0)
        case Step.AWAIT_RELEASE:
            return ledger.marked(Duty.RELEASE, Progress.DONE, 7.0)
        case _:
            raise AssertionError(step)


def drive(ledger: Manifest, sight: Sight) -> list[Step]:
    steps = []
    for _ in range(20):
        step = next_step(ledger, sight)
        steps.append(step)
        if step is Step.LEAVE:
            return steps
        ledger = carry_out(ledger, step)
    raise AssertionError(f"no end: {steps}")


def test_everything_falls_due_once_and_in_order() -> None:
    assert drive(new(), replace(SIGHT, task_watched=True)) == [
        Step.START_PROLOG, Step.START_TASK, Step.AWAIT_TASK, Step.CLEAR, Step.START_EPILOG, Step.AWAIT_ANSWER,
        Step.AWAIT_RELEASE, Step.LEAVE,
    ]  # fmt: skip


def test_verdict_before_the_start_means_that_nothing_of_the_user_runs() -> None:
    assert drive(replace(new(), verdict=CANCELLED), SIGHT)[:3] == [Step.SKIP_PROLOG, Step.GIVE_UP, Step.CLEAR]


ledger_states = st.builds(
    lambda progress, started, ended, verdict, prolog, epilog: _build(progress, started, ended, verdict, prolog, epilog),
    st.lists(st.sampled_from(Progress), min_size=2, max_size=2),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


def _build(hooks: list[Progress], started: bool, ended: bool, verdict: bool, prolog: bool, epilog: bool) -> Manifest:
    """A ledger as a supervisor may have left it anywhere."""
    ledger = new(prolog, epilog)
    if prolog:
        ledger = ledger.marked(Duty.PROLOG, hooks[0], 1.0, "said")
    if started and ledger.progress(Duty.PROLOG) in (Progress.NONE, Progress.DONE):
        ledger = replace(ledger.marked(Duty.RUN, Progress.RUNNING, 2.0), leader=LEADER)
        if ended:
            ledger = replace(ledger.marked(Duty.RUN, Progress.DONE, 2.0), exit=Exit(ExitSource.WAITID, 7 << 8, 3.0))
            if epilog:
                ledger = ledger.marked(Duty.EPILOG, hooks[1], 4.0)
    return replace(ledger, verdict=CANCELLED) if verdict and not ended else ledger


@settings(derandomize=True, max_examples=300)
@given(ledger_states, st.booleans())
def test_a_successor_reaches_the_end_from_wherever_a_supervisor_died(ledger: Manifest, same_boot: bool) -> None:
    steps = drive(ledger, Sight(same_boot=same_boot, may_start=True))
    for start, interrupted, duty in (
        (Step.START_PROLOG, Step.INTERRUPTED_PROLOG, Duty.PROLOG),
        (Step.START_EPILOG, Step.INTERRUPTED_EPILOG, Duty.EPILOG),
    ):
        ran_before = ledger.progress(duty) not in (Progress.NONE, Progress.OWED)
        assert steps.count(start) <= (0 if ran_before else 1)
        assert steps.count(interrupted) == (ledger.progress(duty) is Progress.RUNNING)
    assert steps.count(Step.START_TASK) <= (0 if ledger.leader else 1)
    if ledger.verdict or not same_boot:
        assert Step.START_TASK not in steps
    if ledger.exit is not None:
        assert {Step.WATCH_TASK, Step.AWAIT_TASK, Step.GIVE_UP}.isdisjoint(steps)
    assert steps[-3:] == [Step.AWAIT_ANSWER, Step.AWAIT_RELEASE, Step.LEAVE]


@settings(derandomize=True, max_examples=300)
@given(ledger_states)
def test_phases_only_go_forward(ledger: Manifest) -> None:
    seen = [phase(ledger)]
    while (step := next_step(ledger, replace(SIGHT, task_watched=True))) is not Step.LEAVE:
        ledger = carry_out(ledger, step)
        seen.append(phase(ledger))
    assert [PHASES.index(one) for one in seen] == sorted(PHASES.index(one) for one in seen)


WAITID, BYTE_7 = Exit(ExitSource.WAITID, 7 << 8, 3.0), 7 << 8
SEEN = Witness(LEADER, Exit(ExitSource.WITNESS, BYTE_7, 3.0))
OTHERS = Witness(replace(LEADER, inode=100), Exit(ExitSource.WITNESS, 0, 3.0))


@pytest.mark.parametrize(
    "slot, witness, kernel", list(itertools.product((None, WAITID), (None, SEEN, OTHERS), (None, BYTE_7)))
)
def test_whoever_saw_the_exit_is_believed_and_nobody_else(
    slot: Exit | None, witness: Witness | None, kernel: int | None
) -> None:
    ended = settle(LEADER, slot=slot, witness=witness, kernel=kernel, at=5.0, why_lost="nobody saw it")
    if slot or witness is SEEN or kernel is not None:
        assert ended.status == BYTE_7
        assert ended.detail == ""
    else:
        assert (ended.source, ended.status, ended.detail) == (ExitSource.UNKNOWN, None, "nobody saw it")


def test_two_witnesses_that_differ_are_both_kept() -> None:
    ended = settle(LEADER, slot=None, witness=SEEN, kernel=9, at=5.0, why_lost="")
    assert (ended.source, ended.status) == (ExitSource.WITNESS, BYTE_7)
    assert ended.detail == "the kernel's record differs: was killed by SIGKILL (raw 9)"


def test_ladder_asks_waits_kills_again_and_complains_once() -> None:
    ladder = Ladder(kill_wait_s=30.0, unkillable_s=60.0)
    assert ladder.next_rung(0.0) is Rung.TERM
    ladder = replace(ladder, asked_at=0.0)
    assert ladder.next_rung(29.9) is Rung.NOTHING
    assert ladder.due_in(10.0) == 20.0
    assert ladder.next_rung(30.0) is Rung.KILL
    ladder = replace(ladder, killed_at=30.0)
    assert ladder.next_rung(31.0) is Rung.KILL
    assert ladder.next_rung(90.0) is Rung.COMPLAIN
    assert replace(ladder, complained=True).next_rung(91.0) is Rung.KILL
