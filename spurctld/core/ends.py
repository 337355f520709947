"""Verbs that end an attempt: finish the job, put it back into the queue, give it up with its node, take it back."""

from __future__ import annotations

from spurctld.core.cluster import Cluster
from spurctld.core.ending import RAW_NODE_FAIL, Outcome, fill_in, outcome_of
from spurctld.core.instructions import TerminateRun
from spurctld.core.records import Job, Part, Run
from spurctld.core.states import (
    LAUNCH_FAILED_HELD,
    ExitSource,
    JobState,
    Phase,
    Progress,
    Reason,
    VerdictKind,
)
from spurctld.core.values import Exit, Verdict


def verdict(cluster: Cluster, kind: VerdictKind, by_uid: int = 0, reason: str = "") -> Verdict:
    return Verdict(kind, by_uid, cluster.at, reason)


def finish_job(cluster: Cluster, job: Job, outcome: Outcome, ended_at: float | None = None) -> None:
    """The job has ended, now or when its node saw it; its run may still have to be cleaned up."""
    cluster.move_job(job, outcome.state, outcome.reason if outcome.reason != Reason.NONE else outcome.state_desc)
    job.reason, job.state_desc, job.exit_raw = outcome.reason, outcome.state_desc, outcome.exit_raw
    stop_clock(cluster, job, ended_at)
    job.decided_at = cluster.at
    cluster.note("job_ended", job=job.id, attempt=job.attempt, state=job.state.name, status=job.exit_raw)


def requeue_job(cluster: Cluster, job: Job, why: str, *, held: str = "", desc: str = "") -> None:
    """Back into the queue under the same number. It starts again once the run that it had is gone."""
    cluster.move_job(job, JobState.PENDING, f"requeued: {why}")
    job.reason, job.state_desc, job.exit_raw = Reason.NONE, desc, 0
    job.held = held or job.held
    job.wait_reason, job.wait_desc = Reason.NONE, ""
    stop_clock(cluster, job)
    job.eligible_at = cluster.at
    cluster.note("job_requeued", job=job.id, attempt=job.attempt, reason=why)


def stop_clock(cluster: Cluster, job: Job, ended_at: float | None = None) -> None:
    """The run time is known. The clock of the node may differ from ours, but not so far that time runs backwards."""
    job.ended_at = cluster.at if ended_at is None else min(max(ended_at, job.started_at), cluster.at)
    if job.suspended_at:
        job.suspended_s += max(0.0, job.ended_at - job.suspended_at)
        job.suspended_at = 0.0


def record_exit(cluster: Cluster, job: Job, run: Run, exit: Exit) -> bool:
    """Keeps the first word of a run's exit, for ever. False: there was one already."""
    if run.exit is not None:
        return False
    run.exit = exit
    cluster.touch(job, f"{run.key}: exit {exit.source.value} {exit.status}")
    if job.attempt == run.key.attempt and job.state.finished:
        job.exit_raw = fill_in(job.state, job.exit_raw, exit)
    return True


def end_run(cluster: Cluster, job: Job, run: Run, *, requeue_held: bool = False) -> None:
    """The exit of the job's current run is known, and the job is still active: decides what becomes of it."""
    exit = run.exit
    outcome = outcome_of(run.verdict, exit)
    for part in run.parts.values():
        end_share(cluster, run, part)
    if requeue_held:
        cluster.note("job_launch_failed", job=job.id, attempt=job.attempt, reason=exit.detail if exit else "")
        requeue_job(cluster, job, "launch failed", held=Reason.HELD_ADMIN, desc=LAUNCH_FAILED_HELD)
    elif _may_rerun(cluster, job, run, exit):
        job.failed_node = run.batch.node
        job.restarts += 1
        requeue_job(cluster, job, outcome.state_desc or "its end is unknown")
    else:
        if outcome.state is JobState.NODE_FAIL:
            job.failed_node = run.batch.node
        finish_job(cluster, job, outcome, exit.at if exit else None)


