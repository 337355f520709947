"""What happens in a chaos run, and when: decided from a seed alone, whatever comes of it.

Jobs and faults come from two sources of chance, so that the jobs of a seed do not depend on the faults.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from tests.chaos.jobs import NEVER_BY_ITSELF, Ending, JobPlan


class FaultKind(Enum):
    """What may be asked for on the command line."""

    KILL = "kill"
    STOP = "stop"
    POINT = "point"
    DISK = "disk"
    CONTROLLER = "controller"
    NETWORK = "network"
    CLOCK = "clock"


class Victim(Enum):
    AGENT = "spurd"
    LAUNCHER = "launcher"
    SUPERVISOR = "supervisor"
    CONTROLLER = "spurctld"


class Cut(Enum):
    """How a node's link is cut."""

    DOWN = "link down"
    TO_NODE = "nothing reaches the node"
    FROM_NODE = "nothing leaves the node"
    SILENT = "nothing passes"


@dataclass(frozen=True, slots=True)
class Submit:
    job: JobPlan

    def __str__(self) -> str:
        return f"submit {self.job}"


@dataclass(frozen=True, slots=True)
class Cancel:
    index: int

    def __str__(self) -> str:
        return f"cancel chaos-{self.index}"


@dataclass(frozen=True, slots=True)
class Requeue:
    index: int

    def __str__(self) -> str:
        return f"requeue chaos-{self.index}"


@dataclass(frozen=True, slots=True)
class Kill:
    """End processes of one node, or the controller, at the same instant. `pick`, in [0, 1), chooses among several.

    Agent and controller are started again after `down_s`. `politely`: with SIGTERM, which only those two follow.
    """

    node: int
    victims: tuple[Victim, ...]
    pick: float
    down_s: float
    politely: bool = False

    def __str__(self) -> str:
        how = "end" if self.politely else "kill -9"
        return f"{how} {'+'.join(one.value for one in self.victims)} of n{self.node}, down for {self.down_s:.1f} s"


@dataclass(frozen=True, slots=True)
class Stop:
    node: int
    victim: Victim
    pick: float
    for_s: float

    def __str__(self) -> str:
        return f"stop {self.victim.value} of n{self.node} for {self.for_s:.1f} s"


@dataclass(frozen=True, slots=True)
class Order:
    """Have the next process that comes by a fault point die or wait there."""

    point: str
    order: str

    def __str__(self) -> str:
        return f"order {self.order!r} at {self.point}"


@dataclass(frozen=True, slots=True)
class Fill:
    """Fill the small disk of the controller or of the first node until `leave_bytes` are free."""

    victim: Victim
    leave_bytes: int
    for_s: float

    def __str__(self) -> str:
        return f"fill the disk of {self.victim.value} but for {self.leave_bytes} bytes for {self.for_s:.1f} s"


@dataclass(frozen=True, slots=True)
class CutLink:
    node: int
    cut: Cut
    for_s: float

    def __str__(self) -> str:
        return f"cut n{self.node} for {self.for_s:.1f} s: {self.cut.value}"


@dataclass(frozen=True, slots=True)
class StepClock:
    by_s: float
    for_s: float

    def __str__(self) -> str:
        return f"step the clock by {self.by_s:+.1f} s for {self.for_s:.1f} s"


Fault = Kill | Stop | Order | Fill | CutLink | StepClock
Action = Submit | Cancel | Requeue | Fault


@dataclass(frozen=True, slots=True)
class Decision:
    at_s: float  # after the begin of the run
    action: Action


@dataclass(frozen=True, slots=True)
class Options:
    nodes: int
    faults: frozenset[FaultKind]
    job_every_s: float = 2.0
    fault_every_s: float = 2.0


# Those at which the death of the process that comes by must be made good.
SUPERVISOR_POINTS = (
    "locked", "prolog-recorded", "prolog-forked", "prolog-started", "prolog-ended", "prolog-done", "task-forked",
    "task-told", "task-recorded", "task-started", "task-executed", "task-exited", "exit-recorded", "exit-in-manifest",
    "leftovers-killed", "epilog-recorded", "epilog-forked", "epilog-started", "epilog-ended", "epilog-done",
    "verdict-recorded", "ladder-term", "ladder-kill", "released",
)  # fmt: skip
LAUNCHER_POINTS = ("supervisor-forked", "witness-reaped")
AGENT_POINTS = (
    "launch-accepted",
    "launch-claimed",
    "report-due",
    "report-answered",
    "report-acknowledged",
    "leader-seen",
)
_WRITES = ("manifest-write", "spare-write", "slot-write")

_TOGETHER = (
    ((Victim.AGENT,), 8),
    ((Victim.SUPERVISOR,), 4),
    ((Victim.LAUNCHER,), 2),
    ((Victim.SUPERVISOR, Victim.LAUNCHER), 2),
    ((Victim.AGENT, Victim.SUPERVISOR), 2),
    ((Victim.AGENT, Victim.LAUNCHER), 1),
    ((Victim.AGENT, Victim.SUPERVISOR, Victim.LAUNCHER), 1),
    ((Victim.AGENT, Victim.CONTROLLER), 1),
    ((Victim.AGENT, Victim.SUPERVISOR, Victim.LAUNCHER, Victim.CONTROLLER), 1),
)
_WEIGHTS = {
    FaultKind.KILL: 8,
    FaultKind.STOP: 2,
    FaultKind.POINT: 3,
    FaultKind.DISK: 1,
    FaultKind.CONTROLLER: 2,
    FaultKind.NETWORK: 2,
    FaultKind.CLOCK: 1,
}


