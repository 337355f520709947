"""The runs of this node: who takes care of which, what they hold, and whether the node is idle.

Made at the start from what is on disk; from then on runs come by `admit` and go when nothing is owed for them.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TypeVar

import structlog

from spur.pb import spurctld_pb2
from spurd import messages
from spurd.caretaker import Caretaker
from spurd.claims import Claims, Refusal, ReleaseProof, Request
from spurd.runs import Known, Lock, Order
from spurstepd.ids import RunId
from spurstepd.ledger import Duty, Grant, Process, Progress, VerdictKind

_REMEMBERED = 10_000
_AFTER_FAILURE_S = 5.0
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

log = structlog.get_logger()


class Roster:
    """One for the agent's life. Changed on the event loop alone, so that each of its methods is one step."""

    def __init__(self, claims: Claims) -> None:
        self.claims = claims
        self._caretakers: dict[RunId, Caretaker] = {}
        self._tasks: dict[RunId, asyncio.Task[None]] = {}
        self._buried: OrderedDict[RunId, None] = OrderedDict()  # no launch of these may come any more
        self._latest: OrderedDict[int, int] = OrderedDict()  # of each job, the latest attempt that was seen here

    def __len__(self) -> int:
        return len(self._caretakers)

    def find(self, run: RunId) -> Caretaker | None:
        return self._caretakers.get(run)

    def older_of(self, run: RunId) -> list[Caretaker]:
        """Earlier attempts at the same job that are still here."""
        return [one for other, one in self._caretakers.items() if other.job == run.job and other.attempt < run.attempt]

    def is_stale(self, run: RunId) -> bool:
        """Whether a later attempt was seen here, or this one must not come any more."""
        return run in self._buried or self._latest.get(run.job, 0) > run.attempt

    def bury(self, run: RunId) -> None:
        """No launch of `run` is taken from now on."""
        _remember(self._buried, run, None)

    def claim(self, run: RunId, wanted: Request) -> Grant | Refusal:
        """Claim what `run` wants, all or nothing."""
        claimed = self.claims.claimed(run, wanted)
        if isinstance(claimed, Refusal):
            return claimed
        self.claims = claimed
        return claimed.held[run]

    def unclaim(self, run: RunId) -> None:
        """Of a launch that was undone before anything was started for it."""
        proof = ReleaseProof(run, supervisor_gone=True, processes_gone=True, epilog=Progress.NONE)
        self.claims = self.claims.released(proof)

    def gone(self, known: Known) -> None:
        """The supervisor of a run has removed its records, which it does last of all, and left: the claim is free."""
        epilog = Progress.NONE
        if known.state is not None and Duty.EPILOG in known.state.obligations:
            epilog = known.state.obligations[Duty.EPILOG].progress
        try:
            proof = ReleaseProof(known.run, supervisor_gone=True, processes_gone=True, epilog=epilog)
        except ValueError as error:
            log.error("claim_kept", job=known.run.job, attempt=known.run.attempt, reason=str(error))
            return
        self.claims = self.claims.released(proof)

    def admit(self, caretaker: Caretaker) -> None:
        """Take a run in and have it taken care of until nothing is owed for it."""
        run = caretaker.run
        self._caretakers[run] = caretaker
        _remember(self._latest, run.job, max(run.attempt, self._latest.get(run.job, 0)))
        task = asyncio.create_task(self._tend(caretaker), name=f"run {run}")
        self._tasks[run] = task

    async def _tend(self, caretaker: Caretaker) -> None:
        while True:
            try:
                await caretaker.tend()
                break
            except Exception:  # a defect met by one run must not cost the others theirs, nor this one its caretaker
                log.exception("caretaker_failed", job=caretaker.run.job, attempt=caretaker.run.attempt)
                await asyncio.sleep(_AFTER_FAILURE_S)
        self._caretakers.pop(caretaker.run, None)
        self._tasks.pop(caretaker.run, None)
        self.bury(caretaker.run)

    def end_conflicts(self, reasons: Iterable[tuple[RunId, str]]) -> None:
        """End the runs whose records claimed what others hold (R31)."""
        for run, reason in reasons:
            caretaker = self._caretakers.get(run)
            if caretaker is not None:
                log.error("run_in_conflict", job=run.job, attempt=run.attempt, reason=reason)
                end(caretaker, VerdictKind.CONFLICT, reason)

    def unmet_leaders(self) -> Iterator[tuple[RunId, Process]]:
        """The leaders that stand in records, of runs whose supervisors have not told us of one."""
        for run, caretaker in self._caretakers.items():
            leader = caretaker.unmet_leader()
            if leader is not None:
                yield run, leader

    def statuses(self, *, complete: bool) -> list[spurctld_pb2.RunStatus]:
        """Every run that is on this node, for the controller."""
        present = [one.known for one in self._caretakers.values() if one.known.lock is not Lock.GONE]
        return [messages.run_status(known, complete=complete) for known in present]

    def drains_noted(self, sources: Iterable[str]) -> None:
        """The controller has the drains of these sources, among them runs."""
        for source in sources:
            for run, caretaker in self._caretakers.items():
                if str(run) == source:
                    caretaker.drain_noted()

    async def close(self) -> None:
        """Leave all runs to themselves."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def end(caretaker: Caretaker, kind: VerdictKind, reason: str) -> None:
    """Have the run ended for a reason of this node; nobody waits for it."""
    reply = caretaker.wish(Order.TERMINATE, kind=kind.value, by_uid=0, reason=reason)
    reply.add_done_callback(lambda done: done.cancelled() or done.exception())


def _remember(memory: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > _REMEMBERED:
        memory.popitem(last=False)
