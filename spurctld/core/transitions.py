"""Which steps the machines may take, and the story that explains one that they may not.

A machine that is asked for a step outside its table stands before a bug of ours; the exception then carries what
happened to that job, as far back as it is remembered.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from spurctld.core.states import JobState, NodeState, Phase, Progress

_J = JobState
_ENDS = frozenset(state for state in JobState if state.finished)

JOB_STEPS: frozenset[tuple[JobState, JobState]] = frozenset(
    {
        (_J.PENDING, _J.CONFIGURING),
        (_J.PENDING, _J.RUNNING),  # started on one node, or taken back from a node that had been given up
        (_J.CONFIGURING, _J.RUNNING),
        (_J.RUNNING, _J.SUSPENDED),
        (_J.SUSPENDED, _J.RUNNING),
        # requeued
        (_J.CONFIGURING, _J.PENDING),
        (_J.RUNNING, _J.PENDING),
        (_J.SUSPENDED, _J.PENDING),
        # never ran, or never will
        (_J.PENDING, _J.CANCELLED),
    }
    | {(start, end) for start in (_J.CONFIGURING, _J.RUNNING, _J.SUSPENDED) for end in _ENDS}
    | {(end, _J.PENDING) for end in _ENDS}  # scontrol requeue of a job that has ended
)

RUN_STEPS: frozenset[tuple[Phase, Phase]] = frozenset(
    (start, end)
    for start in Phase
    for end in Phase
    if start < end  # a node may tell of several steps at once
)

HOOK_STEPS: frozenset[tuple[Progress, Progress]] = frozenset(
    {
        (Progress.OWED, Progress.UNDER_WAY),
        (Progress.OWED, Progress.NOT_OWED),  # the run ended before its prolog began
        (Progress.UNDER_WAY, Progress.DONE),
        (Progress.UNDER_WAY, Progress.FAILED),
        (Progress.UNDER_WAY, Progress.UNKNOWN),
    }
)


_N = NodeState
NODE_STEPS: frozenset[tuple[NodeState, NodeState]] = frozenset(
    {
        (_N.UNKNOWN, _N.UP),
        (_N.UNKNOWN, _N.SILENT),
        (_N.UNKNOWN, _N.DOWN),
        (_N.UP, _N.SILENT),
        (_N.UP, _N.LEFT),
        (_N.UP, _N.DOWN),
        (_N.SILENT, _N.UP),
        (_N.SILENT, _N.DOWN),  # ordered, or it came back where the site wants to be asked first
        (_N.LEFT, _N.UP),
        (_N.LEFT, _N.DOWN),
        (_N.DOWN, _N.UP),
        (_N.DOWN, _N.SILENT),  # resumed while nothing is heard of it
    }
)

STORY_LENGTH = 40


@dataclass(frozen=True, slots=True)
class Chapter:
    """One thing that happened to a job."""

    at: float
    stimulus: str
    event: str
    what: str

    def __str__(self) -> str:
        return f"{self.at:.3f} {self.event}{f' [{self.stimulus}]' if self.stimulus else ''}: {self.what}"


Story = deque[Chapter]


def new_story() -> Story:
    return deque(maxlen=STORY_LENGTH)


class ImpossibleTransition(Exception):
    """A machine was asked for a step that it does not have: a bug of the controller, told with its story."""

    def __init__(self, what: str, start: object, end: object, story: Story | tuple[Chapter, ...] = ()) -> None:
        lines = "".join(f"\n  {chapter}" for chapter in story)
        super().__init__(
            f"{what} cannot go from {_name(start)} to {_name(end)}{'; its story:' if lines else ''}{lines}"
        )
        self.what, self.start, self.end, self.story = what, start, end, tuple(story)


def _name(state: object) -> str:
    return str(getattr(state, "name", state))
