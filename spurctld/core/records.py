"""The records that the controller keeps: jobs, their runs, nodes, partitions. Only `cluster` and its verbs change them.

What is marked volatile is not stored: it is derived again, or asked again, after a start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from spurctld.core.states import UNLIMITED, JobState, NodeState, Phase, Progress, Reason
from spurctld.core.transitions import Story, new_story
from spurctld.core.values import (
    Exit,
    Grant,
    Gres,
    JobSpec,
    Machine,
    NodeSpec,
    PartitionSpec,
    Resources,
    RunKey,
    Share,
    Verdict,
)


@dataclass(slots=True)
class Part:
    """What one node bears of a run."""

    share: Share
    phase: Phase = Phase.SENT
    grant: Grant | None = None
    boot_id: str = ""  # of the node when it accepted
    lost: bool = False  # the node went silent with it: booked until the node proves it gone
    # volatile
    why_waiting: str = ""
    missing_since: float | None = None  # mono of the first complete list without it
    verdict_taken: bool = False  # the node answered that it has the verdict

    @property
    def node(self) -> str:
        return self.share.node

    @property
    def booked(self) -> bool:
        return self.phase is not Phase.RELEASED


@dataclass(slots=True)
class Run:
    """One attempt at a job. The first part is the batch node's."""

    key: RunKey
    parts: dict[str, Part]
    started_at: float
    verdict: Verdict | None = None
    exit: Exit | None = None  # set once, by the batch node's first word of it
    prolog: Progress = Progress.NOT_OWED  # of the controller
    epilog: Progress = Progress.NOT_OWED

    @property
    def batch(self) -> Part:
        return next(iter(self.parts.values()))

    @property
    def booked(self) -> bool:
        return any(part.booked for part in self.parts.values())

    @property
    def over(self) -> bool:
        """Whether nothing more is to come of it, unless from a silent node that will be told to end it."""
        return all(not part.booked or (part.lost and self.verdict is not None) for part in self.parts.values())

    @property
    def completing(self) -> bool:
        """Whether something of it is still to be waited for where waiting makes sense."""
        return any(part.booked and not part.lost for part in self.parts.values()) or self.epilog is Progress.UNDER_WAY


@dataclass(slots=True)
class Job:
    """A job, from its submission until its record is purged."""

    id: int
    spec: JobSpec
    submitted_at: float
    eligible_at: float
    state: JobState = JobState.PENDING
    attempt: int = 0  # of the last run; 0: never started
    priority: int = 1
    held: str = ""  # Reason.HELD_USER or another reason to hold; empty: not held
    reason: str = Reason.NONE
    state_desc: str = ""
    exit_raw: int = 0  # what ExitCode shows, as a wait status; pseudo statuses included
    started_at: float = 0.0
    ended_at: float = 0.0  # as its node saw it
    decided_at: float = 0.0  # when we came to know: its record is kept from then on
    suspended_at: float = 0.0
    suspended_s: float = 0.0
    restarts: int = 0
    launch_failures: int = 0  # in a row
    failed_node: str = ""
    stimulus: str = ""  # of its submission: follows it through every process's log
    runs: dict[int, Run] = field(default_factory=dict)  # the last attempt, and older ones that are still booked
    # volatile
    story: Story = field(default_factory=new_story)
    wait_reason: str = Reason.NONE  # what the last pass of the scheduler said
    wait_desc: str = ""
    looked_at: float = 0.0  # by the scheduler, wall clock
    deadline: float = math.inf  # mono
    purge_at: float = math.inf  # mono

    @property
    def run(self) -> Run | None:
        """The last attempt."""
        return self.runs.get(self.attempt)

    @property
    def completing(self) -> bool:
        """Whether it has ended, or goes back to the queue, and its last run is not yet gone."""
        run = self.run
        return not self.state.active and run is not None and run.completing

    @property
    def settled(self) -> bool:
        """Whether it has ended and nothing hangs on its record any more."""
        return self.state.finished and not self.completing and not any(run.booked for run in self.runs.values())

    def elapsed_s(self, at: float) -> float:
        """How long its run has run by the wall clock, suspensions taken out."""
        if not self.started_at:
            return 0.0
        until = self.ended_at or self.suspended_at or at
        return max(0.0, until - self.started_at - self.suspended_s)

    def remaining_s(self, at: float) -> float:
        """How long its run may still run; infinite without a limit, or while nothing counts."""
        limit = self.spec.time_limit_s
        if limit is None or limit == UNLIMITED or self.state is not JobState.RUNNING:
            return math.inf
        return max(0.0, limit - self.elapsed_s(at))

    @property
    def waits(self) -> bool:
        """Whether it belongs into the queue."""
        return self.state is JobState.PENDING and not self.held and not self.completing


@dataclass(slots=True)
class Node:
    """A machine, or a part of one, that runs jobs."""

    spec: NodeSpec
    order: int  # of its mention
    state: NodeState = NodeState.UNKNOWN
    machine: Machine | None = None  # None: never registered
    down_reason: str = ""
    drained: bool = False  # by an operator
    drain_reason: str = ""  # the operator's
    hook_drains: dict[str, float] = field(default_factory=dict)  # by a report, until an operator resumes: reason, since
    agent_drains: dict[str, float] = field(default_factory=dict)  # as the agent lists them: they lift by themselves
    reason_uid: int = 0
    reason_at: float = 0.0
    # volatile
    declared: bool = True  # in the configuration, now
    runs: set[RunKey] = field(default_factory=set)  # with a booked part here
    strays: dict[RunKey, Resources] = field(default_factory=dict)  # found there, not ours (any more): booked too
    cpus_allocated: int = 0
    memory_allocated_mb: int = 0
    gres_allocated: dict[tuple[str, str], int] = field(default_factory=dict)
    confirmed: bool = False  # heard of since this process started
    last_heard: float = 0.0  # mono
    cooldown_until: float = -math.inf  # mono: it refused a launch
    refusals: int = 0  # in a row
    load: float = 0.0
    free_memory_mb: int = 0
    last_busy_at: float = 0.0

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def draining(self) -> bool:
        return self.drained or bool(self.hook_drains) or bool(self.agent_drains)

    @property
    def cpus(self) -> int | None:
        """What it has to give; None: not known yet."""
        if self.spec.cpus is not None:
            return self.spec.cpus
        return self.machine.cpus if self.machine else None

    @property
    def memory_mb(self) -> int | None:
        if self.spec.memory_mb is not None:
            return self.spec.memory_mb
        return self.machine.memory_mb if self.machine else None

    @property
    def gres(self) -> tuple[Gres, ...] | None:
        if self.spec.gres is not None:
            return self.spec.gres
        return self.machine.gres if self.machine else None


@dataclass(slots=True)
class Partition:
    """A queue and the nodes that serve it."""

    spec: PartitionSpec
    queue: list[tuple[int, int]] = field(default_factory=list)  # (-priority, job id), sorted
    blocked: bool = False  # volatile: its first job waits, and what is behind waits for it

    @property
    def name(self) -> str:
        return self.spec.name
