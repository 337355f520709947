"""The columns of sinfo: its letters for -o, its names for -O, its keys for --sort.

Headers and what a line says of nodes that differ (`64+`, `0.10-N/A`) are Slurm 22.05's, recorded from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spur import times
from spur.columns import NULL, Column, cut, cut_unless_right
from spur.nodegroup import Group, host_order
from spur.nodeview import NodeView
from spur.partitionview import PartitionView

DEFAULT = "%#P %.5a %.10l %.6D %.6t %N"
SUMMARY = "%#P %.5a %.10l %.16F %N"
LONG = "%#P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
BY_NODE = "%#N %.6D %.#P %6t"
BY_NODE_LONG = "%#N %.6D %.#P %.11T %4c %.8z %.6m %.8d %.6w %.8f %20E"
REASONS = "%20E %9u %19H %N"
REASONS_LONG = "%20E %12U %19H %6t %N"
LEAST_WIDTH = 9  # of a column that is as wide as its widest value


@dataclass(frozen=True, slots=True)
class Row:
    """A line, and what its values depend on besides."""

    group: Group
    now: float
    environ: Mapping[str, str]

    def instant(self, at: float) -> str:
        return times.format_instant(at, self.environ, now=self.now)


RowColumn = Column[Row]


def _fixed(header: str, value: str) -> RowColumn:
    return Column(header, lambda _row: value)


def _of_partition(header: str, key: str, value: Callable[[PartitionView], str]) -> RowColumn:
    return Column(header, lambda row: value(row.group.partition), key=key)


def _of_first(header: str, key: str, value: Callable[[NodeView], str], empty: str) -> RowColumn:
    """What the nodes of a line have in common."""

    def text(row: Row) -> str:
        return value(row.group.first) if row.group.first else empty

    return Column(header, text, key=key)


def count_text(number: int) -> str:
    """A count: `1536` is `1.50K`, as Slurm shortens what loses nothing by it."""
    size, units = float(number), ["", "K", "M", "G"]
    while size >= 1024 and size % 512 == 0 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{int(size)}{units[0]}" if size == int(size) else f"{size:.2f}{units[0]}"


def _at_least(values: Sequence[int], text: Callable[[int], str] = str) -> str:
    """The least value; a + says that there are greater ones."""
    if not values:
        return "0"
    return text(min(values)) + ("+" if max(values) != min(values) else "")


def _sizes(header: str, key: str, value: Callable[[NodeView], int], text: Callable[[int], str] = str) -> RowColumn:
    return Column(header, lambda row: _at_least([value(node) for node in row.group.nodes], text), key=key)


def _span(row: Row, value: Callable[[NodeView], str | None], empty: str) -> str:
    """The least and the greatest value of the nodes; what is not known is the greatest."""
    nodes = row.group.nodes
    if not nodes:
        return empty
    texts = sorted({text for node in nodes if (text := value(node)) is not None}, key=float)
    if any(value(node) is None for node in nodes):
        texts.append("N/A")
    return texts[0] if len(texts) == 1 else f"{texts[0]}-{texts[-1]}"


def _load(node: NodeView) -> str | None:
    return f"{node.load:.2f}" if node.registered else None


def _free_memory(node: NodeView) -> str | None:
    return str(node.free_memory_mb) if node.registered else None


def _sct(row: Row) -> str:
    nodes = row.group.nodes
    return ":".join(
        _at_least([getattr(node, name) for node in nodes], count_text)
        for name in ("sockets", "cores_per_socket", "threads_per_core")
    )


def _cut_before_star(text: str, width: int, right: bool) -> str:
    """The default partition keeps its star, whatever else is cut."""
    if text.endswith("*") and len(text) > width:
        return text[: width - 1] + "*"
    return cut(text, width, right)


def _user(node: NodeView) -> str:
    return node.reason_user or str(node.reason_uid)


def _by_use(header: str, numbers: Callable[[Group], tuple[int, ...]], key: str = "") -> RowColumn:
    return Column(header, lambda row: "/".join(map(str, numbers(row.group))), key=key)


def _hosts(header: str, name: Callable[[NodeView], str], key: str = "") -> RowColumn:
    def text(row: Row) -> str:
        return row.group.host_list(name)

    return Column(header, text, fit_header=cut_unless_right, key=key)


def _nodes_ai(group: Group) -> tuple[int, ...]:
    return group.nodes_by_use()[:2]


def _nodes_aiot(group: Group) -> tuple[int, ...]:
    return (*group.nodes_by_use(), len(group.nodes))


def _cpus_aiot(group: Group) -> tuple[int, ...]:
    return (*group.cpus_by_use(), sum(node.cpus for node in group.nodes))


def _default_time(partition: PartitionView) -> str:
    return times.format_short_limit(partition.default_time_s, "infinite") if partition.default_time_s else "n/a"


_PARTITION = Column("PARTITION", lambda row: row.group.partition.marked_name, fit=_cut_before_star, key="partition")  # type: RowColumn
_AVAILABLE = {"UP": "up", "DOWN": "down", "DRAIN": "drain", "INACTIVE": "inact"}

LETTERS: Mapping[str, RowColumn] = {
    "a": _of_partition("AVAIL", "available", lambda partition: _AVAILABLE.get(partition.state, "unknown")),
    "A": _by_use("NODES(A/I)", _nodes_ai),
    "b": _fixed("ACTIVE_FEATURES", NULL),
    "B": _fixed("MAX_CPUS_PER_NODE", "UNLIMITED"),
    "c": _sizes("CPUS", "cpus", lambda node: node.cpus, count_text),
    "C": _by_use("CPUS(A/I/O/T)", _cpus_aiot, "cpus"),
    "d": _sizes("TMP_DISK", "disk", lambda node: node.tmp_disk_mb),
    "D": Column("NODES", lambda row: count_text(len(row.group.nodes))),
    "e": Column("FREE_MEM", lambda row: _span(row, _free_memory, "0"), key="free_memory"),
    "E": _of_first("REASON", "reason", lambda node: node.reason or "none", "none"),
    "f": _fixed("AVAIL_FEATURES", NULL),
    "F": _by_use("NODES(A/I/O/T)", _nodes_aiot),
    "g": _fixed("GROUPS", "all"),
    "G": _of_first("GRES", "gres", lambda node: node.gres, NULL),
    "h": _fixed("OVERSUBSCRIBE", "NO"),
    "H": Column(
        "TIMESTAMP", lambda row: row.instant(row.group.first.reason_at if row.group.first else 0), key="reason_at"
    ),
    "I": _fixed("PRIO_JOB_FACTOR", "1"),
    "l": _of_partition("TIMELIMIT", "max_time", lambda one: times.format_short_limit(one.max_time_s, "infinite")),
    "L": _of_partition("DEFAULTTIME", "default_time", _default_time),
    "m": _sizes("MEMORY", "memory", lambda node: node.memory_mb),
    "M": _fixed("PREEMPT_MODE", "OFF"),
    "n": _hosts("HOSTNAMES", lambda node: node.hostname, "hostname"),
    "N": _hosts("NODELIST", lambda node: node.name),
    "o": _hosts("NODE_ADDR", lambda node: node.address, "address"),
    "O": Column("CPU_LOAD", lambda row: _span(row, _load, "0.00"), key="load"),
    "p": _of_partition("PRIO_TIER", "priority", lambda partition: str(partition.priority)),
    "P": _PARTITION,
    "r": _fixed("ROOT", "no"),
    "R": _of_partition("PARTITION", "partition", lambda partition: partition.name),
    "s": _fixed("JOB_SIZE", "1-infinite"),
    "S": _fixed("ALLOCNODES", "all"),
    "t": _of_first("STATE", "state", lambda node: node.short_state, "n/a"),
    "T": _of_first("STATE", "state", lambda node: node.long_state, "n/a"),
    "u": _of_first("USER", "reason_user", lambda node: _user(node) if node.reason else "Unknown", "Unknown"),
    "U": _of_first(
        "USER", "reason_user", lambda node: f"{_user(node)}({node.reason_uid})" if node.reason else "Unknown", "Unknown"
    ),
    "v": _of_first("VERSION", "version", lambda node: node.version or "N/A", "N/A"),
    "V": _fixed("CLUSTER", "N/A"),
    "w": _sizes("WEIGHT", "weight", lambda node: node.weight),
    "X": _sizes("SOCKETS", "sockets", lambda node: node.sockets, count_text),
    "Y": _sizes("CORES", "cores", lambda node: node.cores_per_socket, count_text),
    "z": Column("S:C:T", _sct, key="sct"),
    "Z": _sizes("THREADS", "threads", lambda node: node.threads_per_core, count_text),
}
# %all: a bar between the columns, among the second half of them behind a blank.
ALL = "".join(f"%{letter}|" for letter in "abcdefghlmnoprstuvwz")
ALL += "|".join(f"%{letter} " for letter in "ABCDEFGHILMNOPRSTUVXYZ")

NAMES: Mapping[str, RowColumn] = {
    "allocmem": _of_first("ALLOCMEM", "allocated_memory", lambda node: str(node.memory_allocated_mb), "0"),
    "allocnodes": LETTERS["S"],
    "available": LETTERS["a"],
    "cluster": LETTERS["V"],
    "comment": _fixed("COMMENT", NULL),
    "cores": LETTERS["Y"],
    "cpus": LETTERS["c"],
    "cpusload": LETTERS["O"],
    "cpusstate": LETTERS["C"],
    "defaulttime": LETTERS["L"],
    "disk": LETTERS["d"],
    "extra": _fixed("EXTRA", NULL),
    "features": LETTERS["f"],
    "features_act": LETTERS["b"],
    "freemem": LETTERS["e"],
    "gres": LETTERS["G"],
    "gresused": _of_first("GRES_USED", "gres_used", lambda node: node.gres_used, NULL),
    "groups": LETTERS["g"],
    "maxcpuspernode": LETTERS["B"],
    "memory": LETTERS["m"],
    "nodeaddr": LETTERS["o"],
    "nodeai": LETTERS["A"],
    "nodeaiot": LETTERS["F"],
    "nodehost": LETTERS["n"],
    "nodelist": LETTERS["N"],
    "nodes": LETTERS["D"],
    "oversubscribe": LETTERS["h"],
    "partition": LETTERS["P"],
    "partitionname": LETTERS["R"],
    "port": _of_first("PORT", "port", lambda node: str(node.port), "0"),
    "preemptmode": LETTERS["M"],
    "priorityjobfactor": LETTERS["I"],
    "prioritytier": LETTERS["p"],
    "reason": LETTERS["E"],
    "root": LETTERS["r"],
    "size": LETTERS["s"],
    "socketcorethread": LETTERS["z"],
    "sockets": LETTERS["X"],
    "statecompact": LETTERS["t"],
    "statecomplete": _of_first("STATECOMPLETE", "complete_state", lambda node: node.complete_state_of_sinfo, "n/a"),
    "statelong": LETTERS["T"],
    "threads": LETTERS["Z"],
    "time": LETTERS["l"],
    "timestamp": LETTERS["H"],
    "user": LETTERS["u"],
    "userlong": LETTERS["U"],
    "version": LETTERS["v"],
    "weight": LETTERS["w"],
}


def _least(value: Callable[[NodeView], int]) -> Callable[[Group], Any]:
    return lambda group: min(map(value, group.nodes), default=0)


def _first_host(value: Callable[[NodeView], str]) -> Callable[[Group], Any]:
    return lambda group: min((host_order(value(node)) for node in group.nodes), default=())


def _first(value: Callable[[NodeView], Any], empty: Any) -> Callable[[Group], Any]:
    return lambda group: value(group.first) if group.first else empty


_STATE_NUMBER = _first(lambda node: node.state_number, 0)

# Letters of --sort. Letters that are not here order nothing, and are not complained of.
SORT_KEYS: Mapping[str, Callable[[Group], Any]] = {
    "a": lambda group: {"UP": 3, "DRAIN": 2, "DOWN": 1}.get(group.partition.state, 0),
    "A": lambda group: group.nodes_by_use()[0],
    "c": _least(lambda node: node.cpus),
    "d": _least(lambda node: node.tmp_disk_mb),
    "D": lambda group: len(group.nodes),
    "E": _first(lambda node: node.reason_at, 0),
    "F": lambda group: group.nodes_by_use()[0],
    "l": lambda group: group.partition.max_time_s,
    "m": _least(lambda node: node.memory_mb),
    "n": _first_host(lambda node: node.hostname),
    "N": _first_host(lambda node: node.name),
    "o": _first_host(lambda node: node.address),
    "O": _first(lambda node: node.load, 0),
    "p": lambda group: group.partition.priority,
    "P": lambda group: group.partition.name,
    "R": _first(lambda node: node.reason, ""),
    "t": _STATE_NUMBER,
    "T": _STATE_NUMBER,
    "w": _least(lambda node: node.weight),
    "X": _least(lambda node: node.sockets),
    "Y": _least(lambda node: node.cores_per_socket),
    "z": _least(lambda node: node.sockets),
    "Z": _least(lambda node: node.threads_per_core),
}


def configured_order(group: Group) -> int:
    """#P of --sort: partitions as they stand in the configuration."""
    return group.partition.index
