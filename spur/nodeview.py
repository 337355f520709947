"""A node as the commands show it: the controller's record, taken apart once, and Slurm's names for its state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from spur.columns import NULL
from spur.jobview import gres_text
from spur.numerals import number

if TYPE_CHECKING:
    from spur.pb.spurctld_pb2 import NodeInfo


class Base(Enum):
    """Slurm's base states; the values are its numbers, by which sinfo sorts."""

    UNKNOWN = 0
    DOWN = 1
    IDLE = 2
    ALLOCATED = 3
    MIXED = 5


class Flag(Enum):
    """Slurm's flags beside the base state, in the order in which they are written; the values are its bits."""

    COMPLETING = 0x400
    DRAIN = 0x200
    FAIL = 0x2000
    NOT_RESPONDING = 0x800


SHORT_STATES = {
    "ALLOCATED": "ALLOC",
    "ALLOCATED+": "ALLOC+",
    "COMPLETING": "COMP",
    "DOWN": "DOWN",
    "DRAINED": "DRAIN",
    "DRAINING": "DRNG",
    "FAIL": "FAIL",
    "FAILING": "FAILG",
    "IDLE": "IDLE",
    "MIXED": "MIX",
    "UNKNOWN": "UNK",
}


@dataclass(frozen=True, slots=True)
class NodeView:
    """Times are seconds since the epoch, 0 where there is none."""

    name: str
    address: str  # host of the agent; the name before it registered
    port: int
    hostname: str
    version: str
    arch: str
    os: str
    cpus: int
    cpus_allocated: int
    memory_mb: int
    memory_allocated_mb: int
    free_memory_mb: int
    load: float
    gres: str
    gres_used: str
    base: Base
    flags: frozenset[Flag]
    reason: str
    reason_user: str
    reason_uid: int
    reason_at: float
    boot_at: float
    agent_started_at: float
    last_busy_at: float
    partitions: tuple[str, ...]
    sockets: int
    cores_per_socket: int
    threads_per_core: int
    tmp_disk_mb: int
    weight: int

    @property
    def registered(self) -> bool:
        """Whether the node's agent was ever heard of, so that what it measures is known."""
        return bool(self.version)

    @property
    def in_use(self) -> bool:
        return self.base in (Base.ALLOCATED, Base.MIXED)

    @property
    def state_number(self) -> int:
        """Slurm's number of the state with its flags, by which sinfo sorts."""
        return self.base_of_sinfo.value | sum(flag.value for flag in self.flags)

    @property
    def base_of_sinfo(self) -> Base:
        """sinfo calls a node that is drained while jobs run ALLOCATED, scontrol may call it MIXED."""
        return Base.ALLOCATED if self.base is Base.MIXED and Flag.DRAIN in self.flags else self.base

    @property
    def plain_state(self) -> str:
        """The one word for base and flags that sinfo shows, without the mark of a node that does not respond."""
        completing = Flag.COMPLETING in self.flags
        if Flag.DRAIN in self.flags:
            return "DRAINING" if self.in_use or completing else "DRAINED"
        if Flag.FAIL in self.flags:
            return "FAILING" if self.base is Base.ALLOCATED or completing else "FAIL"
        if completing and self.base is not Base.DOWN:
            return "ALLOCATED+" if self.base is Base.ALLOCATED else "COMPLETING"
        return self.base.name

    @property
    def long_state(self) -> str:
        """`idle`, `draining*`: %T of sinfo."""
        return self._marked(self.plain_state)

    @property
    def short_state(self) -> str:
        """`idle`, `drng*`: %t of sinfo."""
        return self._marked(SHORT_STATES[self.plain_state])

    @property
    def complete_state(self) -> str:
        """`MIXED+DRAIN`, as scontrol shows it."""
        return "+".join((self.base.name, *(flag.name for flag in Flag if flag in self.flags)))

    @property
    def complete_state_of_sinfo(self) -> str:
        names = (self.base_of_sinfo.name, *(flag.name for flag in Flag if flag in self.flags))
        return "+".join(names).lower()

    def _marked(self, word: str) -> str:
        return word.lower() + ("*" if Flag.NOT_RESPONDING in self.flags else "")


def decode(info: NodeInfo) -> NodeView:
    """The node in a message of the controller."""
    host, _, port = info.address.rpartition(":")
    return NodeView(
        name=info.name,
        address=host.strip("[]") or info.name,
        port=number(port, 65535) or 0,
        hostname=info.hostname or info.name,
        version=info.version,
        arch=info.arch,
        os=info.os,
        cpus=info.cpus,
        cpus_allocated=info.cpus_allocated,
        memory_mb=info.memory_mb,
        memory_allocated_mb=info.memory_allocated_mb,
        free_memory_mb=info.free_memory_mb,
        load=info.load,
        gres=gres_text(info.gres, prefix="") or NULL,
        gres_used=_gres_used(info),
        base=_base(info),
        flags=frozenset(_flags(info)),
        reason=info.reason,
        reason_user=info.reason_user,
        reason_uid=info.reason_uid,
        reason_at=info.reason_at,
        boot_at=info.boot_at,
        agent_started_at=info.agent_started_at,
        last_busy_at=info.last_busy_at,
        partitions=tuple(info.partitions),
        sockets=info.sockets or info.cpus,
        cores_per_socket=info.cores_per_socket or 1,
        threads_per_core=info.threads_per_core or 1,
        tmp_disk_mb=info.tmp_disk_mb,
        weight=info.weight or 1,
    )


def _base(info: NodeInfo) -> Base:
    if info.down:
        return Base.DOWN
    if info.unknown:
        return Base.UNKNOWN
    if info.cpus_allocated == 0:
        return Base.IDLE
    return Base.ALLOCATED if info.cpus_allocated >= info.cpus else Base.MIXED


def _flags(info: NodeInfo) -> set[Flag]:
    set_flags = {
        Flag.DRAIN: info.drain,
        Flag.COMPLETING: info.completing,
        Flag.NOT_RESPONDING: info.not_responding,
        Flag.FAIL: info.fail,
    }
    return {flag for flag, is_set in set_flags.items() if is_set}


def _gres_used(info: NodeInfo) -> str:
    """What jobs have of each resource of the node, with a count of 0 where they have none."""
    used = {(one.name, one.type): one.count for one in info.gres_allocated}
    return (
        ",".join(
            ":".join(part for part in (one.name, one.type, str(used.get((one.name, one.type), 0))) if part)
            for one in info.gres
        )
        or "gpu:0"
    )
