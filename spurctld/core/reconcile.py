"""Comparing what a node has with what is booked on it, at every registration and heartbeat.

The list that a node sends is complete, but it was made a moment ago: a launch may have arrived since. So one list
without a run proves nothing; a second one in a row does.
"""

from __future__ import annotations

from collections.abc import Iterable

from spurctld.core.cluster import Cluster
from spurctld.core.ends import end_share, give_up, release_part, take_back, verdict
from spurctld.core.instructions import LaunchRun, SuspendRun, TerminateRun
from spurctld.core.launching import accept, start_when_ready
from spurctld.core.records import Job, Node, Part, Run
from spurctld.core.states import JobState, Phase, Progress, VerdictKind
from spurctld.core.values import Resources, RunKey, RunState

_PHASES = {phase.word: phase for phase in Phase}


def compare(cluster: Cluster, node: Node, states: Iterable[RunState], *, rebooted: bool = False) -> None:
    """Makes the two agree, or orders what makes them agree. `rebooted`: everything of before is dead there."""
    listed = {state.run: state for state in states}
    strays = {key: _held(state) for key, state in listed.items() if key not in node.runs}
    for key in strays:
        _end_stray(cluster, node, key)
    cluster.set_strays(node, _really_stray(cluster, node, strays))
    for key in sorted(node.runs):
        job = cluster.jobs[key.job]
        run = job.runs[key.attempt]
        part = run.parts[node.name]
        if key in listed:
            _see(cluster, job, run, part, listed[key])
        else:
            _miss(cluster, job, run, part, rebooted)


def _held(state: RunState) -> Resources:
    return state.grant.resources if state.grant else Resources()


def _end_stray(cluster: Cluster, node: Node, key: RunKey) -> None:
    """A run that we gave up, or never knew: it is ended there."""
    cluster.note("stray_run_found", node=node.name, job=key.job, attempt=key.attempt)
    cluster.next_job = max(cluster.next_job, key.job + 1)
    reason = "a later attempt exists, or the job is gone"
    cluster.tell(TerminateRun(key, node.name, verdict(cluster, VerdictKind.STALE, reason=reason)))


def _really_stray(cluster: Cluster, node: Node, strays: dict[RunKey, Resources]) -> dict[RunKey, Resources]:
    """Without those whose release we have seen: such a list was made before the node let them go."""

    def released(key: RunKey) -> bool:
        found = cluster.part(key, node.name)
        return found is not None and found[2].phase is Phase.RELEASED

    return {key: held for key, held in strays.items() if not released(key)}


def _see(cluster: Cluster, job: Job, run: Run, part: Part, state: RunState) -> None:
    """The node has the run. Its exit is left to its report, which is owed and says more."""
    part.missing_since = None
    part.why_waiting = state.why_waiting
    if part.lost:
        part.verdict_taken = False
        take_back(cluster, job, run, part)
    accept(cluster, job, run, part.node, state.grant)
    phase = _PHASES.get(state.phase)
    if phase is not None and part.phase < phase < Phase.ENDED:
        cluster.move_part(job, run, part, phase)
        if phase is Phase.RUNNING and part is run.batch and job.attempt == run.key.attempt:
            job.launch_failures = 0
    if run.verdict is not None:
        if part.phase < Phase.ENDED and not part.verdict_taken:
            cluster.tell(TerminateRun(run.key, part.node, run.verdict))
        return
    end_share(cluster, run, part)
    if job.attempt == run.key.attempt:
        start_when_ready(cluster, job, run)
        _align_suspension(cluster, job, run, part, state)


def _align_suspension(cluster: Cluster, job: Job, run: Run, part: Part, state: RunState) -> None:
    wanted = job.state is JobState.SUSPENDED
    if state.suspended is not wanted and part.phase is Phase.RUNNING:
        cluster.tell(SuspendRun(run.key, part.node, resume=not wanted))


def _miss(cluster: Cluster, job: Job, run: Run, part: Part, rebooted: bool) -> None:
    """The node does not list a run that is booked there."""
    if part.phase is Phase.SENT and not part.lost:
        _send_again(cluster, job, run, part)
        return
    if rebooted and part.boot_id and part.boot_id != _boot_id(cluster, part.node):
        _declare_gone(cluster, job, run, part)
        return
    if part.missing_since is None:
        part.missing_since = cluster.mono
        return
    believed = run.verdict is None and part.phase < Phase.ENDED and not part.lost
    if believed and cluster.mono - part.missing_since < cluster.policy.missing_run_grace_s:
        return
    if (
        part.phase is Phase.SENT
    ):  # lost with the node before it answered the launch: asked, it must say that it is not there
        cluster.mark_lost(job, run, part, False, "the node is back without it")
        if run.verdict is None:
            cluster.judge(job, run, verdict(cluster, VerdictKind.NODE_LOST, reason="the launch was not answered"))
        else:
            cluster.tell(TerminateRun(run.key, part.node, run.verdict))
        return
    _declare_gone(cluster, job, run, part)


def _send_again(cluster: Cluster, job: Job, run: Run, part: Part) -> None:
    """An unanswered launch, or the end of one: both may be sent twice, and only the node's answer settles it."""
    if run.verdict is not None:
        cluster.tell(TerminateRun(run.key, part.node, run.verdict))
    elif job.attempt == run.key.attempt and job.state.active and run.prolog in (Progress.NOT_OWED, Progress.DONE):
        cluster.tell(LaunchRun(run.key, part.node, job.stimulus))
    else:
        end_share(cluster, run, part)


def _declare_gone(cluster: Cluster, job: Job, run: Run, part: Part) -> None:
    """Proven: the node had the run and has it no more."""
    if job.attempt == run.key.attempt and job.state.active and run.exit is None and run.verdict is None:
        why = f"node {part.node} lost the run"
        cluster.note("run_lost", job=job.id, attempt=run.key.attempt, node=part.node)
        give_up(cluster, job, run, part, why)
    release_part(cluster, job, run, part)


def _boot_id(cluster: Cluster, node: str) -> str:
    machine = cluster.nodes[node].machine
    return machine.boot_id if machine else ""
