"""The configuration that all daemons and commands of a cluster share: one TOML file, read once at start.

The dataclasses below are the table of its options; docs/configuration.md and the example file come from them.
Whatever the file says that is unknown or cannot be is refused with one line that names file, table and key.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from spur import addresses, times
from spur import tables as t
from spur.gres import DeviceFile, Gres, total
from spur.tables import option

DEFAULT_PATH = Path("/etc/spur/spur.toml")
MAX_BYTES = 16 * 2**20
LEAST_HEARTBEAT_TIMEOUT_S = 30  # below it, an ordinary restart of an agent may look like the loss of its node

_NAME = t.matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "a name of letters, digits, _, - and .")
_DAY = 86400


class ConfigError(Exception):
    """The configuration cannot be used; one line that says which file, which key and why."""


class AuthPlugin(Enum):
    """How a caller proves who it is."""

    TOKEN = "token"
    NONE = "none"


class SchedulerPlugin(Enum):
    BACKFILL = "backfill"
    BUILTIN = "builtin"  # strictly in order of priority


class CgroupUse(Enum):
    AUTO = "auto"
    REQUIRED = "required"
    NONE = "none"


class PartitionState(Enum):
    UP = "UP"
    DOWN = "DOWN"  # takes jobs, starts none
    DRAIN = "DRAIN"  # takes none, starts those it has
    INACTIVE = "INACTIVE"  # neither


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """spurctld."""

    listen: str = option(t.address, "127.0.0.1:6817", "Address at which spurctld serves; port 0 picks a free one.")
    state_dir: Path = option(t.path, Path("/var/lib/spur/spurctld"), "Where spurctld keeps its database.")
    runtime_dir: Path = option(t.path, Path("/run/spur"), "Where spurctld makes its local socket, spurctld.sock.")
    heartbeat_timeout_secs: float = option(
        t.number(0.2, _DAY), 90.0, "A node that has not been heard of for so long is DOWN and its jobs are given up."
    )
    agent_timeout_secs: float = option(t.number(0.1, 600), 10.0, "How long an agent may take to answer one call.")
    missing_run_grace_secs: float = option(
        t.number(0, _DAY), 30.0, "How long a run that its node does not report is believed in."
    )
    take_back_runs: bool = option(
        t.flag,
        True,
        "A node that comes back after the timeout keeps a run that is still its job's current attempt; "
        "false: such a run is ended.",
    )
    return_to_service: bool = option(
        t.flag, True, "A node that was DOWN for not responding is used again once it registers; false: when told to."
    )


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """spurd, one per node."""

    controller: tuple[str, ...] = option(
        t.many(t.address, 1), ("127.0.0.1:6817",), "Where agents and commands find spurctld; tried in this order."
    )
    listen: str = option(t.address, "0.0.0.0:6818", "Address at which spurd serves; port 0 picks a free one.")
    state_dir: Path = option(t.path, Path("/var/lib/spur/spurd"), "Where spurd and the supervisors keep their records.")
    runtime_dir: Path = option(t.path, Path("/run/spur"), "Where spurd and the supervisors make their local sockets.")
    heartbeat_interval_secs: float = option(t.number(0.05, 3600), 10.0, "How often spurd tells spurctld of its runs.")
    supervisor_timeout_secs: float = option(
        t.number(0.5, 3600), 30.0, "How long a supervisor that is needed may not answer before it is replaced."
    )
    cgroup: CgroupUse = option(
        t.one_of(CgroupUse),
        CgroupUse.AUTO,
        "Whether runs are kept in cgroups: auto where the kernel lets us, required or not at all, or none.",
    )
    constrain_cpus: bool = option(t.flag, False, "Runs may use only the CPUs that they were granted.")
    constrain_memory: bool = option(t.flag, False, "Runs may use only the memory that they were granted.")
    constrain_devices: bool = option(t.flag, False, "Runs may open only the devices that they were granted.")


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """How callers prove who they are."""

    plugin: AuthPlugin = option(
        t.one_of(AuthPlugin),
        AuthPlugin.TOKEN,
        "token: signed with the shared key; none: callers are believed, on loopback addresses only.",
    )
    key_file: Path = option(
        t.path, Path("/etc/spur/auth.key"), "The key that all daemons share: at least 32 bytes, mode 0600, root's."
    )
    user_token_secs: int = option(t.integer(10, _DAY), 300, "How long a user's token is good.")
    clock_skew_secs: int = option(t.integer(0, 3600), 60, "How far the clocks of two machines may be apart.")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """When and in which order jobs start."""

    plugin: SchedulerPlugin = option(
        t.one_of(SchedulerPlugin),
        SchedulerPlugin.BACKFILL,
        "backfill: a later job may start earlier where it delays none before it; builtin: strictly in order.",
    )
    interval_secs: float = option(t.number(0.01, 3600), 1.0, "How often the whole queue is gone through.")
    min_job_age_secs: float = option(
        t.number(0, 365 * _DAY), 300.0, "How long a job that has ended stays known to squeue and scontrol."
    )


@dataclass(frozen=True, slots=True)
class JobConfig:
    """What holds for every job."""

    kill_wait_secs: float = option(
        t.number(0, 65535), 30.0, "How long the processes of a job have between SIGTERM and SIGKILL."
    )
    unkillable_secs: float = option(
        t.number(1, 65535), 60.0, "After so long a process that SIGKILL does not end drains its node."
    )
    requeue: bool = option(t.flag, True, "Jobs go back to the queue when their node is lost, unless they say no.")


@dataclass(frozen=True, slots=True)
class HooksConfig:
    """Programs of the site that run around jobs."""

    prolog: Path | None = option(t.path, None, "Runs as root on each node before a job.", shown='"/etc/spur/prolog"')
    epilog: Path | None = option(t.path, None, "Runs as root on each node after a job.", shown='"/etc/spur/epilog"')
    task_prolog: Path | None = option(
        t.path, None, "Runs as the user before each task.", shown='"/etc/spur/task_prolog"'
    )
    task_epilog: Path | None = option(
        t.path, None, "Runs as the user after each task.", shown='"/etc/spur/task_epilog"'
    )
    controller_prolog: Path | None = option(
        t.path, None, "Runs beside spurctld when a job is allocated.", shown='"/etc/spur/controller_prolog"'
    )
    controller_epilog: Path | None = option(
        t.path, None, "Runs beside spurctld when a job has ended.", shown='"/etc/spur/controller_epilog"'
    )
    prolog_timeout_secs: float = option(t.number(0.1, _DAY), 300.0, "A prolog that takes longer is killed and failed.")
    epilog_timeout_secs: float = option(t.number(0.1, _DAY), 300.0, "An epilog that takes longer is killed and failed.")
    plugins: tuple[str, ...] = option(
        t.many(t.text), (), "Entry points of the group spur.plugins to call in the same places, by name."
    )


@dataclass(frozen=True, slots=True)
class LimitsConfig:
    """What the controller takes at most."""

    first_job_id: int = option(t.integer(1, 67043328), 1, "The number of the first job.")
    max_job_id: int = option(t.integer(1, 67043328), 67043328, "After this number, job numbers begin again.")
    max_jobs: int = option(t.integer(1, 10_000_000), 10_000, "Jobs that are known at once; more are refused.")
    max_script_bytes: int = option(t.integer(1, 256 * 2**20), 4 * 2**20, "Size of a batch script.")
    max_environment_bytes: int = option(t.integer(1, 64 * 2**20), 2 * 2**20, "Size of a job's environment.")


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """One node; `names` of an entry is a list, and each name becomes a NodeConfig of its own.

    None stands for what the entry leaves out: there the agent's measured value holds.
    """

    names: tuple[str, ...] = option(t.host_names, t.REQUIRED, "The nodes of this entry, a host list.", shown='"n[1-4]"')
    cpus: int | None = option(
        t.integer(1, 65535), None, "CPUs to hand out; the machine may have fewer. Measured if left out.", shown="64"
    )
    memory_mb: int | None = option(
        t.integer(1, 2**40), None, "Memory to hand out, in MiB. Measured if left out.", shown="256000"
    )
    gres: tuple[Gres, ...] | None = option(
        t.many(t.gres_count), None, "Generic resources, NAME[:TYPE][:COUNT]. GPUs are found if left out.",
        shown='["gpu:a100:4"]',
    )  # fmt: skip
    gpu_files: tuple[tuple[DeviceFile, ...], ...] = option(
        t.many(t.gres_files), (), "Files of the GPUs, [TYPE:]/PATH, where they are not to be found by themselves.",
        shown='["a100:/dev/nvidia[0-3]"]',
    )  # fmt: skip
    weight: int = option(t.integer(1, 65535), 1, "Of nodes that fit, those of the lowest weight are used first.")

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def gpus(self) -> tuple[DeviceFile, ...]:
        """The GPUs that the configuration lists; empty: the agent finds out."""
        return tuple(one for files in self.gpu_files for one in files)


@dataclass(frozen=True, slots=True)
class PartitionConfig:
    """A queue, and the nodes that it may use."""

    name: str = option(_NAME, t.REQUIRED, "The partition's name.", shown='"main"')
    nodes: tuple[str, ...] = option(t.host_names, ("ALL",), "Its nodes, a host list; ALL: every node.", shown='"ALL"')
    default: bool = option(t.flag, False, "Whether jobs that name no partition go here.", shown="true")
    state: PartitionState = option(
        t.one_of(PartitionState),
        PartitionState.UP,
        "UP; DOWN starts no jobs; DRAIN takes no more jobs; INACTIVE does neither.",
    )
    default_time: int | None = option(
        t.time_limit, None, "Time limit of jobs that ask for none; max_time if left out.", shown='"1:00:00"'
    )
    max_time: int = option(t.time_limit, times.UNLIMITED, "The longest time limit of a job.", shown='"UNLIMITED"')
    priority: int = option(t.integer(0, 65535), 1, "Jobs of a partition of higher priority are considered first.")

    @property
    def all_nodes(self) -> bool:
        return self.nodes == ("ALL",)


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of a cluster. Without [[nodes]], every node that proves itself with the key may register."""

    cluster_name: str = option(_NAME, "cluster", "The cluster's name; tokens are good only for it.")
    controller: ControllerConfig = ControllerConfig()
    agent: AgentConfig = AgentConfig()
    auth: AuthConfig = AuthConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    job: JobConfig = JobConfig()
    hooks: HooksConfig = HooksConfig()
    limits: LimitsConfig = LimitsConfig()
    nodes: tuple[NodeConfig, ...] = ()
    partitions: tuple[PartitionConfig, ...] = (PartitionConfig(name="main", default=True),)
    path: Path = DEFAULT_PATH

    @property
    def any_node(self) -> bool:
        """Whether nodes that are not listed may register."""
        return not self.nodes

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed but unwise, one line each; spurctld logs them at its start (R05)."""
        return tuple(_warnings(self))

    def node(self, name: str) -> NodeConfig | None:
        """What is declared of the node `name`; an empty declaration where any node may register."""
        if self.any_node:
            return NodeConfig(names=(name,))
        return next((one for one in self.nodes if one.name == name), None)


TABLES: Mapping[str, type] = {
    "controller": ControllerConfig,
    "agent": AgentConfig,
    "auth": AuthConfig,
    "scheduler": SchedulerConfig,
    "job": JobConfig,
    "hooks": HooksConfig,
    "limits": LimitsConfig,
}
ARRAYS: Mapping[str, type] = {"nodes": NodeConfig, "partitions": PartitionConfig}


def default_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The file that SPUR_CONF names, or /etc/spur/spur.toml."""
    return Path(environ.get("SPUR_CONF") or DEFAULT_PATH)


