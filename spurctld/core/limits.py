"""What falls due by itself: time limits, silent nodes, records that were kept long enough."""

from __future__ import annotations

from spurctld.core.cluster import Cluster
from spurctld.core.ending import outcome_of
from spurctld.core.ends import finish_job, verdict
from spurctld.core.events import Tick
from spurctld.core.nodes import excuse_silence, give_up_silent
from spurctld.core.records import Job
from spurctld.core.states import JobState, VerdictKind


def pass_time(cluster: Cluster, event: Tick) -> None:
    excuse_silence(cluster, event.away_s)
    for job in list(cluster.overdue()):
        _time_out(cluster, job)
    give_up_silent(cluster)
    for job in cluster.outdated():
        cluster.forget_job(job)
        cluster.note("job_purged", job=job.id)


def _time_out(cluster: Cluster, job: Job) -> None:
    """The job is TIMEOUT from now on, however its processes end."""
    run = job.run
    if job.state is not JobState.RUNNING or run is None:
        return
    cluster.judge(job, run, verdict(cluster, VerdictKind.TIMEOUT, reason="time limit reached"))
    finish_job(cluster, job, outcome_of(run.verdict, None))
