"""Recomputes every index and every sum from the records alone, and compares. Tests run it after each event."""

from __future__ import annotations

import math

from spurctld.core.cluster import Cluster
from spurctld.core.records import Job, Node
from spurctld.core.states import JobState, Phase
from spurctld.core.values import Gres, Resources, RunKey, sum_gres


def validate(cluster: Cluster) -> None:
    """AssertionError names the first index, sum or record that is not as it must be."""
    for job in cluster.jobs.values():
        _check_job(cluster, job)
    _check_queues(cluster)
    _check_bookings(cluster)
    active = {job.id for job in cluster.jobs.values() if job.state.active}
    assert active == cluster.active, f"active jobs are {active ^ cluster.active} off"


def _check_job(cluster: Cluster, job: Job) -> None:
    where = f"job {job.id} ({job.state.name}, attempt {job.attempt})"
    run = job.run
    assert (run is None) == (job.attempt == 0), f"{where} has no run of its last attempt"
    if job.state.active:
        assert run is not None and run.exit is None, f"{where} is active with an exit recorded"
        assert run.batch.booked, f"{where} is active without resources"
        assert run.verdict is None, f"{where} is active under a verdict"
        assert not run.batch.lost, f"{where} is active on a lost node"
    assert (job.purge_at < math.inf) == job.settled, f"{where} will be purged at {job.purge_at}"
    for attempt, one in job.runs.items():
        assert one.key == RunKey(job.id, attempt), f"{where} has run {one.key} as attempt {attempt}"
        assert attempt == job.attempt or one.booked, f"{where} keeps the old run {one.key} for nothing"
        for name, part in one.parts.items():
            assert part.node == name, f"{one.key} has {part.node} under {name}"
            assert not (part.lost and part.phase is Phase.RELEASED), f"{one.key} is lost and released on {name}"
    if job.state is not JobState.RUNNING:
        assert job.deadline == math.inf, f"{where} has a deadline"


def _check_queues(cluster: Cluster) -> None:
    queued = {}
    for partition in cluster.partitions.values():
        assert partition.queue == sorted(partition.queue), f"the queue of {partition.name} is not in order"
        for priority, number in partition.queue:
            assert number not in queued, f"job {number} is queued twice"
            queued[number] = (partition.name, -priority)
    waiting = {job.id: (job.spec.partition, job.priority) for job in cluster.jobs.values() if job.waits}
    assert queued == waiting, f"queued are {queued}, waiting are {waiting}"


def _check_bookings(cluster: Cluster) -> None:
    booked: dict[str, dict[RunKey, Resources]] = {name: {} for name in cluster.nodes}
    for job in cluster.jobs.values():
        for run in job.runs.values():
            for part in run.parts.values():
                if part.booked:
                    assert part.node in booked, f"{run.key} is booked on {part.node}, which is gone"
                    booked[part.node][run.key] = part.share.resources
    for node in cluster.nodes.values():
        _check_node(node, booked[node.name])


def _check_node(node: Node, booked: dict[RunKey, Resources]) -> None:
    assert node.runs == set(booked), f"{node.name} has {node.runs}, booked are {set(booked)}"
    own = _total(booked)
    total = own.plus(_total(node.strays))
    assert not node.strays.keys() & booked.keys(), f"{node.name} books a run as a stray, too"
    has = Resources(
        node.cpus_allocated,
        node.memory_allocated_mb,
        sum_gres(_gres(node.gres_allocated)),
    )
    assert has == total, f"{node.name} counts {has}, booked are {total}"
    if node.cpus is not None:
        assert own.cpus <= node.cpus, f"{node.name} granted {own.cpus} of {node.cpus} CPUs"
    if node.memory_mb is not None:
        assert own.memory_mb <= node.memory_mb, f"{node.name} granted {own.memory_mb} of {node.memory_mb} MiB"
    whole = {(one.name, one.type): one.count for one in node.gres or ()}
    for one in own.gres:
        count = whole.get((one.name, one.type), 0)
        assert one.count <= count, f"{node.name} granted {one.count} of {count} {one.name}:{one.type}"


def _gres(counts: dict[tuple[str, str], int]) -> list[Gres]:
    return [Gres(name, type, count) for (name, type), count in counts.items()]


def _total(booked: dict[RunKey, Resources]) -> Resources:
    total = Resources()
    for one in booked.values():
        total = total.plus(one)
    return total