def load(path: Path | None = None) -> Config:
    """The configuration in `path`, by default `default_path()`. ConfigError: it cannot be read or used."""
    path = default_path() if path is None else path
    return parse(_read(path), path)


def parse(text: str, path: Path) -> Config:
    """The configuration that `text` says, which came from `path`. ConfigError: it cannot be used."""
    try:
        return replace(build(tomllib.loads(text)), path=path)
    except (tomllib.TOMLDecodeError, t.TableError) as error:
        raise ConfigError(f"{path}: {error}") from None


def refuse_open_address(config: Config, where: str, address: str) -> None:
    """ConfigError where callers are believed without proof and others than this machine can reach `address`.

    `where` names what said so: a key or an option of the command line.
    """
    if config.auth.plugin is AuthPlugin.NONE and not addresses.is_loopback(addresses.split(address)[0]):
        raise ConfigError(f'{config.path}: [auth] plugin "none" needs loopback addresses, {where} is "{address}"')


def _read(path: Path) -> str:
    try:
        # Without O_NONBLOCK, a FIFO that nobody writes to would hold the daemon for ever.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{path}: not a regular file")
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file: write one, or point SPUR_CONF to it") from None
    except OSError as error:
        raise ConfigError(f"{path}: {os.strerror(error.errno or 0)}") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None


