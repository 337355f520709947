"""A partition as the commands show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spur import hostlist

if TYPE_CHECKING:
    from spur.pb.spurctld_pb2 import PartitionInfo


@dataclass(frozen=True, slots=True)
class PartitionView:
    """`default_time_s` is 0 where there is none; `index` is its place in the configuration."""

    name: str
    nodes: tuple[str, ...]
    is_default: bool
    state: str
    default_time_s: int
    max_time_s: int
    total_cpus: int
    total_nodes: int
    total_memory_mb: int
    priority: int
    index: int

    @property
    def node_list(self) -> str:
        return hostlist.compress(self.nodes)

    @property
    def marked_name(self) -> str:
        """The name, with a star behind that of the default partition."""
        return self.name + ("*" if self.is_default else "")


def decode(info: PartitionInfo, index: int) -> PartitionView:
    """The partition in a message of the controller."""
    return PartitionView(
        name=info.name,
        nodes=tuple(hostlist.expand(info.nodes)),
        is_default=info.is_default,
        state=info.state or "UP",
        default_time_s=info.default_time_s,
        max_time_s=info.max_time_s,
        total_cpus=info.total_cpus,
        total_nodes=info.total_nodes,
        total_memory_mb=info.total_memory_mb,
        priority=info.priority or 1,
        index=index,
    )
