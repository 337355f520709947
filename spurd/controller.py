"""The controller, as this node reaches it: registration, heartbeats and reports over gRPC.

Several addresses are tried in turn. Nothing here gives up and nothing is undone because the controller is away:
that is for the controller to judge once it is back (R07, R08).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import structlog

from spur.pb import spurctld_pb2, spurctld_pb2_grpc

CALL_TIMEOUT_S = 10.0
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 30.0

_OPTIONS = (
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)

log = structlog.get_logger()

Metadata = tuple[tuple[str, str], ...]


class Unanswered(Exception):
    """The controller did not answer, or refused to; one line."""


class Pause:
    """How long to wait after each failure in a row: doubling, up to LONGEST_PAUSE_S."""

    def __init__(self) -> None:
        self._next_s = FIRST_PAUSE_S

    def next_s(self) -> float:
        pause, self._next_s = self._next_s, min(2 * self._next_s, LONGEST_PAUSE_S)
        return pause

    def reset(self) -> None:
        self._next_s = FIRST_PAUSE_S


class Controller:
    """Owns one channel per address. `sign` gives the metadata that proves this node."""

    def __init__(self, addresses: Sequence[str], sign: Callable[[], Metadata]) -> None:
        self._addresses = tuple(addresses)
        self._sign = sign
        self._at = 0
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._answered = asyncio.Event()
        self._silent = False
        # Reports of a thousand runs must not all wait for a controller that hangs while heartbeats want to pass.
        self._reporting = asyncio.Semaphore(64)

    async def register(self, request: spurctld_pb2.RegisterRequest) -> spurctld_pb2.RegisterReply:
        """Unanswered."""
        reply: spurctld_pb2.RegisterReply = await self._call("Register", request, CALL_TIMEOUT_S)
        return reply

    async def heartbeat(self, request: spurctld_pb2.HeartbeatRequest, timeout_s: float) -> spurctld_pb2.HeartbeatReply:
        """Unanswered."""
        reply: spurctld_pb2.HeartbeatReply = await self._call("Heartbeat", request, timeout_s)
        return reply

    async def report(self, request: spurctld_pb2.ReportRunRequest) -> spurctld_pb2.ReportRunReply:
        """Unanswered."""
        async with self._reporting:
            reply: spurctld_pb2.ReportRunReply = await self._call("ReportRun", request, CALL_TIMEOUT_S)
        return reply

    async def deregister(self, request: spurctld_pb2.DeregisterRequest, timeout_s: float) -> None:
        """Unanswered, also where the controller knows a run here."""
        await self._call("Deregister", request, timeout_s)

    async def wait_answered(self, timeout_s: float) -> None:
        """Until any call is answered after a silence, or the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._answered.wait()
        except TimeoutError:
            pass

    async def _call(self, method: str, request: object, timeout_s: float) -> Any:
        address = self._addresses[self._at]
        try:
            call = getattr(spurctld_pb2_grpc.RegistryStub(self._channel(address)), method)
            reply = await call(request, timeout=timeout_s, metadata=self._sign())
        except grpc.aio.AioRpcError as error:
            self._failed(method, address, error)
            raise Unanswered(f"{method}: {address}: {error.code().name}: {error.details()}") from None
        if self._silent:
            log.info("controller_answered", address=address)
        self._silent = False
        self._answered.set()
        self._answered.clear()  # wakes those who wait now, and nobody who comes later
        return reply

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address, options=_OPTIONS)
        return self._channels[address]

    def _failed(self, method: str, address: str, error: grpc.aio.AioRpcError) -> None:
        if not self._silent:
            log.warning(
                "controller_not_answering", address=address, call=method, code=error.code().name, reason=error.details()
            )
        self._silent = True
        if self._addresses[self._at] == address:
            self._at = (self._at + 1) % len(self._addresses)

    async def close(self) -> None:
        """Ends all calls that are under way, by cancelling their tasks: stop those before."""
        for channel in self._channels.values():
            await channel.close(grace=None)
        self._channels.clear()
