"""What is known of each run on this node, and what has to be done next for it.

Pure. A `Known` is all that the decisions look at; `next_step` says what its caretaker does now, `due_report` what the
controller has to be told. A fresh launch, a run found after a restart, one whose supervisor died and one of another
boot differ in what is known of them, not in the code that drives them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from spurd.runstate import Phase, RunState
from spurstepd.ids import RunId
from spurstepd.ledger import Grant


class Lock(Enum):
    """The flock of the run directory: the proof of life of a supervisor."""

    HELD = "held"
    FREE = "free"
    UNKNOWN = "unknown"  # could not be told, which is not dead
    GONE = "gone"  # the directory is no more: released


class Link(Enum):
    """The connection on which the supervisor tells of every change."""

    DOWN = "down"
    OPENING = "opening"  # it may take as long as it likes: slow is not dead
    UP = "up"


class Report(Enum):
    """What the controller is told, in order; a later one makes the earlier ones needless."""

    READY = 1
    STARTED = 2
    ENDED = 3
    FINISHED = 4
    RELEASED = 5


class Order(Enum):
    """What a supervisor can be asked to do; the value is the method of org.spur.Run."""

    TERMINATE = "Terminate"
    START = "Start"
    SIGNAL = "Signal"
    SUSPEND = "Suspend"
    RESUME = "Resume"
    LOOK = "GetState"  # nothing but to answer
    ACKNOWLEDGE = "Acknowledge"
    NOTE_DRAIN = "DrainNoted"
    RELEASE = "Release"


@dataclass(frozen=True, slots=True)
class Ask:
    """One call to the supervisor. `ticket` tells whose wish it is; 0: the ledger's own."""

    order: Order
    parameters: tuple[tuple[str, int | str], ...] = ()
    ticket: int = 0


@dataclass(frozen=True, slots=True)
class Connect:
    """Open the link."""


@dataclass(frozen=True, slots=True)
class Supervise:
    """Have a supervisor started on the directory: the first one or a successor."""


@dataclass(frozen=True, slots=True)
class KillSupervisor:
    """It lives, is needed and does not answer: end it, so that a successor can act."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until something changes, or the monotonic time `until`."""

    until: float | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is owed any more."""


Step = Ask | Connect | Supervise | KillSupervisor | Wait | Done


@dataclass(frozen=True, slots=True)
class Now:
    """The clocks, in seconds: for graces, and for the deadline in a manifest (CLOCK_BOOTTIME)."""

    monotonic: float
    boottime: float


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one run. All times are monotonic seconds but `deadline`, which is CLOCK_BOOTTIME."""

    run: RunId
    granted: Grant
    nonce: str | None = None  # None: its record could not be read
    lock: Lock = Lock.UNKNOWN
    link: Link = Link.DOWN
    state: RunState | None = None
    deadline: float | None = None  # when the supervisor would have acted at the latest
    wishes: tuple[Ask, ...] = ()  # of callers, not carried out yet
    reported: Report | None = None  # the latest that the controller has answered
    answer: str | None = None  # its answer to FINISHED
    drain_told: bool = False  # the controller has the drain of this run ...
    drain_noted: bool = False  # ... and the supervisor knows that it has
    released: bool = False  # the supervisor has agreed to leave
    asked_since: float | None = None  # something is wanted of the supervisor and it has not reacted
    not_before: float = 0.0  # after a failure: try again then


def due_ask(known: Known, now: Now) -> Ask | None:
    """What the supervisor has to be asked now."""
    state = known.state
    for wish in known.wishes:
        if wish.order is not Order.START or _may_be_started(state):
            return wish
    if state is None or known.released:
        return None
    drain_settled = state.drain is None or known.drain_noted or bool(state.drain_noted)
    if known.drain_told and not drain_settled:
        return Ask(Order.NOTE_DRAIN)
    if state.phase is Phase.FINISHED and known.answer is not None and drain_settled:
        return Ask(Order.ACKNOWLEDGE, (("answer", known.answer),))
    if state.phase is Phase.ANSWERED and drain_settled:
        return Ask(Order.RELEASE)
    if _is_overdue(known, state, now):
        return Ask(Order.LOOK)
    return None


def _may_be_started(state: RunState | None) -> bool:
    return state is not None and state.phase.rank >= Phase.READY.rank


def _is_overdue(known: Known, state: RunState, now: Now) -> bool:
    """The run is past its deadline and its supervisor has not begun to end it."""
    late = known.deadline is not None and now.boottime >= known.deadline
    return late and state.exit is None and state.verdict is None and state.phase.rank < Phase.ENDING.rank


def reckoned(known: Known, now: Now) -> Known:
    """`known` with `asked_since` as it has to be: since when something is wanted of a supervisor that may live."""
    wanted = due_ask(known, now) is not None or known.released
    if not wanted or known.lock in (Lock.FREE, Lock.GONE):
        return replace(known, asked_since=None)
    return known if known.asked_since is not None else replace(known, asked_since=now.monotonic)


def next_step(known: Known, now: Now, patience_s: float) -> Step:
    """What to do for the run now. `patience_s`: how long a supervisor that is needed may not react.

    `known` is as `reckoned`.
    """
    if known.lock is Lock.GONE:
        return Done() if known.reported is Report.RELEASED else Wait()
    if known.asked_since is not None and now.monotonic >= known.asked_since + patience_s:
        return KillSupervisor()
    ask = due_ask(known, now)
    if now.monotonic < known.not_before:
        return Wait(known.not_before)
    match known.link:
        case Link.UP:
            return Wait(_next_look(known, now, patience_s)) if ask is None else ask
        case Link.OPENING:
            return Wait(_next_look(known, now, patience_s))
        case Link.DOWN:
            pass
    if known.lock is Lock.FREE:
        return Supervise()
    return Connect()


def _next_look(known: Known, now: Now, patience_s: float) -> float | None:
    """When time alone will change the decision."""
    times = []
    if known.asked_since is not None:
        times.append(known.asked_since + patience_s)
    if known.deadline is not None and now.boottime < known.deadline:
        times.append(now.monotonic + known.deadline - now.boottime)
    return min(times, default=None)


def due_report(known: Known) -> Report | None:
    """What the controller has to be told next of the run; None: it has been told all there is."""
    latest = _latest_report(known)
    if latest is None or (known.reported is not None and known.reported.value >= latest.value):
        return None
    return latest


def _latest_report(known: Known) -> Report | None:
    if known.lock is Lock.GONE:
        return Report.RELEASED
    state = known.state
    if state is None or known.link is not Link.UP:
        return None
    match state.phase:
        case Phase.ANSWERED:
            return None  # its report is answered; it waits to be released
        case Phase.FINISHED:
            return Report.FINISHED
        case _ if state.exit is not None:
            return Report.ENDED
        case Phase.RUNNING | Phase.ENDING if state.leader is not None:
            return Report.STARTED
        case Phase.READY:
            return Report.READY
    return None


def told_phase(known: Known) -> str:
    """The word of the contract with the controller for how far the run is."""
    if known.state is None:
        return "accepted"
    match known.state.phase:
        case Phase.ACCEPTED | Phase.PROLOG:
            return "accepted"
        case Phase.READY:
            return "ready"
        case Phase.FINISHED | Phase.ANSWERED:
            return "finished"
        case Phase.ENDED:
            return "ended"
        case Phase.RUNNING | Phase.ENDING:
            return "running" if known.state.exit is None else "ended"
