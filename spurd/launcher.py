"""The agent's side of org.spur.Launcher: one launcher, found by its socket."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from spurd.channel import Channel, Values
from spurstepd.ids import RunId
from spurstepd.ledger import Record

INTERFACE = "org.spur.Launcher"
ANSWER_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Leader:
    """What we know of the leader of a run whose supervisor died: a pidfd that we kept, the status if we reaped it."""

    pid: int
    pidfd: int | None
    status: int | None


@dataclass(frozen=True, slots=True)
class Launcher:
    """How a launcher is reached. Each call has a connection of its own: it answers them as they are done."""

    pid: int
    socket: Path

    async def holds(self, run: RunId) -> bool:
        """Whether it supervises `run` or is about to again. ChannelLost, Refused, TimeoutError, LedgerError."""
        children = await self._children()
        return any((one.integer("job"), one.integer("attempt")) == (run.job, run.attempt) for one in children)

    async def answers(self) -> bool:
        """Whether it reacts at all. ChannelLost, Refused, LedgerError."""
        try:
            await self._children()
        except TimeoutError:
            return False
        return True

    async def _children(self) -> list[Record]:
        async with asyncio.timeout(ANSWER_PATIENCE_S), Channel.open(self.socket) as channel:
            reply = Record(await channel.call(f"{INTERFACE}.ListChildren"), "reply")
        return reply.records("children")

    async def supervise(self, run: RunId, leader: Leader | None, patience_s: float) -> int:
        """The pid of the supervisor of `run`, which holds its lock. Refused, ChannelLost, TimeoutError, LedgerError."""
        parameters: Values = {"job": run.job, "attempt": run.attempt}
        fds: tuple[int, ...] = ()
        if leader is not None and leader.status is not None:
            parameters |= {"leader_pid": leader.pid, "leader_status": leader.status}
        if leader is not None and leader.pidfd is not None:
            parameters["leader_fd"], fds = 0, (leader.pidfd,)
        async with asyncio.timeout(patience_s), Channel.open(self.socket) as channel:
            reply = await channel.call(f"{INTERFACE}.Supervise", parameters, fds)
        return Record(reply, "reply").integer("pid", least=1)
