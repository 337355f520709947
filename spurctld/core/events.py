"""What can happen to the controller. Every event brings its own time: the core has no clock.

`at` is wall-clock seconds since the epoch, for humans and for what outlives the process; `mono` is monotonic seconds
of this process, for graces and limits. `stimulus` follows what the event caused through every process's log.
"""

from __future__ import annotations

from dataclasses import dataclass

from spurctld.core.states import Fault, HookKind, NodeOrder, Phase, SignalScope
from spurctld.core.values import Grant, JobSpec, Machine, RunKey, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    at: float
    mono: float
    stimulus: str = ""


# From users. `by_uid` is proven by the shell; 0 may do everything.


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted(Event):
    spec: JobSpec
    test_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAsked(Event):
    jobs: tuple[int, ...]
    by_uid: int
    signal: int = 0  # 0: cancel
    scope: SignalScope = SignalScope.STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendAsked(Event):
    job: int
    by_uid: int
    resume: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueAsked(Event):
    job: int
    by_uid: int
    hold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldAsked(Event):
    job: int
    by_uid: int
    release: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesOrdered(Event):
    nodes: tuple[str, ...]
    order: NodeOrder
    reason: str
    by_uid: int


# From agents


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRegistered(Event):
    node: str
    machine: Machine
    runs: tuple[RunState, ...]  # complete
    drain_reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBeat(Event):
    node: str
    incarnation: str
    runs: tuple[RunState, ...]  # complete
    drain_reasons: tuple[str, ...] = ()
    load: float = 0.0
    free_memory_mb: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeft(Event):
    node: str
    incarnation: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReported(Event):
    node: str
    phase: Phase
    state: RunState
    drain_reason: str = ""
    requeue_held: bool = False


# What came of an instruction to an agent


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTaken(Event):
    run: RunKey
    node: str
    grant: Grant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRefused(Event):
    """The node did not take the run. `proven`: nothing of it is there or will come to be there."""

    run: RunKey
    node: str
    fault: Fault
    text: str
    proven: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminateTaken(Event):
    run: RunKey
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAbsent(Event):
    """The node answered that it has no such run, and that none will come from an earlier launch."""

    run: RunKey
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswered(Event):
    """A node that was known before this process started is there, under this incarnation."""

    node: str
    incarnation: str


# From the shell itself


@dataclass(frozen=True, slots=True, kw_only=True)
class HookEnded(Event):
    run: RunKey
    kind: HookKind
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Event):
    """Time has passed: limits, silent nodes, old records. For `away_s` of it the controller itself stood still."""

    away_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePass(Event):
    """Start what can start; `backfill` looks behind blocked jobs as well."""

    backfill: bool = False
