"""Calls to agents: a bounded queue per node, so that a dead or slow node delays nobody but itself.

Every call may be made twice and be lost: the agents answer repeats, and each heartbeat derives again what is owed.
So a queue forgets what is superseded, and what finds no room. Nothing here is on disk.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import grpc
import structlog

from spur.pb import spurd_pb2, spurd_pb2_grpc
from spurctld import messages
from spurctld.core import events as e
from spurctld.core.instructions import (
    LaunchRun,
    NodeInstruction,
    PingNode,
    SignalRun,
    StartRun,
    SuspendRun,
    TerminateRun,
)
from spurctld.core.machine import Event
from spurctld.core.states import Fault
from spurctld.core.values import RunKey
from spurctld.engine import stamp
from spurctld.messages import Malformed

MAX_QUEUED = 20_000  # per node
MAX_AT_ONCE = 32  # per node
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 30.0
_FAULTS_BEFORE_GIVING_UP = 3  # answers that say nothing about what became of a launch
_SIGNAL_TRIES = 3

_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5000),
)
_UNREACHED = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})
_NODE_FAULTS = frozenset(
    {
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)

log = structlog.get_logger()

Key = tuple[type, RunKey | int]


class NotWanted(Exception):
    """What was to be said has been overtaken."""


class Desk(Protocol):
    """What the dispatcher asks its surroundings."""

    def address(self, node: str) -> str | None:
        """Where the agent of `node` is; None: it never registered, or is gone."""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What proves the controller."""

    async def launch(self, one: LaunchRun) -> spurd_pb2.LaunchRunRequest:
        """The call for a launch as it is wanted now. NotWanted."""

    def tell(self, event: Event) -> None:
        """What came of a call."""


class Dispatcher:
    """Owns the channels to the agents. Lives as long as the daemon."""

    def __init__(self, desk: Desk, timeout_s: float) -> None:
        self._desk, self._timeout_s = desk, timeout_s
        self._lines: dict[str, _Line] = {}

    def send(self, one: NodeInstruction) -> None:
        line = self._lines.get(one.node)
        if line is None:
            line = self._lines[one.node] = _Line(one.node, self._desk, self._timeout_s)
        line.put(one)

    def forget(self) -> None:
        """Drops everything that waits: the controller reads its records anew, and derives it again."""
        for line in self._lines.values():
            line.clear()

    def hurry(self, node: str) -> None:
        """The node was heard of: what waits for a next try is tried now."""
        if node in self._lines:
            self._lines[node].hurry()

    async def close(self) -> None:
        await asyncio.gather(*(line.close() for line in self._lines.values()))
        self._lines.clear()


