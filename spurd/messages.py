"""The edge to gRPC: messages become values of ours here, and values messages; the inside never sees one."""

from __future__ import annotations

from dataclasses import dataclass

from spur.gres import Gres
from spur.pb import common_pb2, spurctld_pb2, spurd_pb2
from spurd.claims import Request
from spurd.environment import Allocation, Asked
from spurd.launches import Launch
from spurd.runs import Known, Report, told_phase
from spurd.runstate import RunState
from spurstepd.ids import RunId
from spurstepd.ledger import Duty, Exit, ExitSource, Grant, Obligation, Progress, Usage, Verdict, VerdictKind


class Malformed(ValueError):
    """A message that cannot be what it claims; the text names the field."""


def run_id(message: common_pb2.RunId) -> RunId:
    """Malformed: one of the two is 0."""
    try:
        return RunId(message.job_id, message.attempt)
    except ValueError as error:
        raise Malformed(f"run: {error}") from None


@dataclass(frozen=True, slots=True)
class Here:
    """What of a launch is this node's to say."""

    node: str
    hostname: str
    config_path: str


def launch(message: spurd_pb2.LaunchRunRequest, here: Here) -> Launch:
    """Malformed names the field that cannot be."""
    run, job = run_id(message.run), message.job
    if b"\0" in b"".join(job.environment) or "\0" in job.work_dir or any("\0" in one for one in job.arguments):
        raise Malformed("job: a NUL byte in an argument, the environment or the working directory")
    if not 0 <= job.umask <= 0o7777:
        raise Malformed(f"job.umask is {job.umask:o}")
    return Launch(
        run=run,
        uid=message.uid,
        gid=message.gid,
        user=message.user,
        wanted=wanted(message),
        allocation=_allocation(message, run, here),
        asked=_asked(job),
        script=job.script,
        arguments=tuple(job.arguments),
        environment=tuple(job.environment),
        umask=job.umask,
        stdin=job.stdin_path,
        stdout=job.stdout_path,
        stderr=job.stderr_path,
        append=job.append,
        limits=dict(job.limits),
        task_prolog=job.task_prolog,
        task_epilog=job.task_epilog,
        kill_wait_s=float(message.kill_wait_s),
        may_start=message.may_start,
        stimulus=message.stimulus,
    )


def wanted(message: spurd_pb2.LaunchRunRequest) -> Request:
    return Request(message.cpus, message.memory_mb, tuple(Gres(one.name, one.type, one.count) for one in message.gres))


def _allocation(message: spurd_pb2.LaunchRunRequest, run: RunId, here: Here) -> Allocation:
    return Allocation(
        run=run,
        cluster=message.cluster_name,
        node=here.node,
        hostname=here.hostname,
        partition=message.partition,
        nodes=message.nodes,
        num_nodes=message.num_nodes or 1,
        node_index=message.node_index,
        tasks_per_node=message.tasks_per_node,
        cpus_per_node=message.cpus_per_node,
        started_at=message.started_at,
        time_limit_s=message.time_limit_s,
        restarts=message.restarts,
        config_path=here.config_path,
    )


def _asked(job: common_pb2.JobDescription) -> Asked:
    def given(field: str) -> int | None:
        return int(getattr(job, field)) if job.HasField(field) else None  # type: ignore[arg-type]

    return Asked(
        name=job.name,
        work_dir=job.work_dir,
        submit_host=job.submit_host,
        account=job.account,
        comment=job.comment,
        export=job.export_spec,
        tasks=given("tasks"),
        cpus_per_task=given("cpus_per_task"),
        memory_mb=given("memory_mb"),
        memory_per_cpu_mb=given("memory_per_cpu_mb"),
        gpus=given("gpus"),
    )


