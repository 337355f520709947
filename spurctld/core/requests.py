"""What users ask of jobs that exist: cancel, signal, suspend, resume, requeue, hold, release.

The texts of refusals are Slurm's (slurm_errno.c), as scancel and scontrol print them.
"""

from __future__ import annotations

from spurctld.core.cluster import Cluster
from spurctld.core.ending import Outcome
from spurctld.core.ends import finish_job, may_requeue, release_part, requeue_job, start_clock, verdict
from spurctld.core.events import CancelAsked, HoldAsked, RequeueAsked, RunAbsent, SuspendAsked, TerminateTaken
from spurctld.core.instructions import Reply, SignalRun, SuspendRun
from spurctld.core.records import Job
from spurctld.core.states import (
    REQUEUED_HELD,
    JobState,
    Phase,
    Reason,
    RefusalKind,
    SignalScope,
    VerdictKind,
)
from spurctld.core.values import CancelResults, Done, Refusal

SIGKILL = 9

NO_SUCH_JOB = Refusal(RefusalKind.NOT_FOUND, "Invalid job id specified")
NOT_YOURS = Refusal(RefusalKind.DENIED, "Access/permission denied")
ALREADY_OVER = Refusal(RefusalKind.WRONG_STATE, "Job/step already completing or completed")
ALREADY_FINISHED = Refusal(RefusalKind.WRONG_STATE, "Job has already finished")
STILL_PENDING = Refusal(RefusalKind.WRONG_STATE, "Job is pending execution")
NOT_SUSPENDED = Refusal(RefusalKind.WRONG_STATE, "Job is not suspended")
NOT_NOW = Refusal(RefusalKind.WRONG_STATE, "Job can not be altered now, try again later")
DISABLED = Refusal(RefusalKind.WRONG_STATE, "Requested operation is presently disabled")


def may_touch(job: Job, uid: int) -> bool:
    """A job is its owner's and root's."""
    return uid in (0, job.spec.uid)


def _find(cluster: Cluster, number: int, uid: int) -> Job | Refusal:
    job = cluster.jobs.get(number)
    if job is None:
        return NO_SUCH_JOB
    return job if may_touch(job, uid) else NOT_YOURS


def cancel(cluster: Cluster, event: CancelAsked) -> None:
    results = []
    for number in event.jobs:
        found = _find(cluster, number, event.by_uid)
        results.append((number, found if isinstance(found, Refusal) else _cancel_one(cluster, found, event)))
    cluster.answer(Reply(CancelResults(tuple(results))))


def _cancel_one(cluster: Cluster, job: Job, event: CancelAsked) -> Refusal | None:
    if job.state.finished:
        return ALREADY_OVER
    whole = event.signal == 0 or (event.signal == SIGKILL and event.scope is not SignalScope.BATCH)
    if not whole:
        return _signal(cluster, job, event)
    _cancel_job(cluster, job, event.by_uid)
    return None


def _cancel_job(cluster: Cluster, job: Job, by_uid: int) -> None:
    """The verdict is durable before any signal, and goes to every node that may have been sent the run."""
    decided = verdict(cluster, VerdictKind.CANCELLED, by_uid, f"cancelled by uid {by_uid}")
    was_pending = job.state is JobState.PENDING
    for run in list(job.runs.values()):
        if run.booked:
            cluster.judge(job, run, decided)
    reason = job.held if was_pending and job.held else Reason.NONE
    finish_job(cluster, job, Outcome(JobState.CANCELLED, reason))
    if was_pending:
        job.started_at = cluster.at  # as Slurm: a job that never ran has no run time


def _signal(cluster: Cluster, job: Job, event: CancelAsked) -> Refusal | None:
    if job.state is JobState.PENDING:
        return ALREADY_OVER if job.completing else NOT_NOW
    run = job.run
    assert run is not None
    for part in run.parts.values():
        if part.phase < Phase.ENDED and not part.lost:
            cluster.tell(SignalRun(run.key, part.node, event.signal, event.scope, event.by_uid))
    return None


def suspend(cluster: Cluster, event: SuspendAsked) -> None:
    job = _find(cluster, event.job, event.by_uid)
    if isinstance(job, Refusal):
        cluster.answer(Reply(job))
        return
    refusal = _refuse_suspension(job, event)
    if refusal is None:
        _suspend(cluster, job, event.resume)
    cluster.answer(Reply(refusal or Done()))


