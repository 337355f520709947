"""Records as `scontrol show` prints them: lines of Key=Value, or all on one line with -o."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from spur import hostlist, memory, times
from spur.columns import NULL
from spur.jobview import JobState, JobView, Share, ranges
from spur.nodeview import NodeView
from spur.partitionview import PartitionView

DEFAULT_AGENT_PORT = 6818  # Port= is shown where a node's is another


def of_job(job: JobView, now: float, environ: Mapping[str, str], *, details: bool, one_line: bool) -> str:
    """A job. `details` adds what it holds on each node, by id."""
    lines = [
        *_identity(job, details),
        *_times(job, now, environ),
        *_places(job),
        *(_holdings(job.shares) if details else ()),
        *_requests(job),
        *_files(job),
    ]
    separator = " " if one_line else "\n   "
    return separator.join(lines) + separator + ("\n" if one_line else "\n\n")


def _identity(job: JobView, details: bool) -> Iterator[str]:
    yield f"JobId={job.job_id} JobName={job.name}"
    yield f"UserId={job.user}({job.uid}) GroupId={job.group}({job.gid}) MCS_label=N/A"
    yield f"Priority={job.priority} Nice={job.nice} Account={job.account or NULL} QOS={NULL}"
    failed = f"FailedNode={job.failed_node} " if job.failed_node else ""
    yield f"JobState={job.state_name} Reason={job.why.replace(' ', '_')} {failed}Dependency={NULL}"
    yield (
        f"Requeue={int(job.requeue)} Restarts={job.restarts} BatchFlag=1 Reboot=0 ExitCode={exit_text(job.exit_code)}"
    )
    if details:
        yield f"DerivedExitCode={exit_text(job.derived_exit_code)}"


def _times(job: JobView, now: float, environ: Mapping[str, str]) -> Iterator[str]:
    def at(moment: float, unset: str = "Unknown") -> str:
        return times.format_instant(moment, environ, unset=unset, now=now)

    endless = job.unlimited and job.state in (JobState.RUNNING, JobState.SUSPENDED)
    until_suspension_s = job.used_s(now) if job.suspended_at else 0
    run_time = times.format_duration(job.used_s(now))
    yield f"RunTime={run_time} TimeLimit={times.format_limit(job.time_limit_s)} TimeMin=N/A"
    yield f"SubmitTime={at(job.submitted_at)} EligibleTime={at(job.eligible_at)}"
    yield f"AccrueTime={at(job.eligible_at)}"
    yield f"StartTime={at(job.started_at)} EndTime={at(0 if endless else job.ended_at)} Deadline=N/A"
    yield (
        f"SuspendTime={at(job.suspended_at, 'None')} SecsPreSuspend={until_suspension_s} "
        f"LastSchedEval={at(job.last_scheduled_at)} Scheduler=Main"
    )


def _places(job: JobView) -> Iterator[str]:
    yield f"Partition={job.partition} AllocNode:Sid={job.submit_host or NULL}:{job.session_id}"
    yield f"ReqNodeList={job.wanted_nodes or NULL} ExcNodeList={job.excluded_nodes or NULL}"
    yield f"NodeList={job.nodes}"
    if job.batch_host:
        yield f"BatchHost={job.batch_host}"
    waits_for_nodes = job.nodes_asked and job.state is JobState.PENDING
    nodes = f"{job.nodes_asked}-{job.nodes_asked}" if waits_for_nodes else job.num_nodes
    yield (
        f"NumNodes={nodes} NumCPUs={job.num_cpus} NumTasks={job.num_tasks or 'N/A'} "
        f"CPUs/Task={job.cpus_per_task} ReqB:S:C:T=0:0:*:*"
    )
    yield f"TRES={job.tres}"
    yield f"Socks/Node=* NtasksPerN:B:S:C={job.tasks_per_node}:0:*:* CoreSpec=*"


def _holdings(shares: Iterable[Share]) -> Iterator[str]:
    """What the job holds: in all, and node by node; nodes on which it holds the same share a line."""
    shares = list(shares)
    if not shares:
        return
    totals: dict[str, int] = {}
    for share in shares:
        for name, _ in share.gpus:
            totals[name] = totals.get(name, 0) + 1
    yield f"JOB_GRES={','.join(f'{name}:{count}' for name, count in totals.items()) or NULL}"
    for (cpus, memory_mb, gpus), group in groupby(shares, key=lambda one: (one.cpus, one.memory_mb, one.gpus)):
        nodes = hostlist.compress(share.node for share in group)
        yield f"  Nodes={nodes} CPU_IDs={ranges(cpus)} Mem={memory_mb} GRES={_devices(gpus)}"


def _devices(gpus: Iterable[tuple[str, int]]) -> str:
    """`gpu:2(IDX:0-1)`"""
    by_name: dict[str, list[int]] = {}
    for name, index in gpus:
        by_name.setdefault(name, []).append(index)
    return ",".join(f"{name}:{len(indices)}(IDX:{ranges(indices)})" for name, indices in by_name.items())


def _requests(job: JobView) -> Iterator[str]:
    per = "CPU" if job.memory_is_per_cpu else "Node"
    yield f"MinCPUsNode={job.min_cpus} MinMemory{per}={memory.format_size(job.memory_mb)} MinTmpDiskNode=0"
    yield f"Features={NULL} DelayBoot=00:00:00"
    yield f"OverSubscribe=OK Contiguous=0 Licenses={NULL} Network={NULL}"


def _files(job: JobView) -> Iterator[str]:
    yield f"Command={job.command or NULL}"
    yield f"WorkDir={job.work_dir}"
    if job.comment:
        yield f"Comment={job.comment} "
    yield f"StdErr={job.stderr}"
    yield f"StdIn={job.stdin}"
    yield f"StdOut={job.stdout}"
    yield "Power="
    for name, text in (
        ("TresPerJob", job.gres_per_job),
        ("TresPerNode", job.gres_per_node),
        ("TresPerTask", job.gres_per_task),
    ):
        if text:
            yield f"{name}={text}"


def exit_text(raw: int) -> str:
    """`code:signal` of a wait status as Slurm keeps it, pseudo statuses included."""
    signal = os.WTERMSIG(raw) if os.WIFSIGNALED(raw) else 0
    return f"{os.WEXITSTATUS(raw)}:{signal}"


def of_node(node: NodeView, now: float, environ: Mapping[str, str], *, details: bool, one_line: bool) -> str:
    """A node. `details` adds what jobs have of its generic resources."""
    separator = " " if one_line else "\n   "
    return separator.join(_node_lines(node, now, environ, details)) + ("\n" if one_line else "\n\n")


def _node_lines(node: NodeView, now: float, environ: Mapping[str, str], details: bool) -> Iterator[str]:
    def at(moment: float, unset: str) -> str:
        return times.format_instant(moment, environ, unset=unset, now=now)

    arch = f"Arch={node.arch} " if node.arch else ""
    yield f"NodeName={node.name} {arch}CoresPerSocket={node.cores_per_socket} "
    load = f"{node.load:.2f}" if node.registered else "N/A"
    yield f"CPUAlloc={node.cpus_allocated} CPUEfctv={node.cpus} CPUTot={node.cpus} CPULoad={load}"
    yield f"AvailableFeatures={NULL}"
    yield f"ActiveFeatures={NULL}"
    yield f"Gres={node.gres}"
    if details:
        yield "GresDrain=N/A"
        yield f"GresUsed={node.gres_used}"
    port = f"Port={node.port} " if node.port not in (0, DEFAULT_AGENT_PORT) else ""
    version = f"Version={node.version}" if node.version else ""
    yield f"NodeAddr={node.address} NodeHostName={node.hostname} {port}{version}"
    if node.os:
        yield f"OS={node.os} "
    free = node.free_memory_mb if node.registered else "N/A"
    yield (
        f"RealMemory={node.memory_mb} AllocMem={node.memory_allocated_mb} FreeMem={free} "
        f"Sockets={node.sockets} Boards=1"
    )
    yield (
        f"State={node.complete_state} ThreadsPerCore={node.threads_per_core} TmpDisk={node.tmp_disk_mb} "
        f"Weight={node.weight} Owner=N/A MCS_label=N/A"
    )
    if node.partitions:
        yield f"Partitions={','.join(node.partitions)} "
    yield f"BootTime={at(node.boot_at, 'None')} SlurmdStartTime={at(node.agent_started_at, 'None')}"
    yield f"LastBusyTime={at(node.last_busy_at, 'Unknown')}"
    yield f"CfgTRES=cpu={node.cpus},mem={memory.format_size(node.memory_mb)},billing={node.cpus}"
    yield f"AllocTRES={_allocated(node)}"
    yield "CapWatts=n/a"
    yield "CurrentWatts=0 AveWatts=0"
    yield "ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s"
    if node.reason:
        by = f" [{node.reason_user or node.reason_uid}@{at(node.reason_at, 'Unknown')}]" if node.reason_at else ""
        yield f"Reason={node.reason}{by}"


def _allocated(node: NodeView) -> str:
    parts = []
    if node.cpus_allocated:
        parts.append(f"cpu={node.cpus_allocated}")
    if node.memory_allocated_mb:
        parts.append(f"mem={memory.format_size(node.memory_allocated_mb)}")
    return ",".join(parts)


def of_partition(partition: PartitionView, *, one_line: bool) -> str:
    """A partition."""
    default_time = times.format_limit(partition.default_time_s) if partition.default_time_s else "NONE"
    memory_text = memory.format_size(partition.total_memory_mb)
    lines = (
        f"PartitionName={partition.name}",
        "AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL",
        f"AllocNodes=ALL Default={'YES' if partition.is_default else 'NO'} QoS=N/A",
        f"DefaultTime={default_time} DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO",
        f"MaxNodes=UNLIMITED MaxTime={times.format_limit(partition.max_time_s)} "
        "MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED",
        f"Nodes={partition.node_list or NULL}",
        f"PriorityJobFactor=1 PriorityTier={partition.priority} RootOnly=NO ReqResv=NO OverSubscribe=NO",
        "OverTimeLimit=NONE PreemptMode=OFF",
        f"State={partition.state} TotalCPUs={partition.total_cpus} TotalNodes={partition.total_nodes} "
        "SelectTypeParameters=NONE",
        f"JobDefaults={NULL}",
        "DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED",
        f"TRES=cpu={partition.total_cpus},mem={memory_text},node={partition.total_nodes},billing={partition.total_cpus}",
    )
    separator = " " if one_line else "\n   "
    return separator.join(lines) + ("\n" if one_line else "\n\n")
