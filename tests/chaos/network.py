"""A network of our own: the runner's namespace is the hub, each node has one that a pair of veths joins to it.

Nothing of it can be seen from outside, and it is gone with the last process in it. Addresses: the controller is
10.99.0.1, node I reaches it from 10.99.I.2 by way of 10.99.I.1.

A link can be taken down, which both sides notice, or be made to lose all packets of one direction or both: the
neighbour's hardware address is set to one that nobody has, so that what is sent there is dropped at the far end.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

from pyroute2 import IPRoute  # type: ignore[import-untyped]

from tests.chaos.plan import Cut

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000  # linux/sched.h
_PERMANENT = 0x80  # NUD_PERMANENT of linux/neighbour.h
_NOBODY = "02:00:00:00:00:01"
CONTROLLER = "10.99.0.1"

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """unshare(2) for this thread and all that it starts. OSError."""
    if _libc.unshare(flags):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "unshare")


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "setns")


@dataclass(slots=True)
class _Link:
    """Both ends of a node's pair."""

    namespace: int
    hub: IPRoute
    node: IPRoute
    hub_index: int
    node_index: int
    hub_address: str
    node_address: str


class Network:
    """Owns the namespaces of the nodes. The runner must be in one of its own already: `unshare(CLONE_NEWNET)`."""

    def __init__(self, nodes: int) -> None:
        """OSError: the kernel does not let us."""
        self._hub_namespace = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._hub = IPRoute()
        self._hub.link("set", index=1, state="up")
        self._hub.addr("add", index=1, address=CONTROLLER, prefixlen=32)
        self._links = {node: self._join(node) for node in range(1, nodes + 1)}

    def _join(self, node: int) -> _Link:
        namespace, inside = self._make_namespace()
        name, near, far = f"n{node}", f"10.99.{node}.1", f"10.99.{node}.2"
        self._hub.link("add", ifname=name, kind="veth", peer={"ifname": "eth0", "net_ns_fd": namespace})
        [hub_index] = self._hub.link_lookup(ifname=name)
        [node_index] = inside.link_lookup(ifname="eth0")
        self._hub.addr("add", index=hub_index, address=near, prefixlen=30)
        self._hub.link("set", index=hub_index, state="up")
        inside.link("set", index=1, state="up")
        inside.addr("add", index=node_index, address=far, prefixlen=30)
        inside.link("set", index=node_index, state="up")
        inside.route("add", dst="0.0.0.0/0", gateway=near)
        return _Link(namespace, self._hub, inside, hub_index, node_index, near, far)

    def _make_namespace(self) -> tuple[int, IPRoute]:
        unshare(CLONE_NEWNET)
        try:
            return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC), IPRoute()
        finally:
            _enter(self._hub_namespace)

    def address(self, node: int) -> str:
        return self._links[node].node_address

    def command(self, node: int) -> list[str]:
        """What to put before a command so that it runs on the node; its pid stays that of the command."""
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self._links[node].namespace}"]

    def cut(self, node: int, how: Cut) -> None:
        link = self._links[node]
        if how is Cut.DOWN:
            link.hub.link("set", index=link.hub_index, state="down")
        if how in (Cut.TO_NODE, Cut.SILENT):
            _lose(link.hub, link.hub_index, link.node_address)
        if how in (Cut.FROM_NODE, Cut.SILENT):
            _lose(link.node, link.node_index, link.hub_address)

    def heal(self, node: int) -> None:
        """Whatever was done to the link."""
        link = self._links[node]
        link.hub.link("set", index=link.hub_index, state="up")
        _find(link.hub, link.hub_index, link.node_address)
        _find(link.node, link.node_index, link.hub_address)

    def close(self) -> None:
        for link in self._links.values():
            link.node.close()
            os.close(link.namespace)
        self._hub.close()
        os.close(self._hub_namespace)


def _lose(end: IPRoute, index: int, neighbour: str) -> None:
    end.neigh("replace", dst=neighbour, lladdr=_NOBODY, ifindex=index, state=_PERMANENT)


def _find(end: IPRoute, index: int, neighbour: str) -> None:
    """Forget a wrong hardware address."""
    for entry in end.get_neighbours(ifindex=index):
        if entry.get_attr("NDA_DST") == neighbour and entry.get_attr("NDA_LLADDR") == _NOBODY:
            end.neigh("del", dst=neighbour, lladdr=_NOBODY, ifindex=index)
