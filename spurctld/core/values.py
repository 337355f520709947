"""The values that events bring, instructions carry and records hold. All frozen, none knows another module's state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from spurctld.core.states import ExitSource, PartitionState, RefusalKind, VerdictKind


@dataclass(frozen=True, slots=True, order=True)
class RunKey:
    """One attempt at a job. Both numbers start at 1."""

    job: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.job}.{self.attempt}"


@dataclass(frozen=True, slots=True)
class Gres:
    """An amount of a generic resource. In a request, an empty type means any."""

    name: str
    type: str
    count: int

    def __str__(self) -> str:
        return ":".join(part for part in (self.name, self.type, str(self.count)) if part)


def sum_gres(amounts: Iterable[Gres]) -> tuple[Gres, ...]:
    """`amounts` with those of one name and type added up, sorted, without empty ones."""
    sums: dict[tuple[str, str], int] = {}
    for one in amounts:
        sums[one.name, one.type] = sums.get((one.name, one.type), 0) + one.count
    return tuple(Gres(name, type, count) for (name, type), count in sorted(sums.items()) if count)


@dataclass(frozen=True, slots=True)
class Resources:
    """What is granted of a node, or what a node has. Gres of a node or a grant are of the node's own types."""

    cpus: int = 0
    memory_mb: int = 0
    gres: tuple[Gres, ...] = ()

    def plus(self, other: Resources) -> Resources:
        return Resources(self.cpus + other.cpus, self.memory_mb + other.memory_mb, sum_gres((*self.gres, *other.gres)))


@dataclass(frozen=True, slots=True)
class Need:
    """What a job wants of one of its nodes."""

    cpus: int
    memory_mb: int
    whole_memory: bool
    gres: tuple[Gres, ...]
    tasks: int


@dataclass(frozen=True, slots=True)
class Request:
    """What a job asks for, nodes still unnamed. Memory in MiB; None: nothing was asked."""

    nodes: int = 1
    tasks: int = 1
    tasks_per_node: int | None = None  # at most so many on one
    cpus_per_task: int = 1
    memory_mb: int | None = None  # per node; 0: all that a node has
    memory_per_cpu_mb: int | None = None
    gres_per_node: tuple[Gres, ...] = ()
    gres_per_task: tuple[Gres, ...] = ()
    gres_per_job: tuple[Gres, ...] = ()
    required: tuple[str, ...] = ()  # nodes that must be among those allocated
    excluded: frozenset[str] = frozenset()

    def need(self, index: int) -> Need:
        """The share of node number `index`, from 0: tasks in even blocks, the first nodes bearing the remainder."""
        tasks = _share(self.tasks, index, self.nodes)
        cpus = max(1, tasks) * self.cpus_per_task
        per_node = self.memory_mb
        if self.memory_per_cpu_mb is not None:
            per_node = self.memory_per_cpu_mb * cpus
        return Need(
            cpus=cpus,
            memory_mb=per_node or 0,
            whole_memory=per_node == 0,
            gres=sum_gres(
                (
                    *self.gres_per_node,
                    *(Gres(g.name, g.type, g.count * tasks) for g in self.gres_per_task),
                    *(Gres(g.name, g.type, _share(g.count, index, self.nodes)) for g in self.gres_per_job),
                )
            ),
            tasks=tasks,
        )

    @property
    def cpus(self) -> int:
        return sum(self.need(index).cpus for index in range(self.nodes))


def _share(whole: int, index: int, parts: int) -> int:
    return whole // parts + (index < whole % parts)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What the controller decides by; the rest of what the user said travels beside it unread."""

    name: str
    uid: int
    gid: int
    user: str
    group: str
    partition: str  # empty when submitted: the default
    request: Request = Request()
    time_limit_s: int | None = None  # None when submitted: the partition's default; UNLIMITED
    requeue: bool | None = None  # None: as the site has it
    hold: bool = False
    nice: int = 0
    account: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run used, by its leader's rusage and its cgroup."""

    user_cpu_s: float = 0.0
    system_cpu_s: float = 0.0
    max_rss_kib: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    peak_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Exit:
    """How a run ended. `status` is as waitpid gives it; None where nobody knows it or nothing ran."""

    source: ExitSource
    status: int | None = None
    at: float = 0.0
    oom_kills: int = 0
    detail: str = ""
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision to end a run. The first one stands."""

    kind: VerdictKind
    by_uid: int
    at: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """One device that a node picked for a run."""

    name: str
    type: str
    index: int
    file: str


@dataclass(frozen=True, slots=True)
class Grant:
    """What a node says that it gave to a run, by id."""

    cpus: tuple[int, ...] = ()
    memory_mb: int = 0
    gpus: tuple[Device, ...] = ()

    @property
    def resources(self) -> Resources:
        return Resources(len(self.cpus), self.memory_mb, sum_gres(Gres(d.name, d.type, 1) for d in self.gpus))


@dataclass(frozen=True, slots=True)
class Share:
    """The part of an allocation that one node bears."""

    node: str
    resources: Resources
    tasks: int


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """What the configuration says of a node. None: what the agent measures."""

    name: str
    cpus: int | None = None
    memory_mb: int | None = None
    gres: tuple[Gres, ...] | None = None
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Machine:
    """What an agent said of its node when it registered."""

    address: str
    hostname: str
    version: str
    arch: str
    os: str
    boot_id: str
    incarnation: str
    cpus: int
    memory_mb: int
    gres: tuple[Gres, ...] = ()
    sockets: int = 0
    cores_per_socket: int = 0
    threads_per_core: int = 0
    tmp_disk_mb: int = 0
    boot_at: float = 0.0
    started_at: float = 0.0


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """A queue and its nodes; `nodes` None means every node there is."""

    name: str
    nodes: tuple[str, ...] | None = None
    default: bool = False
    state: PartitionState = PartitionState.UP
    default_time_s: int | None = None
    max_time_s: int = 0xFFFFFFFF
    priority: int = 1


@dataclass(frozen=True, slots=True)
class RunState:
    """What a node says of one run that it has."""

    run: RunKey
    phase: str  # accepted, ready, running, ended, finished, quarantined
    grant: Grant | None = None
    verdict: Verdict | None = None
    exit: Exit | None = None
    why_waiting: str = ""
    suspended: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """The site's choices. Seconds are of the monotonic clock."""

    heartbeat_timeout_s: float = 90.0
    missing_run_grace_s: float = 30.0
    take_back_runs: bool = True
    return_to_service: bool = True
    min_job_age_s: float = 300.0
    requeue: bool = True
    backfill: bool = True
    backfill_depth: int = 500  # jobs looked at behind the first that is blocked
    max_launch_failures: int = 5
    cooldown_s: float = 1.0  # of a node that refused a launch; doubles with each refusal in a row
    max_cooldown_s: float = 60.0
    controller_prolog: bool = False
    controller_epilog: bool = False
    any_node: bool = False  # nodes that nobody declared may register
    first_job_id: int = 1
    max_job_id: int = 67043328
    max_jobs: int = 10_000


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request was not carried out: Slurm's text, and a further line for the user where Slurm prints one."""

    kind: RefusalKind
    text: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job was taken; `job` 0: it was only tested."""

    job: int
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """A request was carried out and there is nothing more to say."""


@dataclass(frozen=True, slots=True)
class BeatNoted:
    """A heartbeat was taken in."""

    register_again: bool = False
    drain_noted: bool = False


@dataclass(frozen=True, slots=True)
class CancelResults:
    """Per job: None where it was taken."""

    results: tuple[tuple[int, Refusal | None], ...] = field(default=())
