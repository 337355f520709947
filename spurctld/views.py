"""The records as the commands are shown them: jobs, nodes, partitions, configuration."""

from __future__ import annotations

import math
from collections.abc import Callable

from spur import hostlist, patterns
from spur.config import Config
from spur.pb import common_pb2, spurctld_pb2
from spurctld import messages
from spurctld.core.cluster import Cluster
from spurctld.core.ends import may_requeue
from spurctld.core.records import Job, Node, Partition, Run
from spurctld.core.scheduling import capacity
from spurctld.core.states import UNLIMITED, JobState, NodeState, PartitionState, Phase, Reason
from spurctld.core.values import Gres, Resources, sum_gres

NameOf = Callable[[int], str]


def job_info(cluster: Cluster, job: Job, description: bytes) -> spurctld_pb2.JobInfo:
    """The job without its script and environment, with the letters in its paths replaced."""
    spec, run = job.spec, job.run
    info = spurctld_pb2.JobInfo(
        job_id=job.id,
        attempt=job.attempt,
        state=messages.JOB_STATES[job.state],
        completing=job.completing,
        configuring=job.state is JobState.CONFIGURING,
        exit_code=job.exit_raw,
        uid=spec.uid,
        gid=spec.gid,
        user=spec.user,
        group=spec.group,
        submitted_at=job.submitted_at,
        eligible_at=job.eligible_at,
        started_at=job.started_at if job.state is not JobState.PENDING else 0.0,
        ended_at=_ended_at(job),
        last_scheduled_at=job.looked_at,
        suspended_at=job.suspended_at,
        suspended_s=job.suspended_s,
        time_limit_s=UNLIMITED if spec.time_limit_s is None else spec.time_limit_s,
        partition=spec.partition,
        restarts=job.restarts,
        priority=0 if job.held else job.priority,
        requeue=may_requeue(cluster, job),
        held=bool(job.held),
        failed_node=job.failed_node,
    )
    info.job.ParseFromString(description)
    info.reason, info.state_desc = _why(cluster, job)
    _show_shape(info, job)
    if run is not None:
        _show_run(info, job, run)
    for each in job.runs.values():
        _show_parts(info, each)
    _show_paths(info, job)
    return info


def _ended_at(job: Job) -> float:
    """The end; while it runs, when the limit will end it."""
    if job.state.finished:
        return job.ended_at
    limit = job.spec.time_limit_s
    if job.state.active and limit is not None and limit != UNLIMITED:
        return job.started_at + limit + job.suspended_s
    return 0.0


def _why(cluster: Cluster, job: Job) -> tuple[str, str]:
    """Reason and free text. What holds all jobs of a partition is not written into each of them."""
    if job.state is not JobState.PENDING:
        return (job.held if job.held and not job.state.finished else job.reason), job.state_desc
    if job.held or job.state_desc:
        return job.held or job.reason, job.state_desc
    partition = cluster.partition_of(job)
    if partition.spec.state is PartitionState.DOWN:
        return Reason.PARTITION_DOWN, ""
    if partition.spec.state is PartitionState.INACTIVE:
        return Reason.PARTITION_INACTIVE, ""
    if job.wait_reason == Reason.NONE and partition.blocked:
        return Reason.PRIORITY, ""
    return job.wait_reason, job.wait_desc


def _show_shape(info: spurctld_pb2.JobInfo, job: Job) -> None:
    """How much it holds, or asks for."""
    request, run = job.spec.request, job.run
    info.num_nodes, info.num_cpus, info.num_tasks = request.nodes, request.cpus, request.tasks
    info.memory_mb = request.memory_per_cpu_mb or request.memory_mb or 0
    info.memory_is_per_cpu = request.memory_per_cpu_mb is not None
    if run is not None and job.state is not JobState.PENDING:
        parts = list(run.parts.values())
        info.num_nodes, info.num_cpus = len(parts), sum(part.share.resources.cpus for part in parts)
        if request.memory_mb == 0:
            info.memory_mb = parts[0].share.resources.memory_mb


def _show_run(info: spurctld_pb2.JobInfo, job: Job, run: Run) -> None:
    if run.verdict is not None:
        info.verdict.CopyFrom(messages.verdict_message(run.verdict))
    if job.state is JobState.PENDING and not job.completing:
        return
    info.nodes = hostlist.compress(run.parts)
    info.batch_host = run.batch.node
    if run.exit is not None and job.state.finished:
        info.exit.CopyFrom(messages.exit_message(run.exit))
    total = sum_gres(one for part in run.parts.values() for one in part.share.resources.gres)
    info.gres_allocated.extend(messages.gres_counts(total))


def _show_parts(info: spurctld_pb2.JobInfo, run: Run) -> None:
    for part in run.parts.values():
        shown = info.runs.add(
            node=part.node, phase=part.phase.word, why_waiting=_why_waiting(part.lost, run, part.node)
        )
        shown.run.CopyFrom(messages.run_id(run.key))
        if part.grant is not None:
            shown.grant.CopyFrom(messages.grant_message(part.grant))


def _why_waiting(lost: bool, run: Run, node: str) -> str:
    return f"node {node} does not respond" if lost else run.parts[node].why_waiting


def _show_paths(info: spurctld_pb2.JobInfo, job: Job) -> None:
    names = patterns.Names(job.id, info.job.name, job.spec.user, info.batch_host.partition(".")[0])
    for field in ("stdin_path", "stdout_path", "stderr_path"):
        pattern = getattr(info.job, field)
        if pattern:
            setattr(info.job, field, patterns.expand(pattern, names))


