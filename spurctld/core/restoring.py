"""Making the cluster again from what was saved: after a start, and after a commit that failed.

What is owed to nodes and hooks is derived from the records, as at every heartbeat; nothing else was promised to anyone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spurctld.core.cluster import Cluster
from spurctld.core.ends import end_share, give_up, release_part, start_clock
from spurctld.core.instructions import Instruction, PingNode
from spurctld.core.launching import after_prolog, start_when_ready
from spurctld.core.records import Job, Node, Run
from spurctld.core.rows import decode_job, decode_node, decode_spec
from spurctld.core.scheduling import launch
from spurctld.core.states import JobState, NodeState, Progress
from spurctld.core.values import NodeSpec


def restore(
    cluster: Cluster,
    *,
    at: float,
    mono: float,
    next_job: int | None,
    jobs: Iterable[tuple[int, object, object]],
    nodes: Mapping[str, object],
) -> list[Instruction]:
    """Fills the empty `cluster` from rows and says what is still owed. `jobs` are (number, spec, record).

    A node that is in the configuration no more is kept as long as something is booked on it. No node is taken for
    silent before a whole timeout from now. RowError: a row cannot be read.
    """
    cluster.begin("restore", at, mono, "start")
    _restore_nodes(cluster, nodes)
    for number, spec, record in jobs:
        cluster.jobs[number] = decode_job(number, decode_spec(spec, f"job {number}.spec"), record)
    cluster.next_job = max(next_job or 0, cluster.policy.first_job_id)
    for job in cluster.jobs.values():
        _book(cluster, job)
    for job in list(cluster.jobs.values()):
        _resume(cluster, job)
        cluster.settle(job)
    _drop_undeclared(cluster)
    for node in cluster.nodes.values():
        if node.machine is not None and node.state is NodeState.UP:
            cluster.tell(PingNode(node.name))
    cluster.schedule_wanted = True
    return cluster.finish()


def _restore_nodes(cluster: Cluster, rows: Mapping[str, object]) -> None:
    for name, row in rows.items():
        known = cluster.nodes.get(name)
        spec = known.spec if known else NodeSpec(name)
        order = known.order if known else len(cluster.nodes)
        node = cluster.nodes[name] = decode_node(spec, order, row)
        node.declared = known is not None or cluster.policy.any_node
    for node in cluster.nodes.values():
        node.last_heard = cluster.mono


def _book(cluster: Cluster, job: Job) -> None:
    for run in job.runs.values():
        for part in run.parts.values():
            if part.booked:
                if part.node not in cluster.nodes:  # a node row is saved before anything is booked there
                    cluster.nodes[part.node] = _departed(cluster, part.node)
                cluster.book(run, part)


def _departed(cluster: Cluster, name: str) -> Node:
    node = Node(NodeSpec(name), len(cluster.nodes))
    node.declared, node.last_heard = False, cluster.mono
    return node


def _resume(cluster: Cluster, job: Job) -> None:
    for run in list(job.runs.values()):
        _settle_hooks(cluster, job, run)
        cluster.order_end(run)
        for part in run.parts.values():
            end_share(cluster, run, part)
    current = job.run
    if current is None or not job.state.active:
        return
    if job.state is JobState.RUNNING:
        start_clock(cluster, job)
    if current.prolog in (Progress.NOT_OWED, Progress.DONE):
        launch(cluster, job, current)
        start_when_ready(cluster, job, current)


def _settle_hooks(cluster: Cluster, job: Job, run: Run) -> None:
    """A hook that was under way when we died ran, and nobody knows how it ended: it is not repeated."""
    if run.epilog is Progress.UNDER_WAY:
        run.epilog = cluster.move_hook(job, run, run.epilog, Progress.UNKNOWN)
        cluster.note("hook_interrupted", hook="epilog", job=job.id, attempt=run.key.attempt)
    if run.prolog is Progress.UNDER_WAY:
        run.prolog = cluster.move_hook(job, run, run.prolog, Progress.UNKNOWN)
        cluster.note("hook_interrupted", hook="prolog", job=job.id, attempt=run.key.attempt)
        after_prolog(cluster, job, run, "interrupted by a restart of the controller")


def _drop_undeclared(cluster: Cluster) -> None:
    """Nodes that were taken out of the configuration: nobody will ever answer for what ran there."""
    for node in [node for node in cluster.nodes.values() if not node.declared]:
        for key in sorted(node.runs):
            job = cluster.jobs[key.job]
            run = job.runs[key.attempt]
            part = run.parts[node.name]
            if job.attempt == key.attempt and job.state.active:
                give_up(cluster, job, run, part, f"node {node.name} was taken out of the configuration")
            release_part(cluster, job, run, part)
        del cluster.nodes[node.name]
