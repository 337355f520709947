"""What is done next for a run, from what is known of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spurd.runs import (
    Ask,
    Connect,
    Done,
    KillSupervisor,
    Known,
    Link,
    Lock,
    Now,
    Order,
    Report,
    Supervise,
    Wait,
    due_ask,
    due_report,
    next_step,
    reckoned,
    told_phase,
)
from spurd.runstate import Phase, RunState
from spurstepd.ids import RunId
from spurstepd.ledger import Exit, ExitSource, Grant, Process, Verdict, VerdictKind

RUN = RunId(42, 1)
PATIENCE_S = 30.0
NOW = Now(1000.0, 5000.0)
STATE = RunState(RUN, Phase.RUNNING, 0, leader=Process(5, 6, 7))
EXITED = replace(STATE, phase=Phase.ENDED, exit=Exit(ExitSource.WAITID, 0, 0.0))
FINISHED = replace(EXITED, phase=Phase.FINISHED)
ANSWERED = replace(EXITED, phase=Phase.ANSWERED)
UP = Known(RUN, Grant(), lock=Lock.HELD, link=Link.UP, state=STATE)
TERMINATE = Ask(Order.TERMINATE, (("kind", "cancelled"),), 1)


def step(known: Known, now: Now = NOW) -> object:
    return next_step(reckoned(known, now), now, PATIENCE_S)


def test_a_fresh_run_is_given_a_supervisor() -> None:
    assert step(Known(RUN, Grant(), lock=Lock.FREE)) == Supervise()


def test_a_run_found_at_a_start_is_first_looked_for_alive() -> None:
    assert step(Known(RUN, Grant())) == Connect()


@pytest.mark.parametrize("lock", [Lock.HELD, Lock.UNKNOWN])
def test_what_may_live_is_connected_to_and_not_succeeded(lock: Lock) -> None:
    """R25: unreadable is not dead."""
    assert step(replace(UP, link=Link.DOWN, lock=lock)) == Connect()


def test_a_run_that_goes_on_needs_nothing() -> None:
    assert step(UP) == Wait()


def test_a_slow_supervisor_is_waited_for_as_long_as_nobody_needs_it() -> None:
    slow = replace(UP, link=Link.OPENING, state=None, asked_since=0.0)
    assert step(slow, Now(1e9, 1e9)) == Wait()


def test_a_supervisor_that_is_needed_has_its_patience_and_is_killed_then() -> None:
    needed = replace(UP, wishes=(TERMINATE,), asked_since=NOW.monotonic)
    assert step(needed) == TERMINATE
    assert step(needed, Now(NOW.monotonic + PATIENCE_S, 0.0)) == KillSupervisor()
    opening = replace(needed, link=Link.OPENING)
    assert step(opening) == Wait(NOW.monotonic + PATIENCE_S)
    assert step(opening, Now(NOW.monotonic + PATIENCE_S, 0.0)) == KillSupervisor()


def test_a_dead_supervisor_is_succeeded_and_not_killed() -> None:
    dead = replace(UP, link=Link.DOWN, lock=Lock.FREE, wishes=(TERMINATE,), asked_since=0.0)
    assert step(dead) == Supervise()


def test_a_failure_is_waited_out() -> None:
    assert step(replace(UP, link=Link.DOWN, not_before=NOW.monotonic + 3)) == Wait(NOW.monotonic + 3)


def test_a_run_may_start_once_it_is_ready() -> None:
    start = Ask(Order.START, (), 1)
    waiting = replace(UP, wishes=(start,), state=replace(STATE, phase=Phase.PROLOG, leader=None))
    assert step(waiting) == Wait()
    assert step(replace(waiting, state=replace(STATE, phase=Phase.READY, leader=None))) == start


def test_the_report_is_acknowledged_only_once_it_is_answered() -> None:
    """R13"""
    assert step(replace(UP, state=FINISHED)) == Wait()
    answered = replace(UP, state=FINISHED, reported=Report.FINISHED, answer="recorded")
    assert step(answered) == Ask(Order.ACKNOWLEDGE, (("answer", "recorded"),))


def test_a_run_is_not_released_before_its_drain_is_noted() -> None:
    """R16"""
    drained = replace(FINISHED, drain="epilog failed")
    waiting = replace(UP, state=drained, reported=Report.FINISHED, answer="unknown_job")
    assert step(waiting) == Wait()
    assert step(replace(waiting, drain_told=True)) == Ask(Order.NOTE_DRAIN)
    assert step(replace(waiting, drain_told=True, drain_noted=True)) == Ask(
        Order.ACKNOWLEDGE, (("answer", "unknown_job"),)
    )
    assert step(replace(UP, state=replace(drained, phase=Phase.ANSWERED))) == Wait()
    assert step(replace(UP, state=replace(drained, phase=Phase.ANSWERED, drain_noted=True))) == Ask(Order.RELEASE)


def test_an_answered_run_is_released_once() -> None:
    assert step(replace(UP, state=ANSWERED)) == Ask(Order.RELEASE)
    leaving = replace(UP, state=ANSWERED, released=True, asked_since=NOW.monotonic)
    assert step(leaving) == Wait(NOW.monotonic + PATIENCE_S)


def test_nothing_is_owed_once_the_controller_knows_of_the_release() -> None:
    gone = replace(UP, lock=Lock.GONE, link=Link.DOWN, state=ANSWERED)
    assert due_report(gone) is Report.RELEASED
    assert step(gone) == Wait()
    assert step(replace(gone, reported=Report.RELEASED)) == Done()


def test_a_supervisor_that_lets_its_deadline_pass_is_looked_at() -> None:
    late = replace(UP, deadline=NOW.boottime)
    assert step(late) == Ask(Order.LOOK)
    assert step(replace(late, deadline=NOW.boottime + 5)) == Wait(NOW.monotonic + 5)
    verdict = Verdict(VerdictKind.TIMEOUT, 0, 0.0)
    assert step(replace(late, state=replace(STATE, phase=Phase.ENDING, verdict=verdict))) == Wait()


@pytest.mark.parametrize(
    ("state", "report", "phase"),
    [
        (replace(STATE, phase=Phase.PROLOG, leader=None), None, "accepted"),
        (replace(STATE, phase=Phase.READY, leader=None), Report.READY, "ready"),
        (STATE, Report.STARTED, "running"),
        (replace(STATE, phase=Phase.ENDING), Report.STARTED, "running"),
        (EXITED, Report.ENDED, "ended"),
        (FINISHED, Report.FINISHED, "finished"),
        (ANSWERED, None, "finished"),
    ],
)
def test_the_controller_is_told_of_the_latest_phase(state: RunState, report: Report | None, phase: str) -> None:
    known = replace(UP, state=state)
    assert due_report(known) is report
    assert told_phase(known) == phase
    if report is not None:
        assert due_report(replace(known, reported=report)) is None
        assert due_report(replace(known, reported=Report.READY)) is (None if report is Report.READY else report)


def test_a_record_alone_reports_nothing() -> None:
    """What is left of a run, only its supervisor can tell."""
    assert due_report(replace(UP, link=Link.DOWN, state=FINISHED)) is None


states = st.builds(
    RunState,
    run=st.just(RUN),
    phase=st.sampled_from(Phase),
    uid=st.just(0),
    leader=st.sampled_from([None, STATE.leader]),
    exit=st.sampled_from([None, EXITED.exit]),
    drain=st.sampled_from([None, "why"]),
    drain_noted=st.sampled_from([None, False, True]),
)
knowns = st.builds(
    Known,
    run=st.just(RUN),
    granted=st.just(Grant()),
    lock=st.sampled_from(Lock),
    link=st.sampled_from(Link),
    state=st.none() | states,
    deadline=st.none() | st.floats(0, 1e4),
    wishes=st.sampled_from([(), (TERMINATE,), (Ask(Order.START, (), 2),)]),
    reported=st.none() | st.sampled_from(Report),
    answer=st.sampled_from([None, "recorded"]),
    drain_told=st.booleans(),
    released=st.booleans(),
    asked_since=st.none() | st.floats(0, 2e3),
    not_before=st.floats(0, 2e3),
)


@given(knowns, st.floats(0, 2e3), st.floats(0, 1e4))
def test_whatever_is_known_no_step_breaks_a_promise(known: Known, monotonic: float, boottime: float) -> None:
    now = Now(monotonic, boottime)
    known = reckoned(known, now)
    taken = next_step(known, now, PATIENCE_S)
    ask = due_ask(known, now)
    match taken:
        case Supervise():
            assert known.lock is Lock.FREE and known.link is Link.DOWN
        case Connect():
            assert known.lock in (Lock.HELD, Lock.UNKNOWN) and known.link is Link.DOWN
        case KillSupervisor():
            assert ask is not None or known.released
            assert known.lock is not Lock.FREE
            assert known.asked_since is not None and now.monotonic - known.asked_since >= PATIENCE_S - 1e-6
        case Ask():
            assert known.link is Link.UP
            if taken.order in (Order.ACKNOWLEDGE, Order.RELEASE):
                state = known.state
                assert state is not None
                assert state.drain is None or state.drain_noted or known.drain_noted
                assert known.answer is not None or state.phase is Phase.ANSWERED
        case Wait(until):
            assert until is None or until >= now.monotonic - 1e-6
        case Done():
            assert known.lock is Lock.GONE and known.reported is Report.RELEASED