def build(values: dict[str, Any]) -> Config:
    """The configuration in the TOML `values`. TableError: one of them is unknown or cannot be."""
    top = {key: value for key, value in values.items() if key not in TABLES and key not in ARRAYS}
    for key in top.keys() - {"cluster_name"}:
        raise t.TableError(
            f"{key} is no known key or table{t.suggestion(key, {**TABLES, **ARRAYS, 'cluster_name': 0})}"
        )
    tables: dict[str, Any] = {
        key: t.fill(table, values[key], f"[{key}]") for key, table in TABLES.items() if key in values
    }
    config = replace(t.fill(Config, top, ""), **tables)
    nodes = [t.fill(NodeConfig, one, f"[[nodes]] {at}") for at, one in _entries(values, "nodes")]
    for at, node in enumerate(nodes, 1):
        _check_gpus(f"[[nodes]] {at}", node)
    config = replace(config, nodes=tuple(replace(node, names=(name,)) for node in nodes for name in node.names))
    if "partitions" in values:
        partitions = (
            t.fill(PartitionConfig, one, f"[[partitions]] {at}") for at, one in _entries(values, "partitions")
        )
        config = replace(config, partitions=tuple(partitions))
    _check(config)
    return config


def _entries(values: dict[str, Any], key: str) -> Iterator[tuple[int, object]]:
    entries = values.get(key, [])
    if not isinstance(entries, list):
        raise t.TableError(f"{key} is written as [[{key}]], one for each entry")
    return enumerate(entries, 1)


