"""Nodes come, beat, fall silent, leave, are drained and ordered about."""

from __future__ import annotations

from collections.abc import Iterable

from spurctld.core.cluster import Cluster
from spurctld.core.ends import give_up, lose_run, verdict
from spurctld.core.events import NodeAnswered, NodeBeat, NodeLeft, NodeRegistered, NodesOrdered
from spurctld.core.instructions import Reply
from spurctld.core.reconcile import compare
from spurctld.core.records import Node
from spurctld.core.states import NodeOrder, NodeState, RefusalKind, VerdictKind
from spurctld.core.values import BeatNoted, Done, Gres, Machine, NodeSpec, Refusal, sum_gres

REBOOTED = "Node unexpectedly rebooted"
NOT_RESPONDING = "Not responding"


def register(cluster: Cluster, event: NodeRegistered) -> None:
    """The node is there, and `runs` is all that it has."""
    node = cluster.nodes.get(event.node)
    if node is None or not node.declared:
        if not cluster.policy.any_node:
            text = f"node {event.node} is not in the configuration"
            cluster.answer(Reply(Refusal(RefusalKind.NOT_FOUND, text)))
            return
        if node is None:
            node = cluster.nodes[event.node] = Node(NodeSpec(event.node), len(cluster.nodes))
        node.declared = True
        cluster.shapes.clear()
    rebooted = node.machine is not None and node.machine.boot_id != event.machine.boot_id
    if node.machine != event.machine:
        node.machine = event.machine
        cluster.shapes.clear()
        cluster.touch_node(node)
    _hear(cluster, node)
    _return(cluster, node)
    _set_agent_drains(cluster, node, (*event.drain_reasons, *_shortcomings(node, event.machine)))
    cluster.note("node_registered", node=node.name, address=event.machine.address, rebooted=int(rebooted))
    compare(cluster, node, event.runs, rebooted=rebooted)
    cluster.answer(Reply(Done()))


def beat(cluster: Cluster, event: NodeBeat) -> None:
    node = cluster.nodes.get(event.node)
    if node is None or node.machine is None or node.machine.incarnation != event.incarnation:
        cluster.answer(Reply(BeatNoted(register_again=True)))
        return
    if node.state is NodeState.LEFT:
        cluster.answer(Reply(BeatNoted(register_again=True)))
        return
    _hear(cluster, node)
    _return(cluster, node)
    node.load, node.free_memory_mb = event.load, event.free_memory_mb
    _set_agent_drains(cluster, node, (*event.drain_reasons, *_shortcomings(node, node.machine)))
    compare(cluster, node, event.runs)
    cluster.answer(Reply(BeatNoted(drain_noted=bool(event.drain_reasons))))


def answer_ping(cluster: Cluster, event: NodeAnswered) -> None:
    """A node known from before our start is reachable, under the incarnation that we know: it may take jobs again."""
    node = cluster.nodes.get(event.node)
    if node is None or node.machine is None or node.machine.incarnation != event.incarnation:
        return
    if node.state is NodeState.UP and not node.confirmed:
        node.confirmed = True
        cluster.schedule_wanted = True


def leave(cluster: Cluster, event: NodeLeft) -> None:
    """An idle agent goes. Refused while a run may be there or on its way (R01, R02)."""
    node = cluster.nodes.get(event.node)
    if node is None or node.machine is None or node.machine.incarnation != event.incarnation:
        cluster.answer(Reply(Done()))
        return
    if node.runs or node.strays:
        runs = ", ".join(str(key) for key in sorted({*node.runs, *node.strays}))
        cluster.answer(Reply(Refusal(RefusalKind.WRONG_STATE, f"node {node.name} is not idle: {runs}")))
        return
    if node.state is NodeState.UP:
        cluster.move_node(node, NodeState.LEFT, event.reason or "the agent was stopped")
        node.confirmed = False
    cluster.note("node_left", node=node.name, reason=event.reason)
    cluster.answer(Reply(Done()))


def excuse_silence(cluster: Cluster, away_s: float) -> None:
    """While the controller stood still, stopped or with its whole machine, it could hear of nobody."""
    for node in cluster.nodes.values():
        node.last_heard = min(cluster.mono, node.last_heard + away_s)


def give_up_silent(cluster: Cluster) -> None:
    """Nodes that were not heard of for a whole timeout, on the monotonic clock, are down (R07)."""
    timeout_s = cluster.policy.heartbeat_timeout_s
    for node in cluster.nodes.values():
        if cluster.mono - node.last_heard <= timeout_s:
            continue
        if node.state in (NodeState.UP, NodeState.UNKNOWN):
            node.confirmed = False
            cluster.move_node(node, NodeState.SILENT, NOT_RESPONDING)
            cluster.note("node_silent", node=node.name, seconds=round(cluster.mono - node.last_heard, 3))
        elif node.confirmed:
            node.confirmed = False
        else:
            continue
        for key in sorted(node.runs):
            job = cluster.jobs[key.job]
            run = job.runs[key.attempt]
            lose_run(cluster, job, run, run.parts[node.name], f"node {node.name} does not respond")


