"""What the core wants done. The shell stores what is to be saved first, and only then lets the rest leave the process.

Instructions to nodes may be carried out twice or get lost: the reconciling at each heartbeat derives again what is
still owed. So a full queue or a dead connection never needs an answer of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from spurctld.core.states import Answer, HookKind, SignalScope
from spurctld.core.values import BeatNoted, CancelResults, Done, Refusal, RunKey, Submitted, Verdict


@dataclass(frozen=True, slots=True)
class Reply:
    """What the sender of the event is told. At most one per event."""

    value: Submitted | Refusal | Done | CancelResults | BeatNoted | Answer


# To the store: what changed. The shell encodes the records as they stand when it commits.


@dataclass(frozen=True, slots=True)
class SaveJob:
    job: int
    new: bool = False  # its spec, too


@dataclass(frozen=True, slots=True)
class PurgeJob:
    job: int


@dataclass(frozen=True, slots=True)
class SaveNode:
    node: str


# To nodes


@dataclass(frozen=True, slots=True)
class LaunchRun:
    run: RunKey
    node: str
    stimulus: str = ""


@dataclass(frozen=True, slots=True)
class StartRun:
    run: RunKey
    node: str


@dataclass(frozen=True, slots=True)
class TerminateRun:
    run: RunKey
    node: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class SignalRun:
    run: RunKey
    node: str
    signal: int
    scope: SignalScope
    by_uid: int


@dataclass(frozen=True, slots=True)
class SuspendRun:
    run: RunKey
    node: str
    resume: bool


@dataclass(frozen=True, slots=True)
class PingNode:
    node: str


# To the shell


@dataclass(frozen=True, slots=True)
class RunHook:
    run: RunKey
    kind: HookKind


@dataclass(frozen=True, slots=True)
class Note:
    """Something for the log: a past event with a constant name."""

    name: str
    facts: tuple[tuple[str, str | int | float], ...] = ()
    stimulus: str = ""


NodeInstruction = LaunchRun | StartRun | TerminateRun | SignalRun | SuspendRun | PingNode
Instruction = Reply | SaveJob | PurgeJob | SaveNode | NodeInstruction | RunHook | Note