def _refuse_suspension(job: Job, event: SuspendAsked) -> Refusal | None:
    if event.by_uid != 0:
        return NOT_YOURS  # only operators suspend, as in Slurm
    if job.state is JobState.PENDING:
        return STILL_PENDING
    if job.state.finished:
        return ALREADY_OVER
    if job.state is JobState.CONFIGURING:
        return NOT_NOW
    if event.resume and job.state is not JobState.SUSPENDED:
        return NOT_SUSPENDED
    return None


def _suspend(cluster: Cluster, job: Job, resume: bool) -> None:
    """Suspended time does not count against the limit. The resources stay granted."""
    if resume:
        job.suspended_s += max(0.0, cluster.at - job.suspended_at)
        job.suspended_at = 0.0
        cluster.move_job(job, JobState.RUNNING, "resumed")
        start_clock(cluster, job)
    elif job.state is JobState.RUNNING:
        cluster.move_job(job, JobState.SUSPENDED)
        job.suspended_at = cluster.at
        start_clock(cluster, job)
    run = job.run
    assert run is not None
    for part in run.parts.values():
        if part.phase < Phase.ENDED and not part.lost:
            cluster.tell(SuspendRun(run.key, part.node, resume))


def requeue(cluster: Cluster, event: RequeueAsked) -> None:
    job = _find(cluster, event.job, event.by_uid)
    if isinstance(job, Refusal):
        cluster.answer(Reply(job))
        return
    refusal = _refuse_requeue(cluster, job, event)
    if refusal is None:
        _requeue(cluster, job, event)
    cluster.answer(Reply(refusal or Done()))


def _refuse_requeue(cluster: Cluster, job: Job, event: RequeueAsked) -> Refusal | None:
    if job.state is JobState.PENDING:
        return None if event.hold and not job.completing else STILL_PENDING
    if not may_requeue(cluster, job):
        return DISABLED
    return None


def _requeue(cluster: Cluster, job: Job, event: RequeueAsked) -> None:
    """The same number, a new attempt, also for a job that has ended. Its run, if there is one, is ended first."""
    held = _hold_reason(job, event.by_uid) if event.hold else ""
    desc = REQUEUED_HELD if event.hold else ""
    if job.state is JobState.PENDING:
        job.held, job.state_desc = held, desc
        cluster.touch(job, "held")
        return
    run = job.run
    if run is not None and run.booked:
        kind = VerdictKind.CANCELLED
        cluster.judge(job, run, verdict(cluster, kind, event.by_uid, f"requeued by uid {event.by_uid}"))
    job.restarts += 1
    requeue_job(cluster, job, f"asked by uid {event.by_uid}", held=held, desc=desc)


def hold(cluster: Cluster, event: HoldAsked) -> None:
    job = _find(cluster, event.job, event.by_uid)
    if isinstance(job, Refusal):
        cluster.answer(Reply(job))
        return
    if job.state.finished:
        cluster.answer(Reply(ALREADY_FINISHED))
        return
    if event.release and job.held == Reason.HELD_ADMIN and event.by_uid != 0 and not job.state_desc:
        cluster.answer(Reply(NOT_YOURS))
        return
    job.held = "" if event.release else _hold_reason(job, event.by_uid)
    if event.release:
        job.state_desc, job.launch_failures = "", 0
        job.wait_reason, job.wait_desc = Reason.NONE, ""
    cluster.touch(job, "released" if event.release else f"held: {job.held}")
    cluster.answer(Reply(Done()))


def _hold_reason(job: Job, by_uid: int) -> str:
    """Who holds a job decides who may release it."""
    return Reason.HELD_ADMIN if by_uid == 0 else Reason.HELD_USER


def note_verdict(cluster: Cluster, event: TerminateTaken) -> None:
    found = cluster.part(event.run, event.node)
    if found is not None:
        found[2].verdict_taken = True


def note_absence(cluster: Cluster, event: RunAbsent) -> None:
    """The node has no such run and will not have it: what was booked for it is free. Only asked after a verdict."""
    found = cluster.part(event.run, event.node)
    if found is None:
        return
    job, run, part = found
    if (run.verdict is not None and part.booked) or (run.exit is not None and part.booked and part is not run.batch):
        release_part(cluster, job, run, part)
