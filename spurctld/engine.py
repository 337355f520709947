"""Events in, decisions stored, and only then their effects out: the one place where core and store meet.

Events are applied as they come; what they decided is committed together, one transaction per turn. Until it returned,
nothing of it leaves the process: no reply, no instruction, no line in the log. A commit that fails is a restart without
the process dying: the core is read anew from what is stored, everybody who waited is told so, and no event is taken
until the store can be written again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypedDict, TypeVar

import structlog

from spurctld.core.events import SchedulePass, Tick
from spurctld.core.instructions import Instruction, Note, PurgeJob, Reply, SaveJob, SaveNode
from spurctld.core.machine import Core, Event
from spurctld.core.restoring import restore
from spurctld.core.rows import RowError, encode_job, encode_node, encode_spec
from spurctld.core.states import Answer
from spurctld.core.transitions import ImpossibleTransition
from spurctld.core.values import BeatNoted, CancelResults, Done, Refusal, Submitted
from spurctld.store import Changes, Payload, Saved, Store, StoreError
from spurstepd import faults

RETRY_S = 1.0
_LEAST_PAUSE_S = 0.01  # between two passes of the scheduler
_PASS_SHARE = 4  # a pass that took long is followed by so many times as long a pause

log = structlog.get_logger()

_R = TypeVar("_R")

Answered = Submitted | Refusal | Done | CancelResults | BeatNoted | Answer


class Unavailable(Exception):
    """The controller cannot store decisions now, so it takes none; one line."""


class Stamp(TypedDict):
    at: float
    mono: float
    stimulus: str


def stamp(stimulus: str = "") -> Stamp:
    """The time of an event that happens now."""
    return {"at": time.time(), "mono": time.monotonic(), "stimulus": stimulus}


@dataclass(slots=True)
class Turn:
    """What is committed together."""

    committed: asyncio.Future[None]
    jobs: dict[int, bool] = field(default_factory=dict)  # whether it is new
    purged: list[int] = field(default_factory=list)
    nodes: dict[str, None] = field(default_factory=dict)
    payloads: dict[int, Payload] = field(default_factory=dict)
    effects: list[Instruction] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        return not (self.jobs or self.purged or self.nodes or self.effects)


class Engine:
    """Owns the core and the thread that writes. Lives as long as the daemon; to be used from its loop alone."""

    def __init__(
        self,
        store: Store,
        make_core: Callable[[], Core],
        carry_out: Callable[[Instruction], None],
        started_over: Callable[[], None],
    ) -> None:
        """`carry_out` is given every instruction that is not for the store, after the commit.

        `started_over` is called when the core was read anew: what was carried out before is derived again.
        """
        self._store, self._make_core, self._carry_out = store, make_core, carry_out
        self._started_over = started_over
        self.generation = 0  # how often the core was read
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self.descriptions: dict[int, bytes] = {}
        self.core = make_core()
        self.trouble = ""  # why nothing can be stored at present
        self._reread = False  # the core holds what is stored, and waits for room to go on
        self._turn = self._new_turn()
        self._in_flight: Turn | None = None
        self._stored_next_job: int | None = None
        self._wake = asyncio.Event()
        self._pass_due: asyncio.TimerHandle | None = None
        self._next_pass = 0.0
        self._last_pass_s = 0.0

    # Life

    def load(self) -> None:
        """Reads what is stored. StoreError, RowError: it cannot be used."""
        self._take(self._store.load())

    async def run(self, interval_s: float) -> None:
        """Commits turns until it is cancelled; ticks meanwhile, and goes through the queue every `interval_s`."""
        ticking = asyncio.create_task(self._tick(interval_s), name="tick")
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._commit()
        finally:
            ticking.cancel()
            await asyncio.gather(ticking, return_exceptions=True)

    async def close(self) -> None:
        """What was decided is stored before the process ends; effects that nobody waits for are not carried out."""
        if self._pass_due is not None:
            self._pass_due.cancel()
        if not self.trouble and not self._turn.idle:
            await self._commit()
        self._thread.shutdown(wait=True)

    # Events

    async def ask(self, event: Event, payload: Payload | None = None) -> Answered:
        """Applies `event` and gives the answer once all that it decided is stored. Unavailable."""
        reply, committed = self._apply(event, payload)
        if reply is None:
            raise TypeError(f"{type(event).__name__} is not answered")
        await asyncio.shield(committed)
        return reply

    def tell(self, event: Event) -> None:
        """Applies an event that nobody waits for. While nothing can be stored it is forgotten: its sender, or the next
        heartbeat, says it again."""
        if self.trouble:
            return
        try:
            self._apply(event, None)
        except Unavailable as error:
            log.error("event_lost", what=type(event).__name__, reason=str(error))

    async def settle(self) -> None:
        """Until everything that was decided up to now is stored; what is read of the core then was told to nobody
        too early. Where it cannot be stored, the core is back at what is."""
        while self.trouble and not self._reread:  # for the moment in which the records are read anew
            await asyncio.sleep(_LEAST_PAUSE_S)
        if self._reread:
            return
        try:
            await asyncio.shield(self._pending())
        except Unavailable:
            pass

    async def bulk(self, job: int) -> bytes:
        """Script and environment of a stored job. StoreError."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._store.bulk, job)

    def _apply(self, event: Event, payload: Payload | None) -> tuple[Answered | None, asyncio.Future[None]]:
        if self.trouble:
            raise Unavailable(self.trouble)
        turn = self._turn
        try:
            instructions = self.core.apply(event)
        except Exception as error:  # a bug of ours: the records may be half changed, so they are read anew
            self._stumble(event, error)
            raise Unavailable("the controller made a mistake and starts over from its records") from None
        reply = self._collect(turn, instructions)
        if payload is not None and isinstance(reply, Submitted) and reply.job:
            turn.payloads[reply.job] = payload
            self.descriptions[reply.job] = payload.description
        if not turn.idle:
            self._wake.set()
        if self.core.cluster.schedule_wanted and self._pass_due is None:
            self._schedule_soon()
        return reply, self._pending()

    def _pending(self) -> asyncio.Future[None]:
        """Done when everything that was decided up to now is stored."""
        if not self._turn.idle:
            return self._turn.committed
        return self._in_flight.committed if self._in_flight is not None else _done()

    def _collect(self, turn: Turn, instructions: list[Instruction]) -> Answered | None:
        reply: Answered | None = None
        for one in instructions:
            match one:
                case Reply(value):
                    reply = value
                case SaveJob(number, new):
                    turn.jobs[number] = new or turn.jobs.get(number, False)
                case PurgeJob(number):
                    if not turn.jobs.pop(number, False):
                        turn.purged.append(number)
                    self.descriptions.pop(number, None)
                case SaveNode(name):
                    turn.nodes[name] = None
                case _:
                    turn.effects.append(one)
        return reply

    def _stumble(self, event: Event, error: Exception) -> None:
        story = str(error) if isinstance(error, ImpossibleTransition) else ""
        log.exception("event_not_applied", what=type(event).__name__, stimulus=event.stimulus, story=story)
        self.trouble = "the controller starts over from its records"
        self._wake.set()

    # Time

    async def _tick(self, interval_s: float) -> None:
        pause_s, last = min(interval_s, 1.0), time.monotonic()
        while True:
            await asyncio.sleep(pause_s)
            now = time.monotonic()
            self.tell(Tick(away_s=max(0.0, now - last - pause_s), **stamp()))
            last = now
            if time.monotonic() >= self._next_pass:
                self._run_pass(backfill=True)
                self._next_pass = time.monotonic() + max(interval_s, self._last_pass_s * _PASS_SHARE)

    def _schedule_soon(self) -> None:
        pause_s = max(_LEAST_PAUSE_S, self._last_pass_s * _PASS_SHARE)
        self._pass_due = asyncio.get_running_loop().call_later(pause_s, self._quick_pass)

    def _quick_pass(self) -> None:
        self._pass_due = None
        self._run_pass(backfill=False)

    def _run_pass(self, *, backfill: bool) -> None:
        began = time.monotonic()
        self.tell(SchedulePass(backfill=backfill, **stamp("schedule")))
        self._last_pass_s = time.monotonic() - began

    # Commits

    def _new_turn(self) -> Turn:
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        committed.add_done_callback(lambda done: done.cancelled() or done.exception())  # not everybody waits
        return Turn(committed)

    async def _commit(self) -> None:
        turn, self._turn = self._turn, self._new_turn()
        if self.trouble:
            await self._start_over(turn)
            return
        changes = self._changes(turn)
        self._in_flight = turn
        try:
            if not changes.empty:
                faults.point("turn-decided")
                await self._in_thread(self._store.commit, changes)
                faults.point("turn-committed")
        except StoreError as error:
            self.trouble = str(error)
            log.error("commit_failed", reason=str(error))
            await self._start_over(turn)
            return
        finally:
            self._in_flight = None
        self._stored_next_job = changes.next_job or self._stored_next_job
        self._release(turn)

    def _release(self, turn: Turn) -> None:
        if not turn.committed.done():
            turn.committed.set_result(None)
        for one in turn.effects:
            if isinstance(one, Note):
                log.info(one.name, stimulus=one.stimulus, **dict(one.facts))
            else:
                self._carry_out(one)

    def _changes(self, turn: Turn) -> Changes:
        """The records as they stand now, for all that was touched in `turn`."""
        cluster, changes = self.core.cluster, Changes(purged=turn.purged)
        for number, new in turn.jobs.items():
            job = cluster.jobs.get(number)
            if job is None:  # purged in the turn that has begun meanwhile
                continue
            record = json.dumps(encode_job(job), separators=(",", ":"))
            if new:
                spec = json.dumps(encode_spec(job.spec), separators=(",", ":"))
                changes.new_jobs.append((number, spec, record, turn.payloads[number]))
            else:
                changes.jobs.append((record, number))
        changes.nodes = [
            (name, json.dumps(encode_node(cluster.nodes[name]), separators=(",", ":")))
            for name in turn.nodes
            if name in cluster.nodes
        ]
        if cluster.next_job != self._stored_next_job:
            changes.next_job = cluster.next_job
        return changes

    async def _start_over(self, failed: Turn) -> None:
        """Back to what is stored, until it can be written again."""
        refused = Unavailable(self.trouble)
        begun, self._turn = self._turn, self._new_turn()
        await self._reload()
        self._reread = True
        for turn in (failed, begun):
            if not turn.committed.done():
                turn.committed.set_exception(refused)
        while True:
            try:
                await self._in_thread(self._store.probe)
                changes = self._changes(self._turn)
                if not changes.empty:
                    await self._in_thread(self._store.commit, changes)
                break
            except StoreError as error:
                self.trouble = str(error)
                await asyncio.sleep(RETRY_S)
        turn, self._turn = self._turn, self._new_turn()
        self.trouble, self._reread = "", False
        log.info("started_over")
        self._started_over()
        self._release(turn)

    async def _reload(self) -> None:
        while True:
            try:
                self._take(await self._in_thread(self._store.load))
                return
            except (StoreError, RowError) as error:
                log.error("records_not_read", reason=str(error))
                await asyncio.sleep(RETRY_S)

    def _take(self, saved: Saved) -> None:
        core = self._make_core()
        now = stamp()
        instructions = restore(
            core.cluster, at=now["at"], mono=now["mono"], next_job=saved.next_job, jobs=saved.jobs, nodes=saved.nodes
        )
        self.core = core
        self.generation += 1
        self.descriptions = saved.descriptions
        self._stored_next_job = saved.next_job
        self._collect(self._turn, instructions)
        self._wake.set()

    async def _in_thread(self, work: Callable[..., _R], *arguments: object) -> _R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


def _done() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future
