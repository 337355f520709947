"""What comes of a launch: taken, refused, ready on all nodes; and the controller's own hooks around it."""

from __future__ import annotations

from spurctld.core.cluster import Cluster
from spurctld.core.ending import RAW_LAUNCH_FAILURE, Outcome
from spurctld.core.ends import finish_job, release_part, requeue_job, start_clock, take_back, verdict
from spurctld.core.events import HookEnded, LaunchRefused, LaunchTaken
from spurctld.core.instructions import StartRun
from spurctld.core.records import Job, Node, Run
from spurctld.core.scheduling import launch
from spurctld.core.states import Fault, HookKind, JobState, Phase, Progress, Reason, VerdictKind
from spurctld.core.values import Grant


def take_launch(cluster: Cluster, event: LaunchTaken) -> None:
    found = cluster.part(event.run, event.node)
    if found is None:
        return
    job, run, part = found
    if part.lost:
        take_back(cluster, job, run, part)
    accept(cluster, job, run, event.node, event.grant)
    node = cluster.nodes[event.node]
    node.refusals = 0


def accept(cluster: Cluster, job: Job, run: Run, node: str, grant: Grant | None) -> None:
    """The node has the run: claimed and durable there."""
    part = run.parts[node]
    if grant is not None and part.grant != grant and part.booked:
        part.grant = grant
        cluster.touch(job)
    if part.phase is Phase.SENT:
        machine = cluster.nodes[node].machine
        part.boot_id = machine.boot_id if machine else ""
        cluster.move_part(job, run, part, Phase.ACCEPTED)
    part.missing_since = None


def refuse_launch(cluster: Cluster, event: LaunchRefused) -> None:
    """The job's whole attempt is undone. What is not proven to be gone is ended first, and stays booked until then."""
    found = cluster.part(event.run, event.node)
    if found is None or found[2].phase is not Phase.SENT:
        return
    job, run, part = found
    cluster.note("launch_refused", job=job.id, attempt=run.key.attempt, node=event.node, reason=event.text)
    if event.fault is Fault.NODE:
        _cool_down(cluster, cluster.nodes[event.node])
    if job.attempt == run.key.attempt and job.state.active:
        if len(run.parts) > 1 or not event.proven:
            decided = verdict(cluster, VerdictKind.LAUNCH_FAILED, reason=event.text)
            cluster.judge(job, run, decided, but=part if event.proven else None)
        if event.fault is Fault.USER:
            finish_job(cluster, job, Outcome(JobState.FAILED, Reason.LAUNCH_FAILURE, event.text, RAW_LAUNCH_FAILURE))
        else:
            retry_launch(cluster, job, f"{event.node}: {event.text}")
    if event.proven:
        release_part(cluster, job, run, part)


def retry_launch(cluster: Cluster, job: Job, why: str) -> None:
    """A start that came to nothing through no fault of the job. Not for ever: then it is held."""
    job.launch_failures += 1
    if job.launch_failures > cluster.policy.max_launch_failures:
        requeue_job(cluster, job, why, held=Reason.HOLD_MAX_REQUEUE)
    else:
        requeue_job(cluster, job, why)


def _cool_down(cluster: Cluster, node: Node) -> None:
    wait_s = min(cluster.policy.cooldown_s * 2**node.refusals, cluster.policy.max_cooldown_s)
    node.refusals = min(node.refusals + 1, 32)
    node.cooldown_until = cluster.mono + wait_s


def start_when_ready(cluster: Cluster, job: Job, run: Run) -> None:
    """User code of a run on several nodes starts once all of them are ready."""
    if job.attempt != run.key.attempt or run.verdict is not None:
        return
    if job.state is JobState.CONFIGURING and all(part.phase is Phase.READY for part in run.parts.values()):
        cluster.move_job(job, JobState.RUNNING, "all nodes are ready")
        start_clock(cluster, job)
    if job.state is JobState.RUNNING and run.batch.phase is Phase.READY and len(run.parts) > 1:
        cluster.tell(StartRun(run.key, run.batch.node))


def end_hook(cluster: Cluster, event: HookEnded) -> None:
    job = cluster.jobs.get(event.run.job)
    run = job.runs.get(event.run.attempt) if job else None
    if job is None or run is None:
        return
    then = Progress.DONE if event.ok else Progress.FAILED
    if not event.ok:
        cluster.note("hook_failed", hook=event.kind.value, job=job.id, attempt=run.key.attempt, reason=event.detail)
    if event.kind is HookKind.EPILOG:
        if run.epilog is Progress.UNDER_WAY:
            run.epilog = cluster.move_hook(job, run, run.epilog, then)
    elif run.prolog is Progress.UNDER_WAY:
        run.prolog = cluster.move_hook(job, run, run.prolog, then)
        after_prolog(cluster, job, run, event.detail)


def after_prolog(cluster: Cluster, job: Job, run: Run, detail: str) -> None:
    """The controller's prolog is over: nothing was sent to any node before."""
    if job.attempt != run.key.attempt or job.state is not JobState.CONFIGURING:
        return  # cancelled meanwhile
    if run.prolog is Progress.DONE:
        if len(run.parts) == 1:
            cluster.move_job(job, JobState.RUNNING, "prolog done")
        launch(cluster, job, run)
        return
    retry_launch(cluster, job, f"the controller's prolog failed: {detail}")
    for part in list(run.parts.values()):
        if part.booked:
            release_part(cluster, job, run, part)
