"""sinfo: the partitions and nodes of the cluster, as a table."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from spur import client, columns, hostlist, nodecolumns, nodegroup, nodeview, partitionview
from spur.client import Controller, ControllerError
from spur.columns import Format
from spur.console import Console, Environ, Failure, read_options, run
from spur.nodecolumns import Row
from spur.nodegroup import Group
from spur.nodeview import Base, Flag, NodeView
from spur.numerals import number
from spur.options import Given, Option, Support, Takes
from spur.partitionview import PartitionView

USAGE = "Usage: sinfo [OPTIONS...]"
DESCRIPTION = "Show partitions and nodes."
REFUSED, HARMLESS = Support.REFUSED, Support.HARMLESS
VALUE = Takes.VALUE

OPTIONS = (
    Option("all", letter="a", variable="SINFO_ALL", help="hidden partitions too", support=HARMLESS),
    Option("clusters", VALUE, "M", ("cluster",), metavar="NAMES", support=REFUSED),
    Option("dead", letter="d", help="only nodes that do not respond"),
    Option("exact", letter="e", help="nodes of different sizes on lines of their own"),
    Option("federation", help="partitions of the federation", support=HARMLESS),
    Option("format", VALUE, "o", (), "SINFO_FORMAT", "FORMAT", "columns by letter: %[[.]WIDTH]LETTER"),
    Option("Format", VALUE, "O", metavar="FORMAT", help="columns by name: NAME[:[.]WIDTH],..."),
    Option("help", help="show this help"),
    Option("hide", help="leave out hidden partitions", support=HARMLESS),
    Option("iterate", VALUE, "i", metavar="SECONDS", help="show it again and again, so far apart"),
    Option("json", support=REFUSED),
    Option("list-reasons", letter="R", help="why nodes are down, drained or failing"),
    Option("local", help="partitions of this cluster", support=HARMLESS),
    Option("long", letter="l", help="more columns, and the time above them"),
    Option("nodes", VALUE, "n", metavar="NODES", help="only these nodes"),
    Option("noconvert", help="amounts as they were given", support=HARMLESS),
    Option("Node", letter="N", help="one line for each node"),
    Option("noheader", letter="h", help="no line of headers"),
    Option("partition", VALUE, "p", (), "SINFO_PARTITION", "NAMES", "only these partitions"),
    Option("reservation", letter="T", help="reservations instead of nodes"),
    Option("responding", letter="r", help="only nodes that respond"),
    Option(
        "sort", VALUE, "S", (), "SINFO_SORT", "LETTERS", "order: letters of --format, each with +, - or # before it"
    ),
    Option("states", VALUE, "t", ("state",), metavar="STATES", help="only nodes in these states"),
    Option("summarize", letter="s", help="one line for each partition"),
    Option("usage", help="show how to call it"),
    Option("verbose", letter="v", help="tell more", support=HARMLESS),
    Option("version", letter="V", help="show the version"),
    Option("yaml", support=REFUSED),
)

LONG_AND_FORMAT = (
    "sinfo: fatal: Options -o(--format) and -l(--long) are mutually exclusive. Please remove one and retry."
)

StateTest = Callable[[NodeView], bool]


def _flag(flag: Flag) -> StateTest:
    return lambda node: flag in node.flags


def _busy(node: NodeView) -> bool:
    return node.in_use or Flag.COMPLETING in node.flags


def _never(_node: NodeView) -> bool:
    return False


# What -t takes, in the order in which a shortened word is looked for.
STATES: dict[str, StateTest] = {
    "all": lambda _node: True,
    "unknown": lambda node: node.base is Base.UNKNOWN,
    "down": lambda node: node.base is Base.DOWN,
    "idle": lambda node: node.base is Base.IDLE,
    "allocated": lambda node: node.in_use,
    "mixed": lambda node: node.base_of_sinfo is Base.MIXED,
    "future": _never,
    "futr": _never,
    "drain": _flag(Flag.DRAIN),
    "drained": lambda node: Flag.DRAIN in node.flags and not _busy(node),
    "draining": lambda node: Flag.DRAIN in node.flags and _busy(node),
    "drng": lambda node: Flag.DRAIN in node.flags and _busy(node),
    "no_respond": _flag(Flag.NOT_RESPONDING),
    "reserved": _never,
    "resv": _never,
    "perfctrs": _never,
    "npc": _never,
    "cloud": _never,
    "completing": _flag(Flag.COMPLETING),
    "powering_down": _never,
    "powered_down": _never,
    "power_down": _never,
    "powering_up": _never,
    "fail": _flag(Flag.FAIL),
    "maint": _never,
    "reboot": _never,
    "planned": _never,
}


VALID_STATES = (
    "unknown,down,idle,allocated,?,mixed,future,drain,drained,draining,no_respond,reserved,perfctrs,cloud,completing,"
    "powering_down,powered_down,power_down,powering_up,fail,maint,reboot,reboot^,unknown"  # as Slurm lists them
)


@dataclass(frozen=True, slots=True)
class Wish:
    """What to show. A filter that is None lets every node through; `states` are alternatives, each a list of tests."""

    partitions: frozenset[str] | None = None
    nodes: frozenset[str] | None = None
    states: tuple[tuple[StateTest, ...], ...] | None = None
    dead: bool = False
    responding: bool = False
    by_node: bool = False
    exact: bool = False
    long: bool = False
    reasons: bool = False
    reservations: bool = False
    summary: bool = False
    header: bool = True
    iterate_s: int = 0
    letters: str | None = None
    names: str | None = None
    sort: str | None = None


def main() -> None:
    sys.exit(run("sinfo", sinfo))


def sinfo(words: Sequence[str], environ: Environ, console: Console) -> int:
    given, _ = read_options(console, words, OPTIONS, permute=True, usage=USAGE, description=DESCRIPTION)
    names = {one.name for one in given}
    if "long" in names and names & {"format", "Format"}:
        raise Failure(LONG_AND_FORMAT, plain=True)
    wish = read_wish([*from_environment(environ, given), *given])
    while True:
        code = _once(wish, environ, console)
        if not wish.iterate_s:
            return code
        console.print()
        console.stdout.flush()
        time.sleep(wish.iterate_s)


def _once(wish: Wish, environ: Environ, console: Console) -> int:
    if wish.header and (wish.long or wish.iterate_s):
        console.print(time.strftime("%a %b %d %H:%M:%S %Y"))
    try:
        with client.connect(environ) as controller:
            partitions, nodes, now = load(controller)
    except ControllerError as error:
        client.tell(console, error, f"slurm_load_partitions: {error.text}")
        return 1
    if wish.reservations:
        console.print("No reservations in the system")
        return 0
    show(wish, partitions, nodes, now, environ, console)
    return 0


def from_environment(environ: Environ, given: Sequence[Given]) -> Iterator[Given]:
    """Options that the environment gives; a format there does not count beside one on the command line."""
    formats = {"format", "Format"}
    for option in OPTIONS:
        value = environ.get(option.variable) if option.variable else None
        if value is not None and not (option.name in formats and {one.name for one in given} & formats):
            yield Given(option, value)


def read_wish(given: Sequence[Given]) -> Wish:
    """What the options ask for. Failure: one of them cannot be read."""
    wish = Wish()
    for one in given:
        wish = _add(wish, one)
    return wish


def _add(wish: Wish, one: Given) -> Wish:
    """`wish` with one more option."""
    value = one.value or ""
    match one.name:
        case "dead":
            return replace(wish, dead=True)
        case "exact":
            return replace(wish, exact=True)
        case "format":
            return replace(wish, letters=value, names=None)
        case "Format":
            return replace(wish, names=value, letters=None)
        case "iterate":
            return replace(wish, iterate_s=_seconds(value))
        case "list-reasons":
            return replace(wish, reasons=True)
        case "long":
            return replace(wish, long=True)
        case "Node":
            return replace(wish, by_node=True)
        case "nodes":
            return replace(wish, nodes=_hosts(value))
        case "noheader":
            return replace(wish, header=False)
        case "partition":
            return replace(wish, partitions=frozenset(value.split(",")))
        case "reservation":
            return replace(wish, reservations=True)
        case "responding":
            return replace(wish, responding=True)
        case "sort":
            return replace(wish, sort=value)
        case "states":
            return replace(wish, states=_states(value))
        case "summarize":
            return replace(wish, summary=True)
        case _:
            return wish


def _seconds(text: str) -> int:
    seconds = number(text)
    if not seconds:
        raise Failure(f"--iterate={text}\n")
    return seconds


def _hosts(text: str) -> frozenset[str]:
    try:
        return frozenset(hostlist.expand(text))
    except hostlist.HostlistError:
        return frozenset()


def _states(text: str) -> tuple[tuple[StateTest, ...], ...]:
    """`,` separates alternatives, `&` what must hold together."""
    return tuple(tuple(_state(word) for word in one.split("&")) for one in text.split(",") if one)


def _state(word: str) -> StateTest:
    for name, test in STATES.items():
        if word and name.startswith(word.lower()):
            return STATES.get(word.lower(), test)
    raise Failure(f'Bad state string: "{word}"', f"valid states: {VALID_STATES}")


def load(controller: Controller) -> tuple[list[PartitionView], list[NodeView], float]:
    """All partitions and nodes, and the controller's time. ControllerError: it does not say."""
    from spur.pb.spurctld_pb2 import ListNodesRequest, ListPartitionsRequest

    partitions = controller.call(controller.stub.ListPartitions, ListPartitionsRequest()).partitions
    reply = controller.call(controller.stub.ListNodes, ListNodesRequest())
    views = [partitionview.decode(info, index) for index, info in enumerate(partitions)]
    return views, [nodeview.decode(info) for info in reply.nodes], reply.at


