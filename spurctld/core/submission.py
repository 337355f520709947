"""Taking a job, or saying in Slurm's words why not."""

from __future__ import annotations

from dataclasses import replace

from spurctld.core.cluster import Cluster
from spurctld.core.events import JobSubmitted
from spurctld.core.instructions import Reply
from spurctld.core.records import Job, Node, Partition
from spurctld.core.schedule import Room, inventory, place
from spurctld.core.scheduling import capacity
from spurctld.core.states import UNLIMITED, PartitionState, Reason, RefusalKind
from spurctld.core.values import JobSpec, Refusal, Request, Submitted

FIRST_PRIORITY = 4294901760  # Slurm's priority/basic counts down from here

_SHAPES_KEPT = 10_000

NODE_CONFIGURATION = "Requested node configuration is not available"
NODE_COUNT = "Node count specification invalid"
NODE_NAME = "Invalid node name specified"
GRES = "Invalid generic resource (gres) specification"
TIME_LIMIT = "Requested time limit is invalid (missing or exceeds some limit)"
PARTITION = "Invalid partition name specified"
NO_PARTITION = "No partition specified or system default partition"
PARTITION_CLOSED = "Required partition not available (inactive or drain)"
TOO_MANY_JOBS = "Slurm temporarily unable to accept job, sleeping and retrying"


def submit(cluster: Cluster, event: JobSubmitted) -> None:
    ready = prepare(cluster, event.spec)
    if isinstance(ready, Refusal):
        cluster.answer(Reply(ready))
        return
    if len(cluster.jobs) >= cluster.policy.max_jobs:
        cluster.answer(Reply(Refusal(RefusalKind.TOO_MANY, TOO_MANY_JOBS)))
        return
    if event.test_only:
        cluster.answer(Reply(Submitted(0)))
        return
    number = _next_number(cluster)
    job = Job(
        number,
        ready,
        submitted_at=event.at,
        eligible_at=event.at,
        priority=max(1, FIRST_PRIORITY - number - ready.nice),
        held=Reason.HELD_USER if ready.hold else "",
        stimulus=event.stimulus,
    )
    cluster.add_job(job)
    cluster.note("job_submitted", job=number, uid=ready.uid, partition=ready.partition)
    cluster.answer(Reply(Submitted(number)))


def _next_number(cluster: Cluster) -> int:
    """Numbers begin again after the last one; those in use are passed over."""
    number = cluster.next_job
    while True:
        if number > cluster.policy.max_job_id:
            number = cluster.policy.first_job_id
        if number not in cluster.jobs:
            cluster.next_job = number + 1
            return number
        number += 1


def prepare(cluster: Cluster, spec: JobSpec) -> JobSpec | Refusal:
    """`spec` with the partition's defaults filled in, or why the cluster could never run it."""
    partition = _partition(cluster, spec.partition)
    if isinstance(partition, Refusal):
        return partition
    limit_s = _limit(partition, spec.time_limit_s)
    if isinstance(limit_s, Refusal):
        return limit_s
    request = _shape_once(cluster, partition, spec.request)
    if isinstance(request, Refusal):
        return request
    return replace(
        spec,
        partition=partition.name,
        time_limit_s=limit_s,
        request=request,
        nice=spec.nice if spec.uid == 0 else max(0, spec.nice),
    )


def _partition(cluster: Cluster, name: str) -> Partition | Refusal:
    if not name:
        found = next((one for one in cluster.partitions.values() if one.spec.default), None)
        if found is None:
            return Refusal(RefusalKind.INVALID, NO_PARTITION)
    else:
        found = cluster.partitions.get(name)
        if found is None:
            return Refusal(RefusalKind.INVALID, PARTITION, f"invalid partition specified: {name}")
    if found.spec.state in (PartitionState.INACTIVE, PartitionState.DRAIN):
        return Refusal(RefusalKind.INVALID, PARTITION_CLOSED)
    return found