class _Line:
    """One node's queue. Calls for one run are made one after the other, those for different runs at once."""

    def __init__(self, node: str, desk: Desk, timeout_s: float) -> None:
        self.node, self._desk, self._timeout_s = node, desk, timeout_s
        self._queue: dict[Key, NodeInstruction] = {}
        self._numbered = 0
        self._busy: set[RunKey | int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._work = asyncio.Event()
        self._resume = asyncio.Event()
        self._channel: tuple[str, grpc.aio.Channel] | None = None
        self._failures = 0
        self._faults: dict[Key, int] = {}
        self._pump = asyncio.create_task(self._run(), name=f"dispatch {node}")

    def put(self, one: NodeInstruction) -> None:
        key = self._key(one)
        if isinstance(one, TerminateRun):  # a launch that has not left need not leave
            self._queue.pop((LaunchRun, one.run), None)
            self._queue.pop((StartRun, one.run), None)
        elif len(self._queue) >= MAX_QUEUED and key not in self._queue:
            log.warning("call_dropped", node=self.node, call=type(one).__name__, queued=len(self._queue))
            return
        self._queue[key] = one
        self._work.set()

    def _key(self, one: NodeInstruction) -> Key:
        if isinstance(one, SignalRun):  # each signal counts
            self._numbered += 1
            return (SignalRun, self._numbered)
        return (type(one), 0 if isinstance(one, PingNode) else one.run)

    def clear(self) -> None:
        self._queue.clear()
        self._faults.clear()

    def hurry(self) -> None:
        self._failures = 0
        self._resume.set()

    async def close(self) -> None:
        tasks = [self._pump, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel[1].close(grace=None)

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            if self._failures:
                await self._pause()
            while len(self._busy) < MAX_AT_ONCE and (found := self._next()) is not None:
                self._begin(*found)

    async def _pause(self) -> None:
        """Before a node that was not reached is tried again; a heartbeat of it cuts this short."""
        pause_s = min(FIRST_PAUSE_S * 2 ** (self._failures - 1), LONGEST_PAUSE_S)
        self._resume.clear()
        try:
            async with asyncio.timeout(pause_s):
                await self._resume.wait()
        except TimeoutError:
            pass

    def _next(self) -> tuple[Key, NodeInstruction] | None:
        for key, one in self._queue.items():
            if _about(one) not in self._busy:
                del self._queue[key]
                return key, one
        return None

    def _begin(self, key: Key, one: NodeInstruction) -> None:
        about = _about(one)
        self._busy.add(about)
        task = asyncio.create_task(self._carry_out(key, one))
        self._tasks.add(task)

        def end(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            self._busy.discard(about)
            if self._queue:
                self._work.set()
            if not done.cancelled() and done.exception() is not None:  # a bug of ours must not stop the line
                log.error("call_not_made", node=self.node, call=type(one).__name__, exc_info=done.exception())

        task.add_done_callback(end)

    async def _carry_out(self, key: Key, one: NodeInstruction) -> None:
        address = self._desk.address(self.node)
        if address is None:
            return  # it registers before anything can be said to it, and everything is derived again then
        try:
            await self._call(one, spurd_pb2_grpc.AgentStub(self._open(address)))
        except NotWanted:
            return
        except Malformed as error:
            log.error("answer_not_understood", node=self.node, call=type(one).__name__, reason=str(error))
        except grpc.aio.AioRpcError as error:
            self._failed(key, one, error)
            return
        self._failures = 0
        self._faults.pop(key, None)

    def _open(self, address: str) -> grpc.aio.Channel:
        if self._channel is None or self._channel[0] != address:
            if self._channel is not None:
                closing = asyncio.create_task(self._channel[1].close(grace=self._timeout_s))
                self._tasks.add(closing)
                closing.add_done_callback(self._tasks.discard)
            self._channel = (address, grpc.aio.insecure_channel(address, options=_OPTIONS))
            self._failures = 0
        return self._channel[1]

    async def _call(self, one: NodeInstruction, stub: spurd_pb2_grpc.AgentAsyncStub) -> None:
        match one:
            case LaunchRun(run=run):
                request = await self._desk.launch(one)
                reply = await stub.LaunchRun(request, timeout=self._timeout_s, metadata=self._desk.metadata())
                grant = messages.grant(reply.grant) if reply.HasField("grant") else None
                self._desk.tell(e.LaunchTaken(run=run, node=self.node, grant=grant, **stamp(one.stimulus)))
            case TerminateRun(run=run, verdict=verdict):
                terminate = spurd_pb2.TerminateRunRequest(
                    run=messages.run_id(run), verdict=messages.verdict_message(verdict)
                )
                await stub.TerminateRun(terminate, timeout=self._timeout_s, metadata=self._desk.metadata())
                self._desk.tell(e.TerminateTaken(run=run, node=self.node, **stamp()))
            case StartRun(run=run):
                start = spurd_pb2.StartRunRequest(run=messages.run_id(run))
                await stub.StartRun(start, timeout=self._timeout_s, metadata=self._desk.metadata())
            case SignalRun(run=run):
                send = spurd_pb2.SignalRunRequest(
                    run=messages.run_id(run), signal=one.signal, scope=one.scope.value, by_uid=one.by_uid
                )
                await stub.SignalRun(send, timeout=self._timeout_s, metadata=self._desk.metadata())
            case SuspendRun(run=run):
                suspend = spurd_pb2.SuspendRunRequest(run=messages.run_id(run), resume=one.resume)
                await stub.SuspendRun(suspend, timeout=self._timeout_s, metadata=self._desk.metadata())
            case PingNode():
                ping = await stub.Ping(
                    spurd_pb2.AgentPingRequest(), timeout=self._timeout_s, metadata=self._desk.metadata()
                )
                self._desk.tell(e.NodeAnswered(node=self.node, incarnation=ping.incarnation, **stamp()))

    def _failed(self, key: Key, one: NodeInstruction, error: grpc.aio.AioRpcError) -> None:
        code, text = error.code(), error.details() or error.code().name
        if code in _UNREACHED:
            if code is grpc.StatusCode.UNAVAILABLE:
                self._failures = min(self._failures + 1, 16)
            log.info("node_not_reached", node=self.node, call=type(one).__name__, code=code.name, reason=text)
            self._again(key, one, code)
            return
        self._failures = 0
        match one:
            case LaunchRun(run=run):
                self._launch_refused(key, one, run, code, text)
            case TerminateRun(run=run):
                if code is grpc.StatusCode.NOT_FOUND:
                    self._desk.tell(e.RunAbsent(run=run, node=self.node, **stamp()))
                else:  # said again with the next heartbeat that still lists the run
                    log.warning("call_refused", node=self.node, call="TerminateRun", run=str(run), reason=text)
            case _:
                log.warning("call_refused", node=self.node, call=type(one).__name__, code=code.name, reason=text)

    def _again(self, key: Key, one: NodeInstruction, code: grpc.StatusCode) -> None:
        """What was not heard is said again. A signal is not, where it may have been heard."""
        if isinstance(one, PingNode):
            return  # it will beat, or it is gone
        if isinstance(one, SignalRun):
            self._faults[key] = self._faults.get(key, 0) + 1
            if code is not grpc.StatusCode.UNAVAILABLE or self._faults[key] >= _SIGNAL_TRIES:
                self._faults.pop(key)
                log.warning("signal_lost", node=self.node, run=str(one.run), signal=one.signal)
                return
        overtaken = isinstance(one, LaunchRun | StartRun) and (TerminateRun, one.run) in self._queue
        if not overtaken:
            self._queue.setdefault(key, one)
            self._work.set()

    def _launch_refused(self, key: Key, one: LaunchRun, run: RunKey, code: grpc.StatusCode, text: str) -> None:
        if code is grpc.StatusCode.INVALID_ARGUMENT:
            fault, proven = Fault.USER, True
        elif code in _NODE_FAULTS:
            fault, proven = Fault.NODE, True
        else:  # the agent stumbled: the run may be there all the same
            self._faults[key] = self._faults.get(key, 0) + 1
            if self._faults[key] < _FAULTS_BEFORE_GIVING_UP:
                log.warning("call_refused", node=self.node, call="LaunchRun", run=str(run), reason=text)
                self._again(key, one, code)
                return
            fault, proven = Fault.NODE, False
        self._faults.pop(key, None)
        self._desk.tell(
            e.LaunchRefused(run=run, node=self.node, fault=fault, text=text, proven=proven, **stamp(one.stimulus))
        )


def _about(one: NodeInstruction) -> RunKey | int:
    return 0 if isinstance(one, PingNode) else one.run