def show(
    wish: Wish,
    partitions: Sequence[PartitionView],
    nodes: Sequence[NodeView],
    now: float,
    environ: Environ,
    console: Console,
) -> None:
    """Print the table once."""
    chosen = [one for one in partitions if wish.partitions is None or one.name in wish.partitions]
    keys = _format(wish, 0, 0).keys
    groups = nodegroup.group(
        chosen, [node for node in nodes if selects(wish, node)], keys, by_node=wish.by_node, exact=wish.exact
    )
    widest_name = max([nodecolumns.LEAST_WIDTH, *(len(one.partition.marked_name) for one in groups)])
    widest_list = max([nodecolumns.LEAST_WIDTH, *(len(one.host_list()) for one in groups)])
    table = _format(wish, widest_name, widest_list)
    for unknown in table.unknown:
        if wish.names is not None:
            console.complain(f"Invalid job format specification: {unknown}")
        else:
            console.say(f"Invalid node format specification: {unknown or chr(0)}")
    for line in table.lines((Row(one, now, environ) for one in sort(groups, wish)), wish.header):
        console.print(line)


def selects(wish: Wish, node: NodeView) -> bool:
    """Whether `node` passes every filter. Reasons are shown of nodes that are out of use, unless states are named."""
    if wish.states is not None:
        in_state = any(all(test(node) for test in tests) for tests in wish.states)
    else:
        in_state = not wish.reasons or node.base is Base.DOWN or bool(node.flags & {Flag.DRAIN, Flag.FAIL})
    silent = Flag.NOT_RESPONDING in node.flags
    return (
        in_state
        and (wish.nodes is None or node.name in wish.nodes or node.hostname in wish.nodes)
        and (not wish.dead or silent)
        and (not wish.responding or not silent)
    )