def _limit(partition: Partition, asked_s: int | None) -> int | Refusal:
    longest_s = partition.spec.max_time_s
    if asked_s is None:
        default_s = partition.spec.default_time_s
        return longest_s if default_s is None else default_s
    if longest_s != UNLIMITED and (asked_s == UNLIMITED or asked_s > longest_s):
        return Refusal(RefusalKind.INVALID, TIME_LIMIT)
    return asked_s


def _shape_once(cluster: Cluster, partition: Partition, request: Request) -> Request | Refusal:
    """`_shape`, which looks at every node, remembered until a node changes what it has."""
    key = (partition.name, request)
    if key not in cluster.shapes:
        if len(cluster.shapes) >= _SHAPES_KEPT:
            cluster.shapes.clear()
        cluster.shapes[key] = _shape(cluster, partition, request)
    return cluster.shapes[key]


def _shape(cluster: Cluster, partition: Partition, request: Request) -> Request | Refusal:
    """`request` with its number of nodes settled, or why no nodes of the partition could ever bear it."""
    least = -(-request.tasks // request.tasks_per_node) if request.tasks_per_node else 1
    request = replace(request, nodes=max(request.nodes, len(request.required), least))
    if request.excluded & set(request.required) or not _all_known(cluster, request):
        return Refusal(RefusalKind.INVALID, NODE_NAME)
    members = [node for node in cluster.partition_nodes(partition) if node.declared]
    if not members:
        return request  # they are still to come, or the partition has none: it waits
    if any(name not in {node.name for node in members} for name in request.required):
        return Refusal(RefusalKind.INVALID, NODE_CONFIGURATION)
    suited = [node for node in members if node.name not in request.excluded]
    unknown = [node for node in suited if node.cpus is None]
    known = [node for node in suited if node.cpus is not None]
    if len(suited) < request.nodes:
        return Refusal(RefusalKind.INVALID, NODE_COUNT)
    if unknown:
        return request  # what they have is known when they register
    return _check(request, known)


def _all_known(cluster: Cluster, request: Request) -> bool:
    names = (*request.required, *request.excluded)
    return cluster.policy.any_node or all(name in cluster.nodes for name in names)


def _check(request: Request, nodes: list[Node]) -> Request | Refusal:
    refusal = _check_amounts(request, nodes)
    if refusal is not None:
        return refusal
    rooms = [_emptied(node) for node in nodes]
    for count in range(request.nodes, len(nodes) + 1):
        shaped = replace(request, nodes=count)
        if place(shaped, rooms) is not None:
            return shaped
        if count >= request.tasks or not _shrinks(request):
            break
    return Refusal(RefusalKind.INVALID, NODE_CONFIGURATION)


def _shrinks(request: Request) -> bool:
    """Whether the share of a node gets smaller when there are more of them."""
    return request.tasks > 1


def _check_amounts(request: Request, nodes: list[Node]) -> Refusal | None:
    """What no single node has; Slurm names the kind."""
    known = {one.name for node in nodes for one in node.gres or ()}
    for one in (*request.gres_per_node, *request.gres_per_task, *request.gres_per_job):
        if one.name not in known:
            return Refusal(RefusalKind.INVALID, GRES)
    most = max(node.cpus or 0 for node in nodes)
    if request.cpus_per_task > most:
        return Refusal(RefusalKind.INVALID, NODE_CONFIGURATION, "CPU count per node can not be satisfied")
    most_mb = max(node.memory_mb or 0 for node in nodes)
    least_mb = request.memory_mb or 0
    if request.memory_per_cpu_mb is not None:
        least_mb = request.memory_per_cpu_mb * request.cpus_per_task
    if least_mb > most_mb:
        return Refusal(RefusalKind.INVALID, NODE_CONFIGURATION, "Memory specification can not be satisfied")
    return None


def _emptied(node: Node) -> Room:
    whole = capacity(node)
    return Room(node.name, whole.cpus, whole.memory_mb, inventory(whole), whole)