def decisions(seed: int, options: Options) -> Iterator[Decision]:
    """Without end, in the order of their times. The same for the same arguments."""
    jobs = _jobs(random.Random(f"{seed} jobs"), options)
    faults = _faults(random.Random(f"{seed} faults"), options)
    return heapq.merge(jobs, faults, key=lambda one: one.at_s)


def _jobs(chance: random.Random, options: Options) -> Iterator[Decision]:
    """Submissions, and what becomes of those jobs later."""
    now_s, later = 0.0, list[tuple[float, int, Cancel | Requeue]]()
    for index in itertools.count():
        now_s += chance.expovariate(1 / options.job_every_s)
        while later and later[0][0] <= now_s:
            at_s, _, action = heapq.heappop(later)
            yield Decision(at_s, action)
        job = job_plan(chance, index)
        if job.cancel_after_s is not None:
            heapq.heappush(later, (now_s + job.cancel_after_s, index, Cancel(index)))
        elif chance.random() < 0.1:
            heapq.heappush(later, (now_s + chance.uniform(0.5, 15.0), index, Requeue(index)))
        yield Decision(now_s, Submit(job))


def job_plan(chance: random.Random, index: int) -> JobPlan:
    """Some job. One that does not end by itself and has no time limit is cancelled."""
    ending = chance.choices(list(Ending), weights=(8, 3, 1, 2, 3, 2, 2, 2))[0]
    lasts_s = round(min(chance.expovariate(1 / 4.0), 20.0), 2)
    cancel_after_s = chance.uniform(0.0, 8.0) if chance.random() < 0.15 else None
    if ending in NEVER_BY_ITSELF and ending is not Ending.OVERRUN:
        cancel_after_s = chance.uniform(1.0, 15.0)
    return JobPlan(
        index,
        ending,
        number=_number(chance, ending),
        lasts_s=lasts_s,
        cpus=chance.choice((1, 1, 1, 2)),
        cancel_after_s=cancel_after_s,
        requeue=chance.choice((None, None, True, False)),
    )


def _number(chance: random.Random, ending: Ending) -> int:
    match ending:
        case Ending.SIGNAL:
            return chance.choice((1, 6, 9, 15))
        case Ending.CORE:
            return chance.choice((6, 11))
        case _:
            return chance.choice((0, 0, 1, 7, 42, 126, 255))


def _faults(chance: random.Random, options: Options) -> Iterator[Decision]:
    kinds = sorted(options.faults, key=lambda kind: kind.value)
    now_s = 0.0
    while kinds:
        now_s += chance.expovariate(1 / options.fault_every_s)
        kind = chance.choices(kinds, weights=[_WEIGHTS[one] for one in kinds])[0]
        yield Decision(now_s, fault(chance, kind, options.nodes))


def fault(chance: random.Random, kind: FaultKind, nodes: int) -> Fault:
    """Some fault of this kind."""
    node = chance.randint(1, nodes)
    match kind:
        case FaultKind.KILL:
            victims = chance.choices([who for who, _ in _TOGETHER], weights=[often for _, often in _TOGETHER])[0]
            politely = victims == (Victim.AGENT,) and chance.random() < 0.25
            return Kill(node, victims, chance.random(), _absence_s(chance), politely)
        case FaultKind.STOP:
            return Stop(node, chance.choice(list(Victim)), chance.random(), chance.uniform(0.5, 9.0))
        case FaultKind.POINT:
            return _order(chance)
        case FaultKind.DISK:
            victim = chance.choice((Victim.AGENT, Victim.AGENT, Victim.CONTROLLER))
            return Fill(victim, chance.choice((0, 0, 4096, 100_000)), chance.uniform(0.5, 6.0))
        case FaultKind.CONTROLLER:
            return Kill(node, (Victim.CONTROLLER,), 0.0, _absence_s(chance), chance.random() < 0.5)
        case FaultKind.NETWORK:
            return CutLink(node, chance.choice(list(Cut)), chance.uniform(0.5, 15.0))
        case FaultKind.CLOCK:
            return StepClock(chance.choice((-1, 1)) * chance.uniform(1.0, 40.0), chance.uniform(1.0, 10.0))


def _order(chance: random.Random) -> Order:
    if chance.random() < 0.2:
        return Order(chance.choice(_WRITES), "fail ENOSPC")
    order = "kill" if chance.random() < 0.8 else f"delay {chance.uniform(0.1, 2.0):.2f}"
    return Order(chance.choice((*SUPERVISOR_POINTS, *LAUNCHER_POINTS, *AGENT_POINTS)), order)


def _absence_s(chance: random.Random) -> float:
    """Mostly short, as a restart is; now and then longer than a node may be silent."""
    return chance.uniform(0.0, 1.5) if chance.random() < 0.85 else chance.uniform(2.0, 14.0)
