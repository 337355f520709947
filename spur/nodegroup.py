"""The lines of sinfo: nodes of a partition that the columns shown cannot tell apart stand on one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spur import hostlist
from spur.nodeview import Base, Flag, NodeView
from spur.partitionview import PartitionView


@dataclass(slots=True)
class Group:
    """Nodes on one line, in the controller's order; none where a partition has none to show.

    `partition` is that of the first node: further nodes may come from partitions that the columns cannot tell from it.
    """

    partition: PartitionView
    nodes: list[NodeView] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def add(self, node: NodeView) -> None:
        """Take `node` in; one that more than one of the partitions have counts once."""
        if node.name not in self.names:
            self.names.add(node.name)
            self.nodes.append(node)

    @property
    def first(self) -> NodeView | None:
        return self.nodes[0] if self.nodes else None

    def host_list(self, name: Callable[[NodeView], str] = lambda node: node.name) -> str:
        """The nodes as a compressed list, sorted."""
        return hostlist.compress(sort_hosts({name(node) for node in self.nodes}))

    def nodes_by_use(self) -> tuple[int, int, int]:
        """How many are allocated, idle and other (out of use)."""
        allocated = sum(node.in_use or Flag.COMPLETING in node.flags for node in self.nodes)
        other = sum(out_of_use(node) and not node.in_use and Flag.COMPLETING not in node.flags for node in self.nodes)
        return allocated, len(self.nodes) - allocated - other, other

    def cpus_by_use(self) -> tuple[int, int, int]:
        """How many CPUs are allocated, idle and other."""
        allocated = sum(node.cpus_allocated for node in self.nodes)
        other = sum(node.cpus - node.cpus_allocated for node in self.nodes if out_of_use(node))
        return allocated, sum(node.cpus for node in self.nodes) - allocated - other, other


def out_of_use(node: NodeView) -> bool:
    return Flag.DRAIN in node.flags or node.base is Base.DOWN


# What tells nodes and partitions apart, by the key of the column that shows it.
NODE_KEYS: Mapping[str, Callable[[NodeView], Any]] = {
    "address": lambda node: node.address,
    "complete_state": lambda node: node.complete_state,
    "allocated_memory": lambda node: node.memory_allocated_mb,
    "gres": lambda node: node.gres,
    "gres_used": lambda node: node.gres_used,
    "hostname": lambda node: node.hostname,
    "reason": lambda node: node.reason,
    "reason_at": lambda node: int(node.reason_at),
    "reason_user": lambda node: node.reason_user,
    "state": lambda node: node.long_state,
}
EXACT_KEYS: Mapping[str, Callable[[NodeView], Any]] = {
    "cores": lambda node: node.cores_per_socket,
    "cpus": lambda node: node.cpus,
    "disk": lambda node: node.tmp_disk_mb,
    "free_memory": lambda node: node.free_memory_mb,
    "load": lambda node: node.load,
    "memory": lambda node: node.memory_mb,
    "port": lambda node: node.port,
    "sct": lambda node: (node.sockets, node.cores_per_socket, node.threads_per_core),
    "sockets": lambda node: node.sockets,
    "threads": lambda node: node.threads_per_core,
    "version": lambda node: node.version,
    "weight": lambda node: node.weight,
}
PARTITION_KEYS: Mapping[str, Callable[[PartitionView], Any]] = {
    "available": lambda partition: partition.state,
    "default_time": lambda partition: partition.default_time_s,
    "max_time": lambda partition: partition.max_time_s,
    "partition": lambda partition: partition.index,
    "priority": lambda partition: partition.priority,
}


def group(
    partitions: Sequence[PartitionView],
    nodes: Iterable[NodeView],
    shown: frozenset[str],
    *,
    by_node: bool = False,
    exact: bool = False,
) -> list[Group]:
    """The lines for `partitions` and those of `nodes` that are in them. `shown` are the keys of the columns.

    `by_node`: each node of each partition has a line of its own. `exact`: sizes that differ are told apart too.
    Where partitions are told apart by name, one without nodes has a line as well.
    """
    known = {node.name: node for node in nodes}
    order = {name: at for at, name in enumerate(known)}
    groups = [] if by_node or "partition" not in shown else [Group(partition) for partition in partitions]
    for partition in partitions:
        for name in sorted((name for name in partition.nodes if name in known), key=order.__getitem__):
            node = known[name]
            match = None if by_node else _match(groups, partition, node, shown, exact)
            if match is None:
                match = Group(partition)
                groups.append(match)
            match.add(node)
    return groups


def _match(
    groups: Iterable[Group], partition: PartitionView, node: NodeView, shown: frozenset[str], exact: bool
) -> Group | None:
    """The first of `groups` that shows the same for `node` of `partition`."""
    keys = {**NODE_KEYS, **(EXACT_KEYS if exact else {})}
    for one in groups:
        if any(value(one.partition) != value(partition) for key, value in PARTITION_KEYS.items() if key in shown):
            continue
        first = one.first
        if first is None or all(value(first) == value(node) for key, value in keys.items() if key in shown):
            return one
    return None


_PIECES = re.compile(r"[0-9]+|[^0-9]+")


def host_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """By which hosts are sorted: numbers in names count as numbers."""
    return tuple((0, int(piece), "") if piece.isdigit() else (1, 0, piece) for piece in _PIECES.findall(name))


def sort_hosts(names: Iterable[str]) -> list[str]:
    return sorted(names, key=host_order)
