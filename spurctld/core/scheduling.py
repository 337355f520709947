"""A pass of the scheduler on the records: shows `schedule` what waits and what is free, and begins what it starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from spurctld.core.cluster import Cluster
from spurctld.core.ends import start_clock, verdict
from spurctld.core.events import SchedulePass
from spurctld.core.instructions import LaunchRun
from spurctld.core.records import Job, Node, Part, Partition, Run
from spurctld.core.schedule import Lane, Release, Room, Start, Wait, Waiting, inventory, plan
from spurctld.core.states import HookKind, JobState, NodeState, PartitionState, Phase, Progress, Reason, VerdictKind
from spurctld.core.values import Request, Resources, RunKey


def run_pass(cluster: Cluster, event: SchedulePass) -> None:
    cluster.schedule_wanted = False
    lanes = [
        _lane(cluster, partition)
        for partition in cluster.partitions.values()
        if partition.queue and partition.spec.state in (PartitionState.UP, PartitionState.DRAIN)
    ]
    if not lanes:
        return
    usable = {name for lane in lanes for name in lane.usable}
    rooms = {name: room_of(cluster.nodes[name]) for name in usable}
    backfill = event.backfill and cluster.policy.backfill
    decided = plan(
        lanes,
        rooms,
        releases=(lambda: list(_releases(cluster))) if backfill else None,
        budget=cluster.policy.backfill_depth,
    )
    cluster.schedule_wanted = decided.unfinished
    for lane in lanes:
        cluster.partitions[lane.spec.name].blocked = lane.spec.name in decided.blocked
    for wait in decided.waits:
        _note_wait(cluster, wait)
    for start in decided.starts:
        _begin(cluster, start)


def can_start_jobs(cluster: Cluster, node: Node) -> bool:
    """Whether new runs may be sent there now."""
    return (
        node.state is NodeState.UP
        and node.confirmed
        and node.machine is not None
        and not node.draining
        and node.cooldown_until <= cluster.mono
    )


def capacity(node: Node) -> Resources:
    return Resources(node.cpus or 0, node.memory_mb or 0, node.gres or ())


def room_of(node: Node) -> Room:
    whole = capacity(node)
    free = inventory(whole)
    for key, count in node.gres_allocated.items():
        free[key] = free.get(key, 0) - count
    return Room(node.name, whole.cpus - node.cpus_allocated, whole.memory_mb - node.memory_allocated_mb, free, whole)


def _lane(cluster: Cluster, partition: Partition) -> Lane:
    usable: list[Node] = []
    absent: list[Node] = []
    for node in cluster.partition_nodes(partition):
        (usable if can_start_jobs(cluster, node) else absent).append(node)
    usable.sort(key=lambda node: (node.spec.weight, node.order))
    return Lane(
        partition.spec,
        _queue(cluster, partition),
        tuple(node.name for node in usable),
        frozenset(node.name for node in absent),
    )


def _queue(cluster: Cluster, partition: Partition) -> Iterator[Waiting]:
    for _, number in partition.queue:
        job = cluster.jobs[number]
        yield Waiting(number, _request(job), job.spec.time_limit_s, job.priority)


def _request(job: Job) -> Request:
    """Not where an earlier attempt may still be: a node ends that one before it takes another."""
    request = job.spec.request
    if not any(run.booked for run in job.runs.values()):
        return request
    old = {part.node for run in job.runs.values() for part in run.parts.values() if part.booked}
    return replace(request, excluded=request.excluded | old)


def _releases(cluster: Cluster) -> Iterator[Release]:
    """Everything booked, and when it will be free at the latest. What is lost with a silent node is not counted on."""
    for node in cluster.nodes.values():
        for key in node.runs:
            job = cluster.jobs[key.job]
            part = job.runs[key.attempt].parts[node.name]
            if part.lost:
                continue
            current = key.attempt == job.attempt and job.state.active
            yield Release(_ends_in(cluster, job) if current else 0.0, node.name, part.share.resources)


def _ends_in(cluster: Cluster, job: Job) -> float:
    limit = Waiting(job.id, job.spec.request, job.spec.time_limit_s).runs_for_s
    return max(0.0, limit - job.elapsed_s(cluster.at))


def _note_wait(cluster: Cluster, wait: Wait) -> None:
    job = cluster.jobs[wait.job]
    job.wait_reason, job.wait_desc, job.looked_at = wait.reason, wait.desc, cluster.at


def _begin(cluster: Cluster, start: Start) -> None:
    """Commits an attempt: from here on the launch may reach its nodes."""
    job = cluster.jobs[start.job]
    for old in list(job.runs.values()):
        _leave_behind(cluster, job, old)
    job.attempt += 1
    run = Run(
        RunKey(job.id, job.attempt),
        {share.node: Part(share) for share in start.shares},
        started_at=cluster.at,
        prolog=Progress.OWED if cluster.policy.controller_prolog else Progress.NOT_OWED,
        epilog=Progress.OWED if cluster.policy.controller_epilog else Progress.NOT_OWED,
    )
    job.runs[job.attempt] = run
    for part in run.parts.values():
        cluster.book(run, part)
    at_once = len(run.parts) == 1 and run.prolog is Progress.NOT_OWED
    cluster.move_job(job, JobState.RUNNING if at_once else JobState.CONFIGURING, f"on {','.join(run.parts)}")
    job.started_at, job.ended_at, job.suspended_s, job.suspended_at = cluster.at, 0.0, 0.0, 0.0
    job.reason, job.state_desc, job.exit_raw = Reason.NONE, "", 0
    job.wait_reason, job.wait_desc, job.looked_at = Reason.NONE, "", cluster.at
    cluster.note("job_started", job=job.id, attempt=job.attempt, nodes=",".join(run.parts))
    if run.prolog is Progress.OWED:
        cluster.start_hook(job, run, HookKind.PROLOG)
    else:
        launch(cluster, job, run)


def _leave_behind(cluster: Cluster, job: Job, old: Run) -> None:
    """An earlier attempt that may still be on a silent node is ended there when that returns (R08)."""
    if old.booked:
        cluster.judge(job, old, verdict(cluster, VerdictKind.STALE, reason="the job was started again"))
    else:
        del job.runs[old.key.attempt]


def launch(cluster: Cluster, job: Job, run: Run) -> None:
    """Sends the run to those of its nodes that have not said that they have it."""
    if job.state is JobState.RUNNING:
        start_clock(cluster, job)
    for part in run.parts.values():
        if part.phase is Phase.SENT and not part.lost:
            cluster.tell(LaunchRun(run.key, part.node, job.stimulus))
