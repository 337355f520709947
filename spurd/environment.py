"""The environments of a run: the batch script's and that of the site's hooks.

Pure: what is decided here stands in the launch plan and is complete; nothing is inherited from a daemon. The names are
Slurm's (sbatch(1), "output environment variables"); which of them are set when was compared with Slurm 22.05.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spur.patterns import Names
from spurstepd.ids import RunId
from spurstepd.ledger import Grant

UNLIMITED_S = 0xFFFFFFFF
HOOK_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Account:
    """A user as this node knows him."""

    name: str
    uid: int
    gid: int
    home: str
    shell: str
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Allocation:
    """What the controller says of a run, without what the job description says."""

    run: RunId
    cluster: str
    node: str
    hostname: str
    partition: str
    nodes: str  # compressed host list
    num_nodes: int
    node_index: int
    tasks_per_node: str
    cpus_per_node: str
    started_at: float
    time_limit_s: int
    restarts: int
    config_path: str


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a job description shows in its environment. None: it was not asked for."""

    name: str
    work_dir: str
    submit_host: str
    account: str
    comment: str
    export: str
    tasks: int | None
    cpus_per_task: int | None
    memory_mb: int | None
    memory_per_cpu_mb: int | None
    gpus: int | None

    @property
    def brings_all(self) -> bool:
        """Whether the job has the whole environment of its submitter, as it has unless `--export` says otherwise."""
        return not self.export or "ALL" in self.export.split(",")


def of_batch_script(
    base: Sequence[bytes], allocation: Allocation, asked: Asked, account: Account, grant: Grant, gpus: Mapping[str, str]
) -> tuple[str, ...]:
    """NAME=VALUE of the script: what `--export` let through, what is missing for a login, and Slurm's own on top.

    `base` is what the job brings along, in its order; `gpus` the variables that make the granted devices visible.
    """
    brought = {name: value for name, value in (_split(entry) for entry in base) if name}
    ours = {**_identity(allocation, asked, account), **_layout(allocation, asked, grant), **_rank(allocation)}
    ours |= {**_asked(asked), **_times(allocation), **gpus}
    if allocation.restarts:
        ours["SLURM_RESTART_COUNT"] = str(allocation.restarts)
    gone = {name for name in brought if name in _OURS_OR_NONE}
    kept = {name: value for name, value in brought.items() if name not in gone}
    login = {} if asked.brings_all else _login(account)
    fallback = {**login, "TMPDIR": "/tmp", "SPUR_CONF": allocation.config_path}
    fallback |= {"SLURM_SUBMIT_DIR": asked.work_dir, "SLURM_PRIO_PROCESS": "0"}  # sbatch brings its own
    return tuple(f"{name}={value}" for name, value in {**fallback, **kept, **ours}.items())


# What a job that was submitted from within another one must not take over from it.
_OURS_OR_NONE = frozenset(
    {
        "SLURM_RESTART_COUNT", "SLURM_JOB_ACCOUNT", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_PER_TASK",
        "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_JOB_END_TIME", "SLURM_JOB_GPUS", "SLURM_GPUS",
        "SLURM_GPUS_ON_NODE", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL", "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_EXPORT_ENV", "SLURM_GET_USER_ENV",
    }
)  # fmt: skip


def _split(entry: bytes) -> tuple[str, str]:
    name, _, value = os.fsdecode(entry).partition("=")
    return name, value


def _login(account: Account) -> dict[str, str]:
    """What a job that brings no environment is given: Slurm takes it from the user's login."""
    return {
        "HOME": account.home,
        "LOGNAME": account.name,
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "SHELL": account.shell,
        "USER": account.name,
    }


def _identity(allocation: Allocation, asked: Asked, account: Account) -> dict[str, str]:
    job = str(allocation.run.job)
    names = {
        "ENVIRONMENT": "BATCH",
        "HOSTNAME": allocation.hostname,
        "SLURMD_NODENAME": allocation.node,
        "SLURM_CLUSTER_NAME": allocation.cluster,
        "SLURM_CONF": allocation.config_path,
        "SLURM_JOBID": job,
        "SLURM_JOB_ID": job,
        "SLURM_JOB_GID": str(account.gid),
        "SLURM_JOB_NAME": asked.name,
        "SLURM_JOB_PARTITION": allocation.partition,
        "SLURM_JOB_UID": str(account.uid),
        "SLURM_JOB_USER": account.name,
        "SLURM_SUBMIT_HOST": asked.submit_host,
        "SLURM_NODE_ALIASES": "(null)",
    }
    if asked.account:
        names["SLURM_JOB_ACCOUNT"] = asked.account
    return names