_VERDICTS = {
    VerdictKind.CANCELLED: common_pb2.VERDICT_CANCELLED,
    VerdictKind.TIMEOUT: common_pb2.VERDICT_TIMEOUT,
    VerdictKind.PREEMPTED: common_pb2.VERDICT_PREEMPTED,
    VerdictKind.NODE_LOST: common_pb2.VERDICT_NODE_LOST,
    VerdictKind.STALE: common_pb2.VERDICT_STALE,
    VerdictKind.LAUNCH_FAILED: common_pb2.VERDICT_LAUNCH_FAILED,
    VerdictKind.CONFLICT: common_pb2.VERDICT_CONFLICT,
}
_KINDS = {number: kind for kind, number in _VERDICTS.items()}
_SOURCES = {
    ExitSource.WAITID: common_pb2.WAITID,
    ExitSource.WITNESS: common_pb2.WITNESS,
    ExitSource.KERNEL: common_pb2.KERNEL,
    ExitSource.UNKNOWN: common_pb2.UNKNOWN_EXIT,
    ExitSource.NEVER_STARTED: common_pb2.NEVER_STARTED,
}
_PROGRESS = {
    Progress.NONE: common_pb2.NOT_OWED,
    Progress.OWED: common_pb2.OWED,
    Progress.RUNNING: common_pb2.UNDER_WAY,
    Progress.DONE: common_pb2.DONE,
    Progress.FAILED: common_pb2.FAILED_DUTY,
    Progress.UNKNOWN: common_pb2.OUTCOME_UNKNOWN,
}
_PHASES = {
    Report.READY: spurctld_pb2.ReportRunRequest.READY,
    Report.STARTED: spurctld_pb2.ReportRunRequest.STARTED,
    Report.ENDED: spurctld_pb2.ReportRunRequest.ENDED,
    Report.FINISHED: spurctld_pb2.ReportRunRequest.FINISHED,
    Report.RELEASED: spurctld_pb2.ReportRunRequest.RELEASED,
}
ANSWERS = {
    spurctld_pb2.ReportRunReply.RECORDED: "recorded",
    spurctld_pb2.ReportRunReply.ALREADY_RECORDED: "already_recorded",
    spurctld_pb2.ReportRunReply.STALE_ATTEMPT: "stale_attempt",
    spurctld_pb2.ReportRunReply.UNKNOWN_JOB: "unknown_job",
}


def verdict(message: common_pb2.Verdict) -> Verdict:
    """Malformed: of no kind that we know."""
    kind = _KINDS.get(message.kind)
    if kind is None:
        raise Malformed(f"verdict.kind is {message.kind}")
    return Verdict(kind, message.by_uid, message.at, message.reason)


def report(node: str, known: Known, phase: Report) -> spurctld_pb2.ReportRunRequest:
    """A drain that may lift by itself stands in the heartbeats alone; what is left of it in the end is for good."""
    state = known.state
    drain = state.drain if state and phase is Report.FINISHED else None
    return spurctld_pb2.ReportRunRequest(
        node=node,
        phase=_PHASES[phase],
        status=run_status(known, complete=True),
        drain_reason=drain or "",
        requeue_held=bool(state and state.requeue_held),
    )


def run_status(known: Known, *, complete: bool) -> spurctld_pb2.RunStatus:
    """What the controller is told of a run: all of it, or what a heartbeat carries."""
    state = known.state
    status = spurctld_pb2.RunStatus(
        run=common_pb2.RunId(job_id=known.run.job, attempt=known.run.attempt),
        phase=told_phase(known),
        grant=_grant(known.granted),
        why_waiting=_why_waiting(known),
        suspended=bool(state and state.suspended),
    )
    if state is None or not complete:
        return status
    if state.verdict is not None:
        status.verdict.CopyFrom(_verdict(state.verdict))
    if state.exit is not None:
        status.exit.CopyFrom(exit_record(state.exit))
    status.obligations.extend(_obligation(duty, one) for duty, one in state.obligations.items())
    return status


def _why_waiting(known: Known) -> str:
    state: RunState | None = known.state
    if known.released:
        return "its supervisor leaves"
    if state is not None and state.waiting_for:
        return state.waiting_for
    return "" if state is not None else "its supervisor has not answered yet"


def _grant(granted: Grant) -> common_pb2.Grant:
    return common_pb2.Grant(
        cpus=granted.cpus,
        memory_mb=granted.memory_mb,
        gpus=[common_pb2.Device(name=one.name, type=one.type, index=one.index, file=one.file) for one in granted.gpus],
    )


def launch_reply(granted: Grant, *, already_here: bool) -> spurd_pb2.LaunchRunReply:
    return spurd_pb2.LaunchRunReply(grant=_grant(granted), already_here=already_here)


def _verdict(value: Verdict) -> common_pb2.Verdict:
    return common_pb2.Verdict(kind=_VERDICTS[value.kind], by_uid=value.by_uid, at=value.at, reason=value.reason)


def exit_record(value: Exit) -> common_pb2.Exit:
    message = common_pb2.Exit(
        source=_SOURCES[value.source], at=value.at, oom_kills=value.oom_kills, detail=value.detail
    )
    if value.status is not None:
        message.wait_status = value.status
    if value.usage is not None:
        message.usage.CopyFrom(_usage(value.usage))
    return message


def _usage(value: Usage) -> common_pb2.Usage:
    return common_pb2.Usage(
        user_cpu_s=value.user_cpu_s,
        system_cpu_s=value.system_cpu_s,
        max_rss_kib=value.max_rss_kib,
        read_bytes=value.read_bytes,
        written_bytes=value.written_bytes,
        peak_memory_bytes=value.peak_memory_bytes,
    )


def _obligation(duty: Duty, value: Obligation) -> common_pb2.Obligation:
    return common_pb2.Obligation(
        duty=duty.value, progress=_PROGRESS[value.progress], since=value.since, detail=value.detail
    )
