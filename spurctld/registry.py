"""What agents are answered, proto/spurctld.proto. Each speaks for its own node alone; its token says which that is."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from spur.auth import Identity
from spur.callers import caller
from spur.pb import spurctld_pb2, spurctld_pb2_grpc
from spurctld import messages
from spurctld.answering import Refused, handler
from spurctld.core import events as e
from spurctld.core.states import Answer, RefusalKind
from spurctld.core.values import BeatNoted, Refusal
from spurctld.engine import Engine, stamp

log = structlog.get_logger()


class RegistryService(spurctld_pb2_grpc.RegistryServicer):
    """A thin layer over the engine. `heard` is called with the name of each node that speaks."""

    def __init__(self, engine: Engine, cluster: str, interval_s: float, heard: Callable[[str], None]) -> None:
        self._engine, self._cluster, self._interval_s, self._heard = engine, cluster, interval_s, heard

    @handler
    async def Register(self, request: spurctld_pb2.RegisterRequest) -> spurctld_pb2.RegisterReply:
        _refuse_unless_own(caller(), request.node)
        event = e.NodeRegistered(
            node=request.node,
            machine=messages.machine(request),
            runs=tuple(messages.run_state(one) for one in request.runs),
            drain_reasons=tuple(request.drain_reasons),
            **stamp(f"register {request.node}"),
        )
        reply = await self._engine.ask(event)
        if isinstance(reply, Refusal):
            raise Refused(reply)
        self._heard(request.node)
        return spurctld_pb2.RegisterReply(heartbeat_interval_s=self._interval_s, cluster_name=self._cluster)

    @handler
    async def Heartbeat(self, request: spurctld_pb2.HeartbeatRequest) -> spurctld_pb2.HeartbeatReply:
        _refuse_unless_own(caller(), request.node)
        event = e.NodeBeat(
            node=request.node,
            incarnation=request.incarnation,
            runs=tuple(messages.run_state(one) for one in request.runs),
            drain_reasons=tuple(request.drain_reasons),
            load=request.load,
            free_memory_mb=request.free_memory_mb,
            **stamp(f"beat {request.node}"),
        )
        reply = await self._engine.ask(event)
        assert isinstance(reply, BeatNoted)
        if not reply.register_again:
            self._heard(request.node)
        return spurctld_pb2.HeartbeatReply(register_again=reply.register_again, drain_noted=reply.drain_noted)

    @handler
    async def ReportRun(self, request: spurctld_pb2.ReportRunRequest) -> spurctld_pb2.ReportRunReply:
        _refuse_unless_own(caller(), request.node)
        state = messages.run_state(request.status)
        event = e.RunReported(
            node=request.node,
            phase=messages.report_phase(request.phase),
            state=state,
            drain_reason=request.drain_reason,
            requeue_held=request.requeue_held,
            **stamp(f"report {request.node}"),
        )
        reply = await self._engine.ask(event)
        assert isinstance(reply, Answer)
        if reply in (Answer.STALE_ATTEMPT, Answer.UNKNOWN_JOB):
            log.info(
                "report_not_ours", node=request.node, job=state.run.job, attempt=state.run.attempt, answer=reply.value
            )
        return spurctld_pb2.ReportRunReply(answer=messages.ANSWERS[reply])

    @handler
    async def Deregister(self, request: spurctld_pb2.DeregisterRequest) -> spurctld_pb2.DeregisterReply:
        _refuse_unless_own(caller(), request.node)
        event = e.NodeLeft(
            node=request.node, incarnation=request.incarnation, reason=request.reason, **stamp(f"leave {request.node}")
        )
        reply = await self._engine.ask(event)
        if isinstance(reply, Refusal):
            raise Refused(reply)
        return spurctld_pb2.DeregisterReply()


def _refuse_unless_own(who: Identity, node: str) -> None:
    if who.node != node:
        text = f"the agent of node {who.node} cannot speak for node {node}"
        raise Refused(Refusal(RefusalKind.DENIED, text))