def _layout(allocation: Allocation, asked: Asked, grant: Grant) -> dict[str, str]:
    return {
        "SLURM_CPUS_ON_NODE": str(len(grant.cpus)),
        "SLURM_JOB_CPUS_PER_NODE": allocation.cpus_per_node or str(len(grant.cpus)),
        "SLURM_JOB_NODELIST": allocation.nodes,
        "SLURM_NODELIST": allocation.nodes,
        "SLURM_JOB_NUM_NODES": str(allocation.num_nodes),
        "SLURM_NNODES": str(allocation.num_nodes),
        "SLURM_TASKS_PER_NODE": allocation.tasks_per_node or str(asked.tasks or 1),
    }


def _rank(allocation: Allocation) -> dict[str, str]:
    return {
        "SLURM_GTIDS": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": str(allocation.node_index),
        "SLURM_PROCID": "0",
        "SLURM_TOPOLOGY_ADDR": allocation.node,
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
    }


def _asked(asked: Asked) -> dict[str, str]:
    given: dict[str, object] = {
        "SLURM_CPUS_PER_TASK": asked.cpus_per_task,
        "SLURM_GPUS": asked.gpus,
        "SLURM_MEM_PER_CPU": asked.memory_per_cpu_mb or None,
        "SLURM_MEM_PER_NODE": asked.memory_mb or None,
        "SLURM_NPROCS": asked.tasks,
        "SLURM_NTASKS": asked.tasks,
    }
    names = {name: str(value) for name, value in given.items() if value is not None}
    if asked.export:
        names["SLURM_EXPORT_ENV"] = asked.export
    if not asked.brings_all:
        names["SLURM_GET_USER_ENV"] = "1"
    return names


def _times(allocation: Allocation) -> dict[str, str]:
    names = {"SLURM_JOB_START_TIME": str(int(allocation.started_at))}
    if allocation.time_limit_s != UNLIMITED_S:
        names["SLURM_JOB_END_TIME"] = str(int(allocation.started_at) + allocation.time_limit_s)
    return names


def of_hooks(
    allocation: Allocation, asked: Asked, account: Account, stdout: str, stderr: str, gpus: Mapping[str, str]
) -> tuple[str, ...]:
    """NAME=VALUE of prolog and epilog, without what the supervisor alone knows: script context and exit codes."""
    job = str(allocation.run.job)
    names = {
        "PATH": HOOK_PATH,
        "SLURMD_NODENAME": allocation.node,
        "SLURM_CLUSTER_NAME": allocation.cluster,
        "SLURM_CONF": allocation.config_path,
        "SPUR_CONF": allocation.config_path,
        "SLURM_JOBID": job,
        "SLURM_JOB_ID": job,
        "SLURM_JOB_USER": account.name,
        "SLURM_JOB_UID": str(account.uid),
        "SLURM_UID": str(account.uid),
        "SLURM_JOB_GID": str(account.gid),
        "SLURM_JOB_NAME": asked.name,
        "SLURM_JOB_PARTITION": allocation.partition,
        "SLURM_JOB_NODELIST": allocation.nodes,
        "SLURM_NODELIST": allocation.nodes,
        "SLURM_JOB_WORK_DIR": asked.work_dir,
        "SLURM_JOB_STDOUT": stdout,
        "SLURM_JOB_STDERR": stderr,
        "SLURM_JOB_COMMENT": asked.comment,
        "SLURM_JOB_START_TIME": str(int(allocation.started_at)),
        "SLURM_RESTART_COUNT": str(allocation.restarts),
        **gpus,
    }
    return tuple(f"{name}={value}" for name, value in names.items())


def names_of(allocation: Allocation, asked: Asked, account: Account) -> Names:
    """What stands for the letters of this run's file names."""
    return Names(allocation.run.job, asked.name, account.name, allocation.node, allocation.node_index)