def _format(wish: Wish, name_width: int, list_width: int) -> Format[Row]:
    if wish.names is not None and wish.names.lower() != "all":
        return columns.by_names(wish.names, nodecolumns.NAMES)
    if wish.letters == "%all" or wish.names is not None:
        return columns.by_letters(nodecolumns.ALL, nodecolumns.LETTERS)
    if wish.letters is not None:
        return columns.by_letters(wish.letters, nodecolumns.LETTERS)
    text = _default(wish).replace("#P", f"{name_width}P").replace("#N", f"{list_width}N")
    return columns.by_letters(text, nodecolumns.LETTERS)


def _default(wish: Wish) -> str:
    if wish.summary:
        return nodecolumns.SUMMARY
    if wish.by_node:
        return nodecolumns.BY_NODE_LONG if wish.long else nodecolumns.BY_NODE
    if wish.reasons:
        return nodecolumns.REASONS_LONG if wish.long else nodecolumns.REASONS
    return nodecolumns.LONG if wish.long else nodecolumns.DEFAULT


def sort(groups: list[Group], wish: Wish) -> list[Group]:
    """The lines in the order of --sort: the last letter is sorted by first."""
    order = wish.sort if wish.sort is not None else "N" if wish.by_node else "#P,-t"
    for at in range(len(order) - 1, -1, -1):
        mark = order[at - 1] if at else ""
        key = nodecolumns.SORT_KEYS.get(order[at])
        if order[at] == "P" and mark == "#":
            key = nodecolumns.configured_order
        if key is not None:
            groups = sorted(groups, key=key, reverse=mark == "-")
    return groups
