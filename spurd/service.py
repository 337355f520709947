"""What spurd answers to its controller, proto/spurd.proto. Who calls was proven before a handler is reached."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import grpc
import structlog

from spur import __version__
from spur.pb import spurd_pb2, spurd_pb2_grpc
from spurd import messages
from spurd.admission import Admission, NotAdmitted, Obstacle
from spurd.caretaker import Caretaker
from spurd.channel import Refused
from spurd.messages import Here, Malformed
from spurd.roster import Roster
from spurd.runs import Lock, Order
from spurstepd.ids import RunId

_CODES = {
    Obstacle.FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Obstacle.NOT_NOW: grpc.StatusCode.FAILED_PRECONDITION,
    Obstacle.UNFIT: grpc.StatusCode.FAILED_PRECONDITION,
}

Context = grpc.aio.ServicerContext[Any, Any]

log = structlog.get_logger()


class AgentService(spurd_pb2_grpc.AgentServicer):
    """A thin layer over admission and roster."""

    def __init__(self, here: Here, incarnation: str, roster: Roster, admission: Admission) -> None:
        self._here = here
        self._incarnation = incarnation
        self._roster = roster
        self._admission = admission

    async def LaunchRun(self, request: spurd_pb2.LaunchRunRequest, context: Context) -> spurd_pb2.LaunchRunReply:
        try:
            launch = messages.launch(request, self._here)
        except Malformed as error:
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        try:
            granted, already_here = await self._admission.launch(launch)
        except NotAdmitted as error:
            log.warning(
                "launch_refused", job=launch.run.job, attempt=launch.run.attempt, reason=str(error),
                stimulus=launch.stimulus,
            )  # fmt: skip
            await _refuse(context, _CODES[error.obstacle], str(error))
        return messages.launch_reply(granted, already_here=already_here)

    async def StartRun(self, request: spurd_pb2.StartRunRequest, context: Context) -> spurd_pb2.StartRunReply:
        caretaker = await self._find(request.run, context)
        await _carried_out(caretaker.wish(Order.START), context)
        return spurd_pb2.StartRunReply()

    async def TerminateRun(
        self, request: spurd_pb2.TerminateRunRequest, context: Context
    ) -> spurd_pb2.TerminateRunReply:
        run = await _run(request.run, context)
        try:
            verdict = messages.verdict(request.verdict)
        except Malformed as error:
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        await self._admission.passed(run)
        caretaker = self._roster.find(run)
        if caretaker is None or caretaker.known.lock is Lock.GONE:
            self._roster.bury(run)
            await _refuse(context, grpc.StatusCode.NOT_FOUND, f"no run {run} on node {self._here.node}")
        reply = caretaker.wish(Order.TERMINATE, kind=verdict.kind.value, by_uid=verdict.by_uid, reason=verdict.reason)
        # The verdict has been decided: it is carried out whether or not the controller waits for our answer.
        reply.add_done_callback(lambda done: done.cancelled() or done.exception())
        await _carried_out(asyncio.shield(reply), context)
        state = caretaker.known.state
        return spurd_pb2.TerminateRunReply(already_ended=state is not None and state.exit is not None)

    async def SignalRun(self, request: spurd_pb2.SignalRunRequest, context: Context) -> spurd_pb2.SignalRunReply:
        caretaker = await self._find(request.run, context)
        wish = caretaker.wish(
            Order.SIGNAL, signal=request.signal, scope=request.scope or "steps", by_uid=request.by_uid
        )
        await _carried_out(wish, context)
        return spurd_pb2.SignalRunReply()

    async def SuspendRun(self, request: spurd_pb2.SuspendRunRequest, context: Context) -> spurd_pb2.SuspendRunReply:
        caretaker = await self._find(request.run, context)
        await _carried_out(caretaker.wish(Order.RESUME if request.resume else Order.SUSPEND), context)
        return spurd_pb2.SuspendRunReply()

    async def Ping(self, request: spurd_pb2.AgentPingRequest, context: Context) -> spurd_pb2.AgentPingReply:
        return spurd_pb2.AgentPingReply(
            node=self._here.node, version=__version__, incarnation=self._incarnation, runs=len(self._roster)
        )

    async def _find(self, message: Any, context: Context) -> Caretaker:
        run = await _run(message, context)
        caretaker = self._roster.find(run)
        if caretaker is None:
            await _refuse(context, grpc.StatusCode.NOT_FOUND, f"no run {run} on node {self._here.node}")
        return caretaker


async def _run(message: Any, context: Context) -> RunId:
    try:
        return messages.run_id(message)
    except Malformed as error:
        await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))


async def _carried_out(wish: asyncio.Future[Any], context: Context) -> None:
    """Wait until the supervisor has done it. A refusal of its is passed on."""
    try:
        await wish
    except Refused as error:
        code = grpc.StatusCode.FAILED_PRECONDITION
        await _refuse(
            context, grpc.StatusCode.INVALID_ARGUMENT if error.name == "InvalidParameter" else code, str(error)
        )


async def _refuse(context: Context, code: grpc.StatusCode, text: str) -> NoReturn:
    await context.abort(code, text)
    raise AssertionError("abort does not return")
