"""A job as the commands show it: the controller's record, taken apart once, and what Slurm derives from it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from spur import memory
from spur.console import Failure
from spur.times import UNLIMITED

if TYPE_CHECKING:
    from spur.pb.common_pb2 import GresCount, JobDescription
    from spur.pb.spurctld_pb2 import JobInfo, RunOnNode


class JobState(Enum):
    """Slurm's base states in the order of its numbers, and their short names."""

    PENDING = "PD"
    RUNNING = "R"
    SUSPENDED = "S"
    COMPLETED = "CD"
    CANCELLED = "CA"
    FAILED = "F"
    TIMEOUT = "TO"
    NODE_FAIL = "NF"
    PREEMPTED = "PR"
    BOOT_FAIL = "BF"
    DEADLINE = "DL"
    OUT_OF_MEMORY = "OOM"


# States that squeue shows instead of the base state, in Slurm's order. A job of Spur is in the first two at most.
FLAGS = {
    "COMPLETING": "CG",
    "CONFIGURING": "CF",
    "RESIZING": "RS",
    "RESV_DEL_HOLD": "RD",
    "REQUEUED": "RQ",
    "REQUEUE_FED": "RF",
    "REQUEUE_HOLD": "RH",
    "REVOKED": "RV",
    "SIGNALING": "SI",
    "SPECIAL_EXIT": "SE",
    "STAGE_OUT": "SO",
    "STOPPED": "ST",
}
STATE_NAMES = (*JobState.__members__, *FLAGS)
ACTIVE = frozenset({JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED})
# Where squeue's NODELIST(REASON) says why rather than where.
_TELLS_REASON = frozenset(
    {JobState.PENDING, JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.DEADLINE, JobState.FAILED}
)


@dataclass(frozen=True, slots=True)
class Share:
    """What a job holds on one node, by id."""

    node: str
    cpus: tuple[int, ...]
    memory_mb: int
    gpus: tuple[tuple[str, int], ...]  # name with type, such as gpu:a100, and index


@dataclass(frozen=True, slots=True)
class JobView:
    """All times are seconds since the epoch, 0 where there is none; texts are empty where there is none."""

    job_id: int
    name: str
    user: str
    uid: int
    group: str
    gid: int
    account: str
    partition: str
    state: JobState
    completing: bool
    configuring: bool
    reason: str
    state_desc: str
    exit_code: int  # raw, as Slurm keeps it
    derived_exit_code: int
    submitted_at: float
    eligible_at: float
    started_at: float
    ended_at: float
    last_scheduled_at: float
    suspended_at: float
    suspended_s: float
    time_limit_s: int
    nodes: str
    batch_host: str
    num_nodes: int
    nodes_asked: int  # 0: as many as it takes
    num_cpus: int
    num_tasks: int
    cpus_per_task: int
    memory_mb: int
    memory_is_per_cpu: bool
    gres_per_node: str
    gres_per_job: str
    gres_per_task: str
    gres_allocated: str
    priority: int
    nice: int
    restarts: int
    requeue: bool
    failed_node: str
    wanted_nodes: str
    excluded_nodes: str
    command: str
    work_dir: str
    stdin: str
    stdout: str
    stderr: str
    comment: str
    submit_host: str
    session_id: int
    tasks_per_node: int
    shares: tuple[Share, ...]

    @property
    def state_name(self) -> str:
        """COMPLETING and CONFIGURING stand in place of the state that the job will have or had."""
        return "COMPLETING" if self.completing else "CONFIGURING" if self.configuring else self.state.name

    @property
    def short_state(self) -> str:
        return FLAGS.get(self.state_name) or self.state.value

    @property
    def ended(self) -> bool:
        """Whether the job has its final state; it may still be completing."""
        return self.state not in ACTIVE

    @property
    def active(self) -> bool:
        """Whether squeue lists it when it is not told which states to list."""
        return not self.ended or self.completing

    @property
    def why(self) -> str:
        """The reason, as free text where the controller has one."""
        return self.state_desc or self.reason or "None"

    @property
    def where_or_why(self) -> str:
        """squeue's NODELIST(REASON)."""
        if self.state in _TELLS_REASON and not self.completing and not self.configuring:
            return f"({self.why})"
        return self.nodes

    @property
    def min_cpus(self) -> int:
        """CPUs that it needs on each node."""
        return self.cpus_per_task * (self.tasks_per_node or 1)

    @property
    def unlimited(self) -> bool:
        return self.time_limit_s == UNLIMITED

    def used_s(self, now: float) -> int:
        """For how long it has run; time in suspension does not count, nor what earlier attempts took."""
        if self.state is JobState.PENDING or not self.started_at:
            return 0
        until = self.ended_at if self.ended else self.suspended_at or now
        return int(until) - int(self.started_at) - int(self.suspended_s)

    @property
    def tres(self) -> str:
        """The resources that it has or asks for, as Slurm tracks them where no accounting says otherwise."""
        factor = self.num_cpus if self.memory_is_per_cpu else self.num_nodes
        memory_text = f"mem={memory.format_size(self.memory_mb * factor)}," if self.memory_mb else ""
        return f"cpu={self.num_cpus},{memory_text}node={self.num_nodes},billing={self.num_cpus}"