def _check(config: Config) -> None:
    """TableError where values that are fine by themselves contradict each other."""
    _refuse_duplicates("[[nodes]]", (node.name for node in config.nodes))
    _refuse_duplicates("[[partitions]]", (partition.name for partition in config.partitions))
    known = {node.name for node in config.nodes}
    for partition in config.partitions:
        _check_partition(partition, known)
    defaults = [partition.name for partition in config.partitions if partition.default]
    if len(defaults) > 1:
        raise t.TableError(f"[[partitions]] default is true for {defaults[0]} and for {defaults[1]}")
    if config.agent.heartbeat_interval_secs >= config.controller.heartbeat_timeout_secs:
        raise t.TableError(
            f"[agent] heartbeat_interval_secs is {config.agent.heartbeat_interval_secs:g}, "
            f"not less than [controller] heartbeat_timeout_secs, {config.controller.heartbeat_timeout_secs:g}"
        )
    if config.limits.first_job_id > config.limits.max_job_id:
        raise t.TableError("[limits] first_job_id is more than max_job_id")
    if config.auth.plugin is AuthPlugin.NONE:
        for where, address in (("[controller]", config.controller.listen), ("[agent]", config.agent.listen)):
            if not addresses.is_loopback(addresses.split(address)[0]):
                raise t.TableError(f'[auth] plugin "none" needs loopback addresses, {where} listen is "{address}"')


def _check_partition(partition: PartitionConfig, known: set[str]) -> None:
    where = f"[[partitions]] {partition.name}"
    if not partition.all_nodes:
        _refuse_duplicates(f"{where} nodes", partition.nodes)
        for name in partition.nodes:
            if known and name not in known:
                raise t.TableError(f"{where} nodes: {name} is in no [[nodes]]")
    if partition.default_time is not None and partition.default_time > partition.max_time:
        raise t.TableError(
            f"{where} default_time is {times.format_limit(partition.default_time)}, "
            f"longer than max_time, {times.format_limit(partition.max_time)}"
        )


def _check_gpus(where: str, node: NodeConfig) -> None:
    """TableError where `gres` counts other GPUs than `gpu_files` lists."""
    _refuse_duplicates(f"{where} gpu_files", (one.file for one in node.gpus))
    declared = {one.type: one.count for one in total(node.gres or ()) if one.name == "gpu"}
    listed = Counter(one.type for one in node.gpus)
    if node.gpus and declared and declared != listed:
        raise t.TableError(f"{where} gres counts other GPUs than gpu_files lists")


def _refuse_duplicates(where: str, names: Iterator[str] | tuple[str, ...]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise t.TableError(f"{where} has {name} twice")
        seen.add(name)


def _warnings(config: Config) -> Iterator[str]:
    timeout, interval = config.controller.heartbeat_timeout_secs, config.agent.heartbeat_interval_secs
    if timeout < LEAST_HEARTBEAT_TIMEOUT_S:
        yield (
            f"[controller] heartbeat_timeout_secs is {timeout:g}, below {LEAST_HEARTBEAT_TIMEOUT_S}: "
            "an agent that is slow to restart will lose its jobs"
        )
    if timeout < 2 * interval:
        yield (
            f"[controller] heartbeat_timeout_secs is {timeout:g}, less than two intervals of {interval:g}: "
            "one lost heartbeat takes a node down"
        )
    if not any(partition.default for partition in config.partitions):
        yield "[[partitions]] none is the default: every job must name its partition"
