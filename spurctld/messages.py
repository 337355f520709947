"""The contracts' messages as the core's values, and back. What cannot be is refused by the name of its field."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spur import hostlist
from spur.pb import common_pb2, spurctld_pb2
from spurctld.core.states import Answer, ExitSource, JobState, NodeOrder, Phase, SignalScope, VerdictKind
from spurctld.core.values import (
    Device,
    Exit,
    Grant,
    Gres,
    JobSpec,
    Machine,
    Request,
    RunKey,
    RunState,
    Usage,
    Verdict,
)

MAX_MEMORY_MB = 2**40
MAX_TASKS = 10_000_000


class Malformed(ValueError):
    """A message that cannot be; one line that names the field. `slurm_text` where Slurm has a text for it."""


VERDICTS = {
    VerdictKind.CANCELLED: common_pb2.VERDICT_CANCELLED,
    VerdictKind.TIMEOUT: common_pb2.VERDICT_TIMEOUT,
    VerdictKind.PREEMPTED: common_pb2.VERDICT_PREEMPTED,
    VerdictKind.NODE_LOST: common_pb2.VERDICT_NODE_LOST,
    VerdictKind.STALE: common_pb2.VERDICT_STALE,
    VerdictKind.LAUNCH_FAILED: common_pb2.VERDICT_LAUNCH_FAILED,
    VerdictKind.CONFLICT: common_pb2.VERDICT_CONFLICT,
}
_VERDICT_KINDS = {number: kind for kind, number in VERDICTS.items()}
EXIT_SOURCES = {
    ExitSource.WAITID: common_pb2.WAITID,
    ExitSource.WITNESS: common_pb2.WITNESS,
    ExitSource.KERNEL: common_pb2.KERNEL,
    ExitSource.UNKNOWN: common_pb2.UNKNOWN_EXIT,
    ExitSource.NEVER_STARTED: common_pb2.NEVER_STARTED,
}
_SOURCES = {number: source for source, number in EXIT_SOURCES.items()}
_PHASES: dict[int, Phase] = {
    spurctld_pb2.ReportRunRequest.READY: Phase.READY,
    spurctld_pb2.ReportRunRequest.STARTED: Phase.RUNNING,
    spurctld_pb2.ReportRunRequest.ENDED: Phase.ENDED,
    spurctld_pb2.ReportRunRequest.FINISHED: Phase.FINISHED,
    spurctld_pb2.ReportRunRequest.RELEASED: Phase.RELEASED,
}
ANSWERS = {
    Answer.RECORDED: spurctld_pb2.ReportRunReply.RECORDED,
    Answer.ALREADY_RECORDED: spurctld_pb2.ReportRunReply.ALREADY_RECORDED,
    Answer.STALE_ATTEMPT: spurctld_pb2.ReportRunReply.STALE_ATTEMPT,
    Answer.UNKNOWN_JOB: spurctld_pb2.ReportRunReply.UNKNOWN_JOB,
}
JOB_STATES = {state: getattr(common_pb2, state.name) for state in JobState if state is not JobState.CONFIGURING} | {
    JobState.CONFIGURING: common_pb2.RUNNING
}
_SCOPES: dict[int, SignalScope] = {
    spurctld_pb2.CancelJobsRequest.STEPS: SignalScope.STEPS,
    spurctld_pb2.CancelJobsRequest.BATCH: SignalScope.BATCH,
    spurctld_pb2.CancelJobsRequest.FULL: SignalScope.FULL,
}


# In


def run_key(message: common_pb2.RunId) -> RunKey:
    if message.job_id < 1 or message.attempt < 1:
        raise Malformed(f"run: no run is called {message.job_id}.{message.attempt}")
    return RunKey(message.job_id, message.attempt)


def report_phase(number: int) -> Phase:
    phase = _PHASES.get(number)
    if phase is None:
        raise Malformed(f"phase: {number} is none")
    return phase


def scope(number: int) -> SignalScope:
    found = _SCOPES.get(number)
    if found is None:
        raise Malformed(f"scope: {number} is none")
    return found


def node_order(text: str) -> NodeOrder:
    """IDLE is Slurm's other word for RESUME."""
    word = text.upper()
    try:
        return NodeOrder.RESUME if word == "IDLE" else NodeOrder(word)
    except ValueError:
        raise Malformed(f"state: {text[:40]!r} is no state that a node can be given") from None


def host_names(field: str, text: str) -> tuple[str, ...]:
    """The names of a host list, each once, in their order."""
    try:
        return tuple(dict.fromkeys(hostlist.expand(text))) if text else ()
    except hostlist.HostlistError as error:
        raise Malformed(f"{field}: {error}") from None


def job_spec(job: common_pb2.JobDescription, *, uid: int, gid: int, user: str, group: str) -> JobSpec:
    """What the controller decides by."""
    if "\0" in job.name or "\0" in job.partition:
        raise Malformed("name: a NUL byte in it")
    return JobSpec(
        name=job.name,
        uid=uid,
        gid=gid,
        user=user,
        group=group,
        partition=job.partition,
        request=_request(job),
        time_limit_s=job.time_limit_s if job.HasField("time_limit_s") else None,
        requeue=job.requeue if job.HasField("requeue") else None,
        hold=job.hold,
        nice=job.nice,
        account=job.account,
    )