def decode(info: JobInfo) -> JobView:
    """The job in a message of the controller. Failure: its state is not one that this version knows."""
    job = info.job
    return JobView(
        job_id=info.job_id,
        name=job.name,
        user=info.user or str(info.uid),
        uid=info.uid,
        group=info.group or str(info.gid),
        gid=info.gid,
        account=job.account,
        partition=info.partition or job.partition,
        state=_state(info),
        completing=info.completing,
        configuring=info.configuring,
        reason=info.reason,
        state_desc=info.state_desc,
        exit_code=info.exit_code,
        derived_exit_code=info.derived_exit_code,
        submitted_at=info.submitted_at,
        eligible_at=info.eligible_at,
        started_at=info.started_at,
        ended_at=info.ended_at,
        last_scheduled_at=info.last_scheduled_at,
        suspended_at=info.suspended_at,
        suspended_s=info.suspended_s,
        time_limit_s=info.time_limit_s,
        nodes=info.nodes,
        batch_host=info.batch_host,
        num_nodes=info.num_nodes,
        nodes_asked=job.nodes,
        num_cpus=info.num_cpus,
        num_tasks=info.num_tasks,
        cpus_per_task=job.cpus_per_task or 1,
        memory_mb=info.memory_mb,
        memory_is_per_cpu=info.memory_is_per_cpu,
        gres_per_node=gres_text(job.gres_per_node),
        gres_per_job=_gpus(job, "gpus"),
        gres_per_task=_gpus(job, "gpus_per_task"),
        gres_allocated=gres_text(info.gres_allocated, prefix=""),
        priority=info.priority,
        nice=job.nice,
        restarts=info.restarts,
        requeue=info.requeue,
        failed_node=info.failed_node,
        wanted_nodes=job.node_list,
        excluded_nodes=job.exclude,
        command=" ".join((job.command, *job.arguments)) if job.command else "",
        work_dir=job.work_dir,
        stdin=_path(job, job.stdin_path, "/dev/null"),
        stdout=_path(job, job.stdout_path, f"slurm-{info.job_id}.out"),
        stderr=_path(job, job.stderr_path or job.stdout_path, f"slurm-{info.job_id}.out"),
        comment=job.comment,
        submit_host=job.submit_host,
        session_id=job.session_id,
        tasks_per_node=job.tasks_per_node,
        shares=tuple(_share(run) for run in info.runs if run.HasField("grant") and run.run.attempt == info.attempt),
    )


def _state(info: JobInfo) -> JobState:
    from spur.pb import common_pb2

    try:
        return JobState[common_pb2.JobState.Name(info.state)]
    except (KeyError, ValueError):
        raise Failure(f"job {info.job_id} is in a state that this version does not know: {info.state}") from None


def _path(job: JobDescription, path: str, default: str) -> str:
    return os.path.join(job.work_dir, path or default)


def _gpus(job: JobDescription, field: str) -> str:
    count: int = getattr(job, field)
    return f"gres:gpu:{count}" if job.HasField(field) and count else ""  # type: ignore[arg-type]


def gres_text(counts: Iterable[GresCount], prefix: str = "gres:") -> str:
    """`gres:gpu:a100:2`, as Slurm writes what was asked for."""
    return ",".join(prefix + ":".join(part for part in (one.name, one.type, str(one.count)) if part) for one in counts)


def _share(run: RunOnNode) -> Share:
    devices = tuple((f"{one.name}:{one.type}" if one.type else one.name, one.index) for one in run.grant.gpus)
    return Share(run.node, tuple(sorted(run.grant.cpus)), run.grant.memory_mb, devices)


def ranges(numbers: Iterable[int]) -> str:
    """`0-2,5`: how Slurm prints ids of CPUs and devices."""
    spans: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
