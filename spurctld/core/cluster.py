"""All records of the controller together, their indexes, and the primitive changes that keep the two in step.

The verbs of the other modules change records through the methods here and never by themselves where an index or a
sum hangs on it. Whatever was touched by an event is put right (queue, timers) and saved when the event is over.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from spurctld.core.instructions import Instruction, Note, PurgeJob, Reply, RunHook, SaveJob, SaveNode, TerminateRun
from spurctld.core.records import Job, Node, Part, Partition, Run
from spurctld.core.states import HookKind, JobState, NodeState, PartitionState, Phase, Progress
from spurctld.core.transitions import (
    HOOK_STEPS,
    JOB_STEPS,
    NODE_STEPS,
    RUN_STEPS,
    Chapter,
    ImpossibleTransition,
)
from spurctld.core.values import NodeSpec, PartitionSpec, Policy, Refusal, Request, Resources, RunKey, Verdict


class Cluster:
    """The state of the controller. Lives as long as the process, or until a failed commit has it read anew."""

    def __init__(self, policy: Policy, nodes: Iterable[NodeSpec], partitions: Iterable[PartitionSpec]) -> None:
        self.policy = policy
        self.jobs: dict[int, Job] = {}
        self.nodes: dict[str, Node] = {spec.name: Node(spec, order) for order, spec in enumerate(nodes)}
        self.partitions: dict[str, Partition] = {spec.name: Partition(spec) for spec in partitions}
        self.next_job = policy.first_job_id
        self.active: set[int] = set()  # jobs that hold an allocation by right
        self.schedule_wanted = False
        self.shapes: dict[tuple[str, Request], Request | Refusal] = {}  # what submission found out about requests
        self.at = 0.0
        self.mono = 0.0
        self.stimulus = ""
        self.event = ""
        self.instructions: list[Instruction] = []
        self._touched: dict[int, bool] = {}  # job: whether it is new
        self._touched_nodes: dict[str, None] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._purges: list[tuple[float, int]] = []

    # An event's begin and end

    def begin(self, event: str, at: float, mono: float, stimulus: str) -> None:
        self.event, self.at, self.mono, self.stimulus = event, at, mono, stimulus
        self.instructions = []

    def finish(self) -> list[Instruction]:
        """Puts the indexes right for all that was touched and says what must be saved."""
        saves: list[Instruction] = []
        for number, new in self._touched.items():
            job = self.jobs.get(number)
            if job is not None:
                self.settle(job)
                saves.append(SaveJob(number, new))
        saves += [SaveNode(name) for name in self._touched_nodes]
        self._touched, self._touched_nodes = {}, {}
        return saves + self.instructions

    def tell(self, instruction: Instruction) -> None:
        self.instructions.append(instruction)

    def answer(self, reply: Reply) -> None:
        self.instructions.append(reply)

    def note(self, name: str, **facts: str | int | float) -> None:
        self.instructions.append(Note(name, tuple(facts.items()), self.stimulus))

    def touch(self, job: Job, what: str = "") -> None:
        """`job` was changed: its record is saved and its place in every index checked when the event is over."""
        self._touched.setdefault(job.id, False)
        if what:
            job.story.append(Chapter(self.at, self.stimulus, self.event, what))

    def touch_node(self, node: Node) -> None:
        self._touched_nodes[node.name] = None

    # Jobs

    def add_job(self, job: Job) -> None:
        self.jobs[job.id] = job
        self._touched[job.id] = True
        job.story.append(Chapter(self.at, self.stimulus, self.event, "submitted"))

    def forget_job(self, job: Job) -> None:
        """Drops a record that nothing hangs on any more."""
        for run in job.runs.values():
            if run.booked:
                raise ImpossibleTransition(f"job {job.id}", job.state, "purged, with resources booked", job.story)
        self._dequeue(job)
        del self.jobs[job.id]
        self._touched.pop(job.id, None)
        self.tell(PurgeJob(job.id))

    def move_job(self, job: Job, state: JobState, why: str = "") -> None:
        if (job.state, state) not in JOB_STEPS:
            raise ImpossibleTransition(f"job {job.id}", job.state, state, job.story)
        self.touch(job, f"{job.state.name} -> {state.name}{f', {why}' if why else ''}")
        job.state = state

    def settle(self, job: Job) -> None:
        """Puts `job` where its state says: queue, set of active jobs, timers; and its ended runs get their epilog."""
        self._owe_epilogs(job)
        if job.waits:
            self._enqueue(job)
        else:
            self._dequeue(job)
        if job.state.active:
            self.active.add(job.id)
        else:
            self.active.discard(job.id)
            job.deadline = math.inf
        if job.settled:
            if job.purge_at == math.inf:
                self._purge_later(job)
        else:
            job.purge_at = math.inf

    def partition_of(self, job: Job) -> Partition:
        """Its partition; one that the configuration no longer has is there, inactive, as long as a job is in it."""
        name = job.spec.partition
        if name not in self.partitions:
            self.partitions[name] = Partition(PartitionSpec(name, (), state=PartitionState.INACTIVE))
        return self.partitions[name]

    def _enqueue(self, job: Job) -> None:
        queue, entry = self.partition_of(job).queue, (-job.priority, job.id)
        at = bisect_left(queue, entry)
        if at == len(queue) or queue[at] != entry:
            insort(queue, entry)
            self.schedule_wanted = True

    def _dequeue(self, job: Job) -> None:
        partition = self.partition_of(job)
        entry = (-job.priority, job.id)
        at = bisect_left(partition.queue, entry)
        if at < len(partition.queue) and partition.queue[at] == entry:
            del partition.queue[at]
            self.schedule_wanted = True

    # Timers. Entries that no longer say what their job says are left in the heap until their time has come.

    def set_deadline(self, job: Job, mono: float) -> None:
        job.deadline = mono
        if mono != math.inf:
            heapq.heappush(self._deadlines, (mono, job.id))

    def overdue(self) -> Iterator[Job]:
        """The jobs whose time is up; each is given once."""
        while self._deadlines and self._deadlines[0][0] <= self.mono:
            deadline, number = heapq.heappop(self._deadlines)
            job = self.jobs.get(number)
            if job is not None and job.deadline == deadline:
                job.deadline = math.inf
                yield job

    def _purge_later(self, job: Job) -> None:
        age = max(0.0, self.at - job.decided_at)
        job.purge_at = self.mono + max(0.0, self.policy.min_job_age_s - age)
        heapq.heappush(self._purges, (job.purge_at, job.id))

    def outdated(self) -> Iterator[Job]:
        """The ended jobs that have been kept long enough."""
        while self._purges and self._purges[0][0] <= self.mono:
            purge_at, number = heapq.heappop(self._purges)
            job = self.jobs.get(number)
            if job is not None and job.purge_at == purge_at:
                yield job

    # Runs

    def part(self, key: RunKey, node: str) -> tuple[Job, Run, Part] | None:
        """The part of a run that is known here, with what it belongs to."""
        job = self.jobs.get(key.job)
        run = job.runs.get(key.attempt) if job else None
        part = run.parts.get(node) if run else None
        return (job, run, part) if job and run and part else None

    def move_part(self, job: Job, run: Run, part: Part, phase: Phase) -> None:
        if (part.phase, phase) not in RUN_STEPS:
            raise ImpossibleTransition(f"run {run.key} on {part.node}", part.phase, phase, job.story)
        self.touch(job, f"{run.key} on {part.node}: {part.phase.name} -> {phase.name}")
        if phase is Phase.RELEASED:
            self.unbook(run, part)
        part.phase = phase
        if phase is Phase.RELEASED and run.key.attempt != job.attempt and not run.booked:
            del job.runs[run.key.attempt]

    def mark_lost(self, job: Job, run: Run, part: Part, lost: bool, why: str) -> None:
        """The node of `part` is silent with it, or is heard of again."""
        part.lost = lost
        self.touch(job, f"{run.key} on {part.node}: {'lost' if lost else 'no longer lost'}: {why}")

    def book(self, run: Run, part: Part) -> None:
        node = self.nodes[part.node]
        node.runs.add(run.key)
        self._add(node, part.share.resources, 1)

    def unbook(self, run: Run, part: Part) -> None:
        node = self.nodes.get(part.node)
        if node is not None:
            node.runs.remove(run.key)
            self._add(node, part.share.resources, -1)
        part.lost, part.missing_since, part.why_waiting = False, None, ""
        self.schedule_wanted = True

    def set_strays(self, node: Node, strays: dict[RunKey, Resources]) -> None:
        """What is found on `node` and is not booked there as one of our runs."""
        if strays == node.strays:
            return
        for resources in node.strays.values():
            self._add(node, resources, -1)
        for resources in strays.values():
            self._add(node, resources, 1)
        node.strays = strays
        self.schedule_wanted = True

    def _add(self, node: Node, resources: Resources, sign: int) -> None:
        node.cpus_allocated += sign * resources.cpus
        node.memory_allocated_mb += sign * resources.memory_mb
        for one in resources.gres:
            key = (one.name, one.type)
            left = node.gres_allocated.get(key, 0) + sign * one.count
            if left:
                node.gres_allocated[key] = left
            else:
                node.gres_allocated.pop(key, None)
        node.last_busy_at = self.at

    def judge(self, job: Job, run: Run, verdict: Verdict, *, but: Part | None = None) -> None:
        """The first verdict on a run stands. Every node that may have been sent the launch is told, `but` that one."""
        if run.verdict is None:
            run.verdict = verdict
            self.touch(job, f"{run.key}: verdict {verdict.kind.value}: {verdict.reason}")
        self.order_end(run, but=but)

    def order_end(self, run: Run, *, but: Part | None = None) -> None:
        if run.verdict is None:
            return
        for part in run.parts.values():
            if part is not but and part.phase < Phase.ENDED and not part.lost:
                self.tell(TerminateRun(run.key, part.node, run.verdict))

    def _owe_epilogs(self, job: Job) -> None:
        for run in job.runs.values():
            current = run.key.attempt == job.attempt and job.state.active
            if run.epilog is Progress.OWED and run.over and not current:
                self.start_hook(job, run, HookKind.EPILOG)

    def start_hook(self, job: Job, run: Run, kind: HookKind) -> None:
        """UNDER_WAY is durable before the hook runs: found after a crash, it is known to have been interrupted."""
        if kind is HookKind.PROLOG:
            run.prolog = self.move_hook(job, run, run.prolog, Progress.UNDER_WAY)
        else:
            run.epilog = self.move_hook(job, run, run.epilog, Progress.UNDER_WAY)
        self.tell(RunHook(run.key, kind))

    def move_hook(self, job: Job, run: Run, now: Progress, then: Progress) -> Progress:
        if (now, then) not in HOOK_STEPS:
            raise ImpossibleTransition(f"a hook of {run.key}", now, then, job.story)
        self.touch(job, f"{run.key}: hook {now.value} -> {then.value}")
        return then

    # Nodes

    def move_node(self, node: Node, state: NodeState, reason: str = "") -> None:
        if node.state is not state and (node.state, state) not in NODE_STEPS:
            raise ImpossibleTransition(f"node {node.name}", node.state, state)
        node.state = state
        node.down_reason = reason if state.down else ""
        if state.down:
            node.reason_at, node.reason_uid = self.at, 0
        self.touch_node(node)
        self.schedule_wanted = True

    def partition_nodes(self, partition: Partition) -> Iterator[Node]:
        names = partition.spec.nodes
        if names is None:
            yield from self.nodes.values()
        else:
            yield from (self.nodes[name] for name in names if name in self.nodes)
