"""The agent's side of org.spur.Run: one supervisor, found by the socket of its run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from spurd import runstate
from spurd.channel import Channel, ChannelLost, Values
from spurd.runstate import RunState
from spurstepd.ids import RunId
from spurstepd.ledger import LedgerError, Record, Usage

_INTERFACE = "org.spur.Run"


class Impostor(Exception):
    """Whoever listens on the socket is not the supervisor of that manifest."""


@dataclass(frozen=True, slots=True)
class Supervisor:
    """How the supervisor of `run` is reached. `nonce` None: its record could not be read, any is believed."""

    run: RunId
    socket: Path
    nonce: str | None

    async def call(self, method: str, parameters: Values, timeout_s: float) -> Values:
        """One call on a connection of its own. ChannelLost, Refused; TimeoutError: it has not answered yet."""
        async with asyncio.timeout(timeout_s), Channel.open(self.socket) as channel:
            return await channel.call(f"{_INTERFACE}.{method}", parameters)

    async def usage(self, timeout_s: float) -> Usage:
        """What the run has used so far. As `call`; LedgerError: an answer that is none."""
        reply = await self.call("GetUsage", {}, timeout_s)
        return runstate.decode_usage(Record(reply, "reply").record("usage"))

    async def follow(self) -> Following:
        """Connect, and make sure of whom. Takes as long as the peer does. ChannelLost, Refused, Impostor."""
        channel = await Channel.connect(self.socket)
        following = Following(channel, channel.peer_pidfd())
        try:
            await self._greet(channel)
        except BaseException:
            following.close()
            raise
        return following

    async def _greet(self, channel: Channel) -> None:
        try:
            said = Record(await channel.call(f"{_INTERFACE}.Hello"), "reply")
            run = RunId(said.integer("job", least=1), said.integer("attempt", least=1))
            nonce = said.optional("nonce", Record.text)
        except LedgerError as error:
            raise Impostor(f"{self.socket}: {error}") from None
        if run != self.run or (self.nonce is not None and nonce != self.nonce):
            raise Impostor(f"{self.socket} is answered for run {run}, not by the supervisor of {self.run}")


class Following:
    """An open link to a supervisor that has proven itself. Owns the connection and a pidfd of the peer."""

    def __init__(self, channel: Channel, peer: int | None) -> None:
        self._channel = channel
        self._peer = peer

    async def states(self) -> AsyncIterator[RunState]:
        """The state now and after every change. Ends with ChannelLost, or LedgerError for a state that is none."""
        async for reply in self._channel.call_more(f"{_INTERFACE}.Subscribe"):
            yield runstate.decode(Record(reply, "reply").record("state"))
        raise ChannelLost(f"{_INTERFACE}.Subscribe: no more replies")

    def take_peer(self) -> int | None:
        """A pidfd of the peer, the caller's to close from now on; None where the kernel gave none."""
        peer, self._peer = self._peer, None
        return peer

    def close(self) -> None:
        self._channel.close()
        if self._peer is not None:
            os.close(self._peer)
            self._peer = None

    def __enter__(self) -> Following:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
