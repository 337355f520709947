"""How a run comes to this node: checked, claimed, durable on disk, and only then answered for.

A launch that has begun is carried through even if the controller hangs up in the middle, so that there is never a
directory without a caretaker, or a claim without a directory. After `close` none begins.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from enum import Enum

import structlog

from spurd import launches, rundirs, users
from spurd.caretaker import Caretaker, Company
from spurd.claims import Refusal
from spurd.environment import Account
from spurd.launches import Launch, Site
from spurd.roster import Roster, end
from spurd.runs import Known, Lock
from spurstepd import faults
from spurstepd.ids import RunId
from spurstepd.ledger import Grant, VerdictKind

_LOOKUP_PATIENCE_S = 20.0  # with a name service that hangs

log = structlog.get_logger()


class Obstacle(Enum):
    """Why a launch was not taken."""

    FULL = "full"  # what it wants is not free here
    NOT_NOW = "not now"  # this node takes no launches, or not this one any more
    UNFIT = "unfit"  # this node cannot run it


class NotAdmitted(Exception):
    """A launch that left nothing behind; one line."""

    def __init__(self, obstacle: Obstacle, text: str) -> None:
        super().__init__(text)
        self.obstacle = obstacle


class Admission:
    """The door. `gpus` gives the variables that make a grant's devices visible."""

    def __init__(
        self,
        roster: Roster,
        company: Company,
        site: Site,
        boot_id: str,
        gpus: Callable[[Grant], Mapping[str, str]],
    ) -> None:
        self._roster = roster
        self._company = company
        self._site = site
        self._boot_id = boot_id
        self._gpus = gpus
        self._open = False
        self._under_way: dict[RunId, asyncio.Task[Grant]] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a launch is in flight."""
        return bool(self._under_way)

    def open(self) -> None:
        self._open = True

    def close(self) -> None:
        """From now on every launch is refused; those in flight are carried through."""
        self._open = False

    async def settled(self) -> None:
        """Until no launch is in flight."""
        while self._under_way:
            await asyncio.wait(list(self._under_way.values()))

    async def passed(self, run: RunId) -> None:
        """Until a launch of `run` that is in flight has ended, in whichever way."""
        task = self._under_way.get(run)
        if task is not None:
            await asyncio.wait([task])

    async def launch(self, launch: Launch) -> tuple[Grant, bool]:
        """What the run was granted, and whether it was here already. Idempotent. NotAdmitted."""
        run = launch.run
        here = self._roster.find(run)
        if here is not None:
            return here.known.granted, True
        if run in self._under_way:
            return await asyncio.shield(self._under_way[run]), True
        self._refuse_unfit(run)
        task = self._under_way[run] = asyncio.create_task(self._carry_through(launch))
        task.add_done_callback(lambda done: self._landed(run, done))
        return await asyncio.shield(task), False

    def _landed(self, run: RunId, task: asyncio.Task[Grant]) -> None:
        self._under_way.pop(run, None)
        if not task.cancelled():
            task.exception()  # whoever called may have hung up, and then nobody else looks at it

    def _refuse_unfit(self, run: RunId) -> None:
        """NotAdmitted where no run, or not this one, may come here now."""
        node = self._company.node
        if not self._open:
            raise NotAdmitted(Obstacle.NOT_NOW, f"node {node} is not serving launches")
        if self._roster.is_stale(run):
            raise NotAdmitted(
                Obstacle.NOT_NOW, f"run {run} is over on node {node}: a later one, or its end, came first"
            )
        for reason in self._company.drains.owed().values():
            raise NotAdmitted(Obstacle.NOT_NOW, f"node {node} is to be drained: {reason}")
        older = self._roster.older_of(run)
        for caretaker in older:
            end(caretaker, VerdictKind.STALE, f"attempt {run.attempt} of the job came to this node")
        if older:
            runs = ", ".join(str(one.run) for one in older)
            raise NotAdmitted(Obstacle.FULL, f"run {runs} is still here and is being ended first")

    async def _carry_through(self, launch: Launch) -> Grant:
        faults.point("launch-accepted")
        account = await self._account(launch)
        self._refuse_unfit(launch.run)  # the look-up took its time
        granted = self._roster.claim(launch.run, launch.wanted)
        if isinstance(granted, Refusal):
            raise NotAdmitted(Obstacle.FULL, granted.reason)
        try:
            known = await self._make(launch, account, granted)
        except OSError as error:
            self._roster.unclaim(launch.run)
            log.error("run_directory_not_made", job=launch.run.job, attempt=launch.run.attempt, reason=str(error))
            raise NotAdmitted(Obstacle.FULL, f"the directory of run {launch.run} cannot be made: {error}") from None
        faults.point("launch-claimed")
        self._roster.admit(Caretaker(known, self._company, fresh=True, stimulus=launch.stimulus))
        return granted

    async def _account(self, launch: Launch) -> Account:
        looking = asyncio.to_thread(users.look_up, launch.uid, launch.gid, launch.user, self._company.node)
        try:
            async with asyncio.timeout(_LOOKUP_PATIENCE_S):
                return await looking
        except users.UnknownUser as error:
            raise NotAdmitted(Obstacle.UNFIT, str(error)) from None
        except TimeoutError:
            raise NotAdmitted(Obstacle.NOT_NOW, f"the name service of node {self._company.node} hangs") from None

    async def _make(self, launch: Launch, account: Account, granted: Grant) -> Known:
        """OSError: there is no directory, and nothing is left of it."""
        nonce = secrets.token_hex(16)
        plan = launches.plan(
            launch, account, granted, self._gpus(granted), self._site, self._company.dirs.run(launch.run)
        )
        ledger = launches.first_ledger(launch, granted, self._site, self._boot_id, nonce, time.time())
        await asyncio.to_thread(rundirs.make, self._company.dirs, ledger, plan, launch.script)
        log.info("run_accepted", job=launch.run.job, attempt=launch.run.attempt, stimulus=launch.stimulus)
        return Known(launch.run, granted, nonce=nonce, lock=Lock.FREE)
