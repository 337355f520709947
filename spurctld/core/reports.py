"""What nodes say of single runs. Applied only to the attempt that is meant; said twice, it counts once."""

from __future__ import annotations

from dataclasses import replace

from spurctld.core.cluster import Cluster
from spurctld.core.ends import end_run, give_up, record_exit, release_part, take_back
from spurctld.core.events import RunReported
from spurctld.core.instructions import Reply
from spurctld.core.launching import accept, start_when_ready
from spurctld.core.nodes import drain_by_report
from spurctld.core.records import Job, Part, Run
from spurctld.core.states import Answer, ExitSource, Phase
from spurctld.core.values import Exit, RunState


def take_report(cluster: Cluster, event: RunReported) -> None:
    if event.drain_reason and event.node in cluster.nodes:
        drain_by_report(cluster, cluster.nodes[event.node], event.drain_reason)
    cluster.answer(Reply(_apply(cluster, event)))


def _apply(cluster: Cluster, event: RunReported) -> Answer:
    key = event.state.run
    job = cluster.jobs.get(key.job)
    if job is None or key.attempt > job.attempt:
        return Answer.UNKNOWN_JOB
    found = cluster.part(key, event.node)
    if found is None:
        return Answer.STALE_ATTEMPT
    _, run, part = found
    if key.attempt < job.attempt:
        _apply_stale(cluster, job, run, part, event)
        return Answer.STALE_ATTEMPT
    return _advance(cluster, job, run, part, event)


def _apply_stale(cluster: Cluster, job: Job, run: Run, part: Part, event: RunReported) -> None:
    """Nothing that an older attempt says touches the job; but what it held is free once it is gone."""
    if part.lost:
        take_back(cluster, job, run, part)
    if event.phase is Phase.RELEASED:
        if part.booked:
            release_part(cluster, job, run, part)
    elif event.phase > part.phase:
        cluster.move_part(job, run, part, event.phase)


def _advance(cluster: Cluster, job: Job, run: Run, part: Part, event: RunReported) -> Answer:
    if event.phase <= part.phase:
        return Answer.ALREADY_RECORDED
    if part.lost:
        take_back(cluster, job, run, part)
    accept(cluster, job, run, part.node, event.state.grant)
    if event.phase >= Phase.ENDED and part is run.batch:
        _take_exit(cluster, job, run, event)
    elif event.phase >= Phase.ENDED and job.state.active and run.verdict is None and run.exit is None:
        # a node that only holds its share let it go: the allocation is not whole any more
        give_up(cluster, job, run, part, f"node {part.node} ended its part of the allocation")
    if event.phase is Phase.RELEASED:
        release_part(cluster, job, run, part)
    elif event.phase > part.phase:
        cluster.move_part(job, run, part, event.phase)
    if event.phase is Phase.RUNNING and part is run.batch:
        job.launch_failures = 0
    start_when_ready(cluster, job, run)
    return Answer.RECORDED


def _take_exit(cluster: Cluster, job: Job, run: Run, event: RunReported) -> None:
    """The batch node's word of the end. A verdict that the node came to by itself is adopted, if we had none."""
    if run.exit is not None:
        return
    state = event.state
    if run.verdict is None and state.verdict is not None:
        run.verdict = state.verdict
        cluster.touch(job, f"{run.key}: verdict {state.verdict.kind.value} of the node: {state.verdict.reason}")
    record_exit(cluster, job, run, _exit_in(cluster, state, event.node))
    if job.state.active:
        end_run(cluster, job, run, requeue_held=event.requeue_held)


def _exit_in(cluster: Cluster, state: RunState, node: str) -> Exit:
    if state.exit is None:
        return Exit(ExitSource.UNKNOWN, at=cluster.at, detail=f"node {node} reported the end without an exit")
    return state.exit if state.exit.at else replace(state.exit, at=cluster.at)
