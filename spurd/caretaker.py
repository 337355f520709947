"""A caretaker for each run: it takes the steps that `runs` decides on, until nothing is owed for the run any more.

It lives from the moment that the run is on disk, or was found there, until the controller knows it to be released. If
it dies with spurd, the next one begins from what the supervisor and the directory tell.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, assert_never

import structlog

from spurd import rundirs
from spurd.channel import ChannelLost, Refused, Values
from spurd.controller import Controller
from spurd.drains import Drains
from spurd.launchers import LauncherFailed, Launchers, NoSuchRun
from spurd.reports import Reporter
from spurd.runs import (
    Ask,
    Connect,
    Done,
    KillSupervisor,
    Known,
    Link,
    Lock,
    Now,
    Order,
    Report,
    Step,
    Supervise,
    Wait,
    next_step,
    reckoned,
)
from spurd.runstate import Phase, RunState
from spurd.supervisors import Following, Impostor, Supervisor
from spurd.wishes import Reply, Wishes
from spurd.witness import Witness
from spurstepd import faults, manifest, pidfd
from spurstepd.ids import RunId
from spurstepd.ledger import LedgerError, Process
from spurstepd.rundir import NodeDirs
from spurstepd.slot import load_latest
from spurstepd.waitstatus import sentence

GREETING_PATIENCE_S = 10.0  # after that it is said that a supervisor is slow, and nothing else
_FIRST_RETRY_S = 0.05
_LONGEST_RETRY_S = 5.0
_SUCCESSION_PATIENCE_S = 5.0  # for the successor that another launcher starts by itself
_REAPING_PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class Company:
    """Whom caretakers work with, the same for all."""

    node: str
    dirs: NodeDirs
    launchers: Launchers
    witness: Witness
    controller: Controller
    drains: Drains
    patience_s: float  # with a supervisor that is needed and does not react
    on_gone: Callable[[Known], None]  # the run has left the disk: its claim is free


class Caretaker:
    """Of one run. `known` is replaced whole at every change, and each change wakes what waits for it."""

    def __init__(self, known: Known, company: Company, *, fresh: bool = False, stimulus: str = "") -> None:
        self.known = known
        self._company = company
        self._dir = company.dirs.run(known.run)
        self._supervisor = Supervisor(known.run, company.dirs.socket(known.run), known.nonce)
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._retry_s = _FIRST_RETRY_S
        self._never_supervised = fresh
        self._succession_since: float | None = None
        bound = {"job": known.run.job, "attempt": known.run.attempt, "node": company.node}
        self._log = structlog.get_logger().bind(**bound, **({"stimulus": stimulus} if stimulus else {}))
        self._wishes = Wishes(lambda asks: self.change(wishes=asks))
        self._reporter = Reporter(company.node, company.controller, lambda: self.known, self._answered, self._log)

    @property
    def run(self) -> RunId:
        return self.known.run

    def change(self, **changes: Any) -> None:
        self.known = replace(self.known, **changes)
        self._changed.set()
        self._reporter.changed()

    # -- what callers want

    def wish(self, order: Order, **parameters: int | str) -> Reply:
        """Have the supervisor carry out `order`; as `Wishes.add`."""
        return self._wishes.add(order, **parameters)

    def drain_noted(self) -> None:
        """The controller has the drain of this run."""
        self.change(drain_told=True)

    # -- the loop

    async def tend(self) -> None:
        """Until the run is released and the controller knows it. Can be called again after it failed."""
        if self.known.lock is not Lock.GONE:
            self.change(link=Link.DOWN)
        if self.known.state is not None:
            self._company.drains.owe(self._drain_source, self.known.state.drain)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                reporting = self._tasks.create_task(self._reporter.run())
                while not isinstance(step := self._decide(), Done):
                    self._changed.clear()
                    await self._take(step)
                for task in (reporting, self._following):
                    if task is not None:
                        task.cancel()
        finally:
            self._wishes.end()
            for source in (self._drain_source, self._unidentified_source):
                self._company.drains.owe(source, None)

    def _decide(self) -> Step:
        now = _now()
        self.known = reckoned(self.known, now)
        return next_step(self.known, now, self._company.patience_s)

    async def _take(self, step: Step) -> None:
        match step:
            case Wait():
                await self._wait(step.until)
            case Connect():
                self.change(link=Link.OPENING)
                self._following = self._tasks.create_task(self._follow())
            case Supervise():
                await self._supervise()
            case KillSupervisor():
                await self._kill_supervisor()
            case Ask():
                await self._ask(step)
            case Done():
                pass
            case _:
                assert_never(step)

    async def _wait(self, until: float | None) -> None:
        if until is None:
            await self._changed.wait()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(max(until - time.monotonic(), 0.0)):
                await self._changed.wait()

    def _retry_later(self) -> None:
        self.change(not_before=time.monotonic() + self._retry_s)
        self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)

    # -- the link

    async def _follow(self) -> None:
        """One life of the link, from the attempt to connect to its loss."""
        try:
            with await self._greeted() as following:
                self._retry_s = _FIRST_RETRY_S
                self._succession_since = None
                # A successor does not know what its predecessor agreed to before it died.
                self.change(link=Link.UP, lock=Lock.HELD, asked_since=None, not_before=0.0, released=False)
                self._log.info("supervisor_connected")
                await self._listen(following)
        except (Impostor, LedgerError, Refused) as error:
            self._log.error("supervisor_not_understood", reason=str(error))
        except ChannelLost:
            pass
        finally:
            self._link_lost()

    async def _listen(self, following: Following) -> None:
        """Learn of every change. As `Following.states`."""
        try:
            async for state in following.states():
                self._learn(state)
        except ChannelLost:
            if not self.known.released:
                self._tasks.create_task(self._tell_death(following.take_peer()))
            raise

    async def _greeted(self) -> Following:
        greeting = asyncio.create_task(self._supervisor.follow())
        try:
            done, _ = await asyncio.wait([greeting], timeout=GREETING_PATIENCE_S)
            if not done:
                self._log.warning("supervisor_not_answering", after_s=GREETING_PATIENCE_S)
            return await greeting
        except asyncio.CancelledError:
            greeting.cancel()
            raise

    async def _tell_death(self, peer: int | None) -> None:
        """Log how the supervisor behind the pidfd `peer`, which is closed then, died, if it did."""
        if peer is None:
            return
        try:
            # The kernel closes what a dying process had open a moment before others can see that it has died.
            until = time.monotonic() + _REAPING_PATIENCE_S
            while (status := pidfd.exit_status(peer)) is None and time.monotonic() < until:
                await asyncio.sleep(_FIRST_RETRY_S)
            if pidfd.is_gone(peer):
                self._log.warning("supervisor_died", how="unknown" if status is None else sentence(status))
        finally:
            os.close(peer)

    def _link_lost(self) -> None:
        self.change(link=Link.DOWN)
        self._look()
        if self.known.lock is not Lock.FREE:
            self._retry_later()

    def _look(self) -> None:
        """See who holds the lock."""
        if not rundirs.exists(self._dir):
            self._gone()
            return
        held = rundirs.is_supervised(self._dir)
        self.change(lock=Lock.UNKNOWN if held is None else Lock.HELD if held else Lock.FREE)

    def _gone(self) -> None:
        if self.known.lock is Lock.GONE:
            return
        self.change(lock=Lock.GONE, link=Link.DOWN)
        self._company.witness.forget(self.run)
        self._company.on_gone(self.known)
        self._log.info("run_released")

    def _learn(self, state: RunState) -> None:
        """A supervisor has told the state of its run."""
        before = self.known.state
        if state.phase is Phase.FINISHED and state.requeue_held is None:
            state = replace(state, requeue_held=self._recorded_requeue())
        if before is None or before.phase is not state.phase:
            self._log.info("run_advanced", phase=state.phase.value)
        if state.leader is not None and state.exit is None:
            self._company.witness.hold(self.run, state.leader)
        deadline = self.known.deadline
        if deadline is None and state.leader is not None:
            deadline = self._recorded_deadline()
        self._company.drains.owe(self._drain_source, state.drain)
        self.change(state=state, deadline=deadline)

    @property
    def _drain_source(self) -> str:
        return str(self.run)

    @property
    def _unidentified_source(self) -> str:
        return f"supervisor {self.run}"

    def _recorded_requeue(self) -> bool:
        """What an older supervisor does not tell itself."""
        try:
            return load_latest(self._dir).requeue_held
        except manifest.ManifestUnreadable:
            return False

    def _recorded_deadline(self) -> float | None:
        try:
            return load_latest(self._dir).deadline_boottime
        except manifest.ManifestUnreadable:
            return None

    # -- what the supervisor is asked

    async def _ask(self, ask: Ask) -> None:
        since = self.known.asked_since or time.monotonic()
        left_s = max(since + self._company.patience_s - time.monotonic(), 0.0)
        try:
            reply = await self._supervisor.call(ask.order.value, dict(ask.parameters), left_s)
        except TimeoutError:
            return  # it is for the next decision what follows from that
        except ChannelLost:
            self._retry_later()
            return
        except Refused as error:
            self._refused(ask, error)
            return
        self._retry_s = _FIRST_RETRY_S
        self.change(asked_since=None)
        self._carried_out(ask, reply)

    def _carried_out(self, ask: Ask, reply: Values) -> None:
        match ask.order:
            case Order.RELEASE:
                self.change(released=True)
            case Order.NOTE_DRAIN:
                self.change(drain_noted=True)
            case Order.LOOK:
                # It lives, and acts on its deadline by itself: look again after the same patience.
                self.change(deadline=_now().boottime + self._company.patience_s)
            case Order.ACKNOWLEDGE if self.known.state is not None:
                self._log.info("report_acknowledged", answer=self.known.answer)
                faults.point("report-acknowledged")
                self.change(state=replace(self.known.state, phase=Phase.ANSWERED))
            case _:
                pass
        self._wishes.settle(ask, reply)

    def _refused(self, ask: Ask, error: Refused) -> None:
        self.change(asked_since=None)
        if error.name != "Failed" and self._wishes.settle(ask, error):
            return
        self._log.warning("supervisor_refused", call=ask.order.value, reason=str(error))
        self._retry_later()

    # -- supervisors that are missing, or in the way

    async def _supervise(self) -> None:
        """Have a supervisor on the directory, unless a launcher is about to start one by itself."""
        if await self._is_being_succeeded():
            self._retry_later()
            self._look()
            return
        try:
            pid = await self._company.launchers.supervise(self.run, lambda: self._company.witness.leader(self.run))
        except NoSuchRun:
            self._look()
            self._retry_later()
        except LauncherFailed as error:
            self._log.error("supervisor_not_started", reason=str(error))
            self._retry_later()
            self._look()
        else:
            self._log.info("supervisor_started", pid=pid)
            self._never_supervised = False
            self.change(lock=Lock.HELD, not_before=0.0)

    async def _is_being_succeeded(self) -> bool:
        """A launcher starts the successors of its own supervisors; a new run is nobody's yet."""
        if self._never_supervised:
            return False
        now = time.monotonic()
        if self._succession_since is None:
            self._succession_since = now
        if now > self._succession_since + _SUCCESSION_PATIENCE_S:
            return False
        return await self._company.launchers.is_held(self.run)

    async def _kill_supervisor(self) -> None:
        """It is needed and does not react. Its launcher, or ours, starts a successor, which then does as asked."""
        recorded = self._recorded_supervisor()
        likeness, fd = (None, None) if recorded is None else pidfd.open_same(recorded)
        if fd is None:
            # What cannot be identified is not signalled.
            found = "not recorded" if likeness is None else likeness.value
            self._log.error("supervisor_not_identified", found=found)
            text = f"the supervisor of job {self.run.job} does not answer and cannot be identified"
            self._company.drains.owe(self._unidentified_source, text)
            self.change(asked_since=None)
            self._look()
            self._retry_later()
            return
        self._log.error("supervisor_killed", pid=recorded.pid if recorded else 0, after_s=self._company.patience_s)
        try:
            pidfd.send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)
        await self._settle_death()

    def unmet_leader(self) -> Process | None:
        """The leader on record of a run whose supervisor has not told us of one; None: there is none, or it has."""
        if self.known.lock is Lock.GONE or (self.known.state is not None and self.known.state.leader is not None):
            return None
        try:
            return load_latest(self._dir).leader
        except manifest.ManifestUnreadable:
            return None

    def _recorded_supervisor(self) -> Process | None:
        try:
            return load_latest(self._dir).supervisor
        except manifest.ManifestUnreadable:
            return self.known.state.supervisor if self.known.state is not None else None

    async def _settle_death(self) -> None:
        """Until its link is gone as well, for a moment."""
        if self._following is not None:
            await asyncio.wait([self._following], timeout=_REAPING_PATIENCE_S)
        self.change(asked_since=None, not_before=0.0)
        self._look()

    # -- what the controller is told

    def _answered(self, report: Report, answer: str) -> None:
        if report is Report.FINISHED:
            self.change(reported=report, answer=answer, drain_told=True)  # the report had it, and it is durable
        else:
            self.change(reported=report)


def _now() -> Now:
    return Now(time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))