def drain_by_report(cluster: Cluster, node: Node, reason: str) -> None:
    """A hook failed there, or worse: nothing more is started until an operator has looked."""
    if reason not in node.hook_drains:
        node.hook_drains[reason] = cluster.at
        node.reason_at, node.reason_uid = cluster.at, 0
        cluster.touch_node(node)
        cluster.note("node_drained", node=node.name, reason=reason)


def order_nodes(cluster: Cluster, event: NodesOrdered) -> None:
    refusal = _refuse_order(cluster, event)
    if refusal is not None:
        cluster.answer(Reply(refusal))
        return
    for name in event.nodes:
        node = cluster.nodes[name]
        node.reason_at, node.reason_uid = cluster.at, event.by_uid
        match event.order:
            case NodeOrder.DRAIN:
                node.drained, node.drain_reason = True, event.reason
            case NodeOrder.DOWN:
                _take_down(cluster, node, event.reason, event.by_uid)
            case NodeOrder.RESUME:
                _clear_drains(node)
                _resume(cluster, node)
            case NodeOrder.UNDRAIN:
                _clear_drains(node)
        cluster.touch_node(node)
        cluster.schedule_wanted = True
        cluster.note("node_ordered", node=name, order=event.order.value, by_uid=event.by_uid, reason=event.reason)
    cluster.answer(Reply(Done()))


def _refuse_order(cluster: Cluster, event: NodesOrdered) -> Refusal | None:
    if event.by_uid != 0:
        return Refusal(RefusalKind.DENIED, "Access/permission denied")
    if not event.nodes or any(name not in cluster.nodes for name in event.nodes):
        return Refusal(RefusalKind.NOT_FOUND, "Invalid node name specified")
    if event.order in (NodeOrder.DRAIN, NodeOrder.DOWN) and not event.reason:
        text = "You must specify a reason when DOWNING or DRAINING a node. Request denied"
        return Refusal(RefusalKind.INVALID, text)
    nodes = [cluster.nodes[name] for name in event.nodes]
    if event.order is NodeOrder.RESUME and not all(node.state.down or node.draining for node in nodes):
        return Refusal(RefusalKind.WRONG_STATE, "Invalid node state specified")
    return None


def _take_down(cluster: Cluster, node: Node, reason: str, by_uid: int) -> None:
    """Its jobs are given up; what still runs there is ended, since the node itself may well be there."""
    cluster.move_node(node, NodeState.DOWN, reason)
    node.reason_uid = by_uid
    for key in sorted(node.runs):
        job = cluster.jobs[key.job]
        run = job.runs[key.attempt]
        if job.attempt == key.attempt and job.state.active:
            give_up(cluster, job, run, run.parts[node.name], f"node {node.name} was set down: {reason}")
        elif run.verdict is None:
            cluster.judge(job, run, verdict(cluster, VerdictKind.NODE_LOST, reason=reason))


def _resume(cluster: Cluster, node: Node) -> None:
    if not node.state.down:
        return
    if node.confirmed:
        cluster.move_node(node, NodeState.UP)
    elif node.state is NodeState.DOWN:
        cluster.move_node(node, NodeState.SILENT, NOT_RESPONDING)


def _clear_drains(node: Node) -> None:
    """The agent lists again at its next heartbeat what still holds."""
    node.drained, node.drain_reason = False, ""
    node.hook_drains.clear()
    node.agent_drains.clear()


def _hear(cluster: Cluster, node: Node) -> None:
    node.last_heard = cluster.mono
    if not node.confirmed:
        node.confirmed = True
        cluster.schedule_wanted = True


def _return(cluster: Cluster, node: Node) -> None:
    """An automatic DOWN ends with the node's return, unless the site wants to be asked; an ordered one stays."""
    if node.state in (NodeState.UP, NodeState.DOWN):
        return
    if node.state is NodeState.SILENT and not cluster.policy.return_to_service and node.machine is not None:
        cluster.move_node(node, NodeState.DOWN, node.down_reason or NOT_RESPONDING)
        return
    cluster.move_node(node, NodeState.UP)
    cluster.note("node_up", node=node.name)


def _set_agent_drains(cluster: Cluster, node: Node, reasons: Iterable[str]) -> None:
    """The reasons that the agent gives now; those that it no longer gives are lifted."""
    drains = {reason: node.agent_drains.get(reason, cluster.at) for reason in reasons if reason}
    if drains == node.agent_drains:
        return
    for reason in drains.keys() - node.agent_drains.keys():
        cluster.note("node_drained", node=node.name, reason=reason)
        node.reason_at, node.reason_uid = cluster.at, 0
    for reason in node.agent_drains.keys() - drains.keys():
        cluster.note("node_drain_lifted", node=node.name, reason=reason)
    node.agent_drains = drains
    cluster.touch_node(node)
    cluster.schedule_wanted = True


def _shortcomings(node: Node, machine: Machine) -> Iterable[str]:
    """Devices that the configuration promises and the agent does not find. CPUs and memory may be declared freely."""
    found = _by_name(machine.gres)
    for name, count in _by_name(node.spec.gres or ()).items():
        if found.get(name, 0) < count:
            yield f"gres/{name} count reported lower than configured ({found.get(name, 0)} < {count})"


def _by_name(amounts: Iterable[Gres]) -> dict[str, int]:
    return {one.name: one.count for one in sum_gres(Gres(one.name, "", one.count) for one in amounts)}