def node_info(cluster: Cluster, node: Node, partitions: list[str], name_of: NameOf) -> spurctld_pb2.NodeInfo:
    has, machine = capacity(node), node.machine
    reason = _node_reason(node)
    info = spurctld_pb2.NodeInfo(
        name=node.name,
        cpus=has.cpus or 1,
        cpus_allocated=node.cpus_allocated,
        memory_mb=has.memory_mb,
        memory_allocated_mb=node.memory_allocated_mb,
        free_memory_mb=node.free_memory_mb,
        load=node.load,
        gres=messages.gres_counts(has.gres),
        gres_allocated=messages.gres_counts(
            sum_gres(Gres(name, type, count) for (name, type), count in node.gres_allocated.items())
        ),
        down=node.state.down,
        drain=node.draining,
        not_responding=node.state is NodeState.SILENT or (node.state is NodeState.DOWN and not node.confirmed),
        completing=_is_completing(cluster, node),
        reason=reason,
        reason_uid=node.reason_uid if reason else 0,
        reason_user=name_of(node.reason_uid) if reason else "",
        reason_at=node.reason_at if reason else 0.0,
        last_busy_at=node.last_busy_at,
        partitions=partitions,
        weight=node.spec.weight,
        unknown=node.machine is None and not node.state.down,
        running_jobs=len(node.runs),
    )
    if machine is not None:
        info.address, info.hostname, info.version = machine.address, machine.hostname, machine.version
        info.arch, info.os, info.tmp_disk_mb = machine.arch, machine.os, machine.tmp_disk_mb
        info.boot_at, info.agent_started_at = machine.boot_at, machine.started_at
        info.sockets, info.cores_per_socket = machine.sockets, machine.cores_per_socket
        info.threads_per_core = machine.threads_per_core
    return info


def _node_reason(node: Node) -> str:
    """One line: why it is down, else why an operator, a hook or its agent drains it."""
    if node.down_reason and node.state.down:
        return node.down_reason
    if node.drained:
        return node.drain_reason
    return "; ".join(dict.fromkeys((*node.hook_drains, *node.agent_drains)))  # the same may be told in both ways


def _is_completing(cluster: Cluster, node: Node) -> bool:
    for key in node.runs:
        job = cluster.jobs[key.job]
        run = job.runs[key.attempt]
        ended = run.parts[node.name].phase >= Phase.ENDED or run.verdict is not None or key.attempt != job.attempt
        if (ended or not job.state.active) and not run.parts[node.name].lost:
            return True
    return False


def partition_info(cluster: Cluster, partition: Partition) -> spurctld_pb2.PartitionInfo:
    spec = partition.spec
    nodes = [node for node in cluster.partition_nodes(partition) if node.declared]
    total = Resources()
    for node in nodes:
        total = total.plus(Resources(node.cpus or 1, node.memory_mb or 0))
    return spurctld_pb2.PartitionInfo(
        name=spec.name,
        nodes=hostlist.compress(node.name for node in nodes),
        is_default=spec.default,
        state=spec.state.value,
        default_time_s=spec.default_time_s or 0,
        max_time_s=spec.max_time_s,
        total_cpus=total.cpus,
        total_nodes=len(nodes),
        total_memory_mb=total.memory_mb,
    )


def config_entries(config: Config, version: str, host: str, next_job: int, listen: str) -> dict[str, str]:
    """Slurm's keys, as scontrol show config prints them, for what there is here."""

    def seconds(value: float) -> str:
        return f"{math.ceil(value)} sec"

    def program(path: object) -> str:
        return str(path) if path else "(null)"

    controller, hooks, limits = config.controller, config.hooks, config.limits
    return {
        "AuthType": f"auth/{config.auth.plugin.value}",
        "ClusterName": config.cluster_name,
        "Epilog": program(hooks.epilog),
        "EpilogSlurmctld": program(hooks.controller_epilog),
        "FirstJobId": str(limits.first_job_id),
        "JobRequeue": "1" if config.job.requeue else "0",
        "KillWait": seconds(config.job.kill_wait_secs),
        "MaxArraySize": "1",
        "MaxJobCount": str(limits.max_jobs),
        "MaxJobId": str(limits.max_job_id),
        "MinJobAge": seconds(config.scheduler.min_job_age_secs),
        "NEXT_JOB_ID": str(next_job),
        "Prolog": program(hooks.prolog),
        "PrologEpilogTimeout": str(math.ceil(max(hooks.prolog_timeout_secs, hooks.epilog_timeout_secs))),
        "PrologSlurmctld": program(hooks.controller_prolog),
        "ReturnToService": "2" if controller.return_to_service else "0",
        "SchedulerType": f"sched/{config.scheduler.plugin.value}",
        "SelectType": "select/cons_tres",
        "SlurmctldHost[0]": host,
        "SlurmctldPort": listen.rpartition(":")[2],
        "SlurmdPort": config.agent.listen.rpartition(":")[2],
        "SlurmdSpoolDir": str(config.agent.state_dir),
        "SlurmdTimeout": seconds(controller.heartbeat_timeout_secs),
        "SLURM_CONF": str(config.path),
        "SLURM_VERSION": version,
        "StateSaveLocation": str(controller.state_dir),
        "TaskEpilog": program(hooks.task_epilog),
        "TaskProlog": program(hooks.task_prolog),
        "UnkillableStepTimeout": seconds(config.job.unkillable_secs),
    }


def script_into(info: spurctld_pb2.JobInfo, bulk: bytes) -> None:
    """Adds the script, for its owner and root."""
    info.script = common_pb2.JobDescription.FromString(bulk).script