def end_share(cluster: Cluster, run: Run, part: Part) -> None:
    """A node beside the batch node only holds its share: it lets go once the script has ended."""
    ended = run.verdict is None and run.exit is not None and part is not run.batch
    if ended and part.phase < Phase.ENDED and not part.lost:
        stale = verdict(cluster, VerdictKind.STALE, reason="the batch script has ended")
        cluster.tell(TerminateRun(run.key, part.node, stale))


def _may_rerun(cluster: Cluster, job: Job, run: Run, exit: Exit | None) -> bool:
    """Whether the end of `run` was the node's fault and the job may run again.

    What is not known to have failed is run twice only where the user said --requeue in so many words.
    """
    if run.verdict is not None:
        return run.verdict.kind is VerdictKind.CONFLICT and may_requeue(cluster, job)
    unknown = exit is None or exit.source is ExitSource.UNKNOWN
    return unknown and job.spec.requeue is True


def may_requeue(cluster: Cluster, job: Job) -> bool:
    return cluster.policy.requeue if job.spec.requeue is None else job.spec.requeue


def lose_run(cluster: Cluster, job: Job, run: Run, part: Part, why: str) -> None:
    """The node of `part` is silent. What it holds stays booked there until the node proves it gone."""
    cluster.mark_lost(job, run, part, True, why)
    if job.attempt == run.key.attempt and job.state.active:
        give_up(cluster, job, run, part, why)


def give_up(cluster: Cluster, job: Job, run: Run, part: Part, why: str) -> None:
    """The active job's run is lost with the node of `part`: requeued where allowed, else NODE_FAIL.

    A requeued run of one node gets no verdict yet: should the node return first, the run is taken back (R07).
    """
    job.failed_node = part.node
    again = may_requeue(cluster, job)
    returnable = again and len(run.parts) == 1 and part.lost and cluster.policy.take_back_runs
    if not returnable:
        cluster.judge(job, run, verdict(cluster, VerdictKind.NODE_LOST, reason=why))
    skip_prolog(cluster, job, run)
    if again:
        job.restarts += 1
        requeue_job(cluster, job, why)
    else:
        finish_job(cluster, job, Outcome(JobState.NODE_FAIL, Reason.NODE_DOWN, why, RAW_NODE_FAIL))


def take_back(cluster: Cluster, job: Job, run: Run, part: Part) -> bool:
    """The node of a lost run is back with it. True: it is the job's run again (R07)."""
    cluster.mark_lost(job, run, part, False, "the node is back with it")
    mine = job.attempt == run.key.attempt and job.state is JobState.PENDING and run.verdict is None
    if not mine or run.exit is not None:
        return False
    cluster.move_job(job, JobState.RUNNING, "taken back")
    job.held, job.reason, job.state_desc = "", Reason.NONE, ""
    job.restarts = max(0, job.restarts - 1)
    job.started_at, job.ended_at = run.started_at, 0.0
    start_clock(cluster, job)
    cluster.note("run_taken_back", job=job.id, attempt=job.attempt, node=part.node)
    return True


def start_clock(cluster: Cluster, job: Job) -> None:
    """Sets the deadline of a running job by what it has already run. A suspended job has none."""
    cluster.set_deadline(job, cluster.mono + job.remaining_s(cluster.at))


def skip_prolog(cluster: Cluster, job: Job, run: Run) -> None:
    if run.prolog is Progress.OWED:
        run.prolog = cluster.move_hook(job, run, run.prolog, Progress.NOT_OWED)


def release_part(cluster: Cluster, job: Job, run: Run, part: Part) -> None:
    """It is proven that nothing of `run` is left on the node of `part`."""
    if job.attempt == run.key.attempt and job.state.active and run.verdict is None and run.exit is None:
        why = f"node {part.node} has no trace of the run"
        if part is run.batch:
            record_exit(cluster, job, run, Exit(ExitSource.UNKNOWN, at=cluster.at, detail=why))
            end_run(cluster, job, run)
        else:
            give_up(cluster, job, run, part, why)
    cluster.move_part(job, run, part, Phase.RELEASED)