def _request(job: common_pb2.JobDescription) -> Request:
    def given(field: Any, least: int, most: int) -> int | None:
        if not job.HasField(field):
            return None
        value = int(getattr(job, field))
        if not least <= value <= most:
            raise Malformed(f"{field}: {value} is not between {least} and {most}")
        return value

    nodes = given("nodes", 1, 65536)
    tasks = given("tasks", 1, MAX_TASKS) or nodes or 1
    gpus, per_task = given("gpus", 0, 65536), given("gpus_per_task", 0, 65536)
    return Request(
        nodes=min(nodes or 1, tasks),
        tasks=tasks,
        tasks_per_node=given("tasks_per_node", 1, MAX_TASKS),
        cpus_per_task=given("cpus_per_task", 1, 65535) or 1,
        memory_mb=given("memory_mb", 0, MAX_MEMORY_MB),
        memory_per_cpu_mb=given("memory_per_cpu_mb", 1, MAX_MEMORY_MB),
        gres_per_node=gres("gres_per_node", job.gres_per_node),
        gres_per_task=(Gres("gpu", "", per_task),) if per_task else (),
        gres_per_job=(Gres("gpu", "", gpus),) if gpus else (),
        required=host_names("node_list", job.node_list),
        excluded=frozenset(host_names("exclude", job.exclude)),
    )


def gres(field: str, amounts: Iterable[common_pb2.GresCount]) -> tuple[Gres, ...]:
    found = []
    for one in amounts:
        if not one.name:
            raise Malformed(f"{field}: a resource without a name")
        if one.count:
            found.append(Gres(one.name, one.type, one.count))
    return tuple(found)


def grant(message: common_pb2.Grant) -> Grant:
    gpus = tuple(Device(one.name, one.type, one.index, one.file) for one in message.gpus)
    return Grant(tuple(message.cpus), message.memory_mb, gpus)


def verdict(message: common_pb2.Verdict) -> Verdict:
    kind = _VERDICT_KINDS.get(message.kind)
    if kind is None:
        raise Malformed(f"verdict.kind: {message.kind} is none")
    return Verdict(kind, message.by_uid, message.at, message.reason)


def exit_record(message: common_pb2.Exit) -> Exit:
    source = _SOURCES.get(message.source)
    if source is None:
        raise Malformed(f"exit.source: {message.source} is none")
    status = message.wait_status if message.HasField("wait_status") else None
    if status is None and source not in (ExitSource.UNKNOWN, ExitSource.NEVER_STARTED):
        raise Malformed(f"exit.wait_status: missing, though the source is {source.value}")
    if status is not None and status > 0xFFFF:
        raise Malformed(f"exit.wait_status: {status} is no wait status")
    usage = _usage(message.usage) if message.HasField("usage") else None
    return Exit(source, status, message.at, message.oom_kills, message.detail, usage)


def _usage(message: common_pb2.Usage) -> Usage:
    return Usage(
        message.user_cpu_s,
        message.system_cpu_s,
        message.max_rss_kib,
        message.read_bytes,
        message.written_bytes,
        message.peak_memory_bytes,
    )


def run_state(message: spurctld_pb2.RunStatus) -> RunState:
    return RunState(
        run=run_key(message.run),
        phase=message.phase,
        grant=grant(message.grant) if message.HasField("grant") else None,
        verdict=verdict(message.verdict) if message.HasField("verdict") else None,
        exit=exit_record(message.exit) if message.HasField("exit") else None,
        why_waiting=message.why_waiting,
        suspended=message.suspended,
    )


def machine(message: spurctld_pb2.RegisterRequest) -> Machine:
    for field in ("node", "address", "boot_id", "incarnation"):
        if not getattr(message, field):
            raise Malformed(f"{field}: missing")
    return Machine(
        address=message.address,
        hostname=message.hostname,
        version=message.version,
        arch=message.arch,
        os=message.os,
        boot_id=message.boot_id,
        incarnation=message.incarnation,
        cpus=message.cpus,
        memory_mb=message.memory_mb,
        gres=gres("gres", message.gres),
        sockets=message.sockets,
        cores_per_socket=message.cores_per_socket,
        threads_per_core=message.threads_per_core,
        tmp_disk_mb=message.tmp_disk_mb,
        boot_at=message.boot_at,
        started_at=message.started_at,
    )


# Out


def gres_counts(amounts: Iterable[Gres]) -> list[common_pb2.GresCount]:
    return [common_pb2.GresCount(name=one.name, type=one.type, count=one.count) for one in amounts]


def grant_message(value: Grant) -> common_pb2.Grant:
    gpus = [common_pb2.Device(name=d.name, type=d.type, index=d.index, file=d.file) for d in value.gpus]
    return common_pb2.Grant(cpus=value.cpus, memory_mb=value.memory_mb, gpus=gpus)


def verdict_message(value: Verdict) -> common_pb2.Verdict:
    return common_pb2.Verdict(kind=VERDICTS[value.kind], by_uid=value.by_uid, at=value.at, reason=value.reason)


def exit_message(value: Exit) -> common_pb2.Exit:
    message = common_pb2.Exit(
        source=EXIT_SOURCES[value.source], at=value.at, oom_kills=value.oom_kills, detail=value.detail
    )
    if value.status is not None:
        message.wait_status = value.status
    if value.usage is not None:
        for name in Usage.__dataclass_fields__:
            setattr(message.usage, name, getattr(value.usage, name))
    return message


def run_id(key: RunKey) -> common_pb2.RunId:
    return common_pb2.RunId(job_id=key.job, attempt=key.attempt)
