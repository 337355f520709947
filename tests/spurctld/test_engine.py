"""Core and store together: nothing leaves before it is stored, and what goes wrong costs nothing that was told."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from spurctld.core import events as e
from spurctld.core.cluster import Cluster
from spurctld.core.instructions import Instruction, LaunchRun
from spurctld.core.machine import Core
from spurctld.core.states import JobState
from spurctld.core.values import JobSpec, Machine, NodeSpec, PartitionSpec, Policy, Refusal, Submitted
from spurctld.engine import Engine, Unavailable, stamp
from spurctld.store import Payload, Store

PAYLOAD = Payload(b"d", b"b")
SPEC = JobSpec("job", 1000, 1000, "ann", "staff", "")
MACHINE = Machine("127.0.0.1:1", "n1", "1", "x", "Linux", "boot", "inc", 4, 1000)


def make_core() -> Core:
    return Core(Cluster(Policy(), [NodeSpec("n1", 4, 1000)], [PartitionSpec("main", default=True)]))


class Bench:
    """An engine on a real store, without a daemon around it."""

    def __init__(self, directory: Path, look: Callable[[Instruction], None]) -> None:
        self.store = Store(directory)
        self.engine = Engine(self.store, make_core, look, lambda: None)
        self.engine.load()

    async def submit(self, hold: bool = False) -> int:
        spec = JobSpec("job", 1000, 1000, "ann", "staff", "", hold=hold)
        reply = await self.engine.ask(e.JobSubmitted(spec=spec, **stamp()), PAYLOAD)
        assert isinstance(reply, Submitted)
        return reply.job


def drive(
    directory: Path,
    work: Callable[[Bench], Coroutine[Any, Any, None]],
    look: Callable[[Instruction], None] = lambda one: None,
) -> None:
    async def main() -> None:
        bench = Bench(directory, look)
        running = asyncio.create_task(bench.engine.run(0.05))
        try:
            await work(bench)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await bench.engine.close()
            bench.store.close()

    asyncio.run(main())


def stored(directory: Path, query: str) -> list[Any]:
    db = sqlite3.connect(f"file:{directory / 'spurctld.db'}?mode=ro", uri=True)
    try:
        return [row[0] for row in db.execute(query)]
    finally:
        db.close()


def test_what_is_answered_is_stored(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        numbers = await asyncio.gather(*(bench.submit(hold=True) for _ in range(50)))
        assert stored(tmp_path, "SELECT id FROM jobs ORDER BY id") == sorted(numbers)

    drive(tmp_path, work)


def test_a_launch_leaves_after_its_attempt_is_stored(tmp_path: Path) -> None:
    """Section 4 of the design: the intent is on disk before the first call."""
    seen: list[Any] = []

    def look(one: Instruction) -> None:
        if isinstance(one, LaunchRun):
            query = f"SELECT json_extract(record, '$.state') FROM jobs WHERE id = {one.run.job}"
            seen.extend(stored(tmp_path, query))

    async def work(bench: Bench) -> None:
        await bench.engine.ask(e.NodeRegistered(node="n1", machine=MACHINE, runs=(), **stamp()))
        await bench.submit()
        async with asyncio.timeout(20):
            while not seen:
                await asyncio.sleep(0.01)

    drive(tmp_path, work, look)
    assert seen == ["RUNNING"]


def test_a_refusal_stores_nothing(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        spec = JobSpec("job", 1, 1, "a", "g", "nope")
        assert isinstance(await bench.engine.ask(e.JobSubmitted(spec=spec, **stamp()), PAYLOAD), Refusal)
        assert stored(tmp_path, "SELECT id FROM jobs") == []

    drive(tmp_path, work)


def test_a_bug_in_the_core_costs_nothing_that_was_told(tmp_path: Path) -> None:
    """An impossible step: the caller is told that it failed, and the core is read anew."""

    async def work(bench: Bench) -> None:
        engine = bench.engine
        number = await bench.submit(hold=True)
        await engine.ask(e.HoldAsked(job=number, by_uid=0, release=True, **stamp()))
        engine.core.cluster.jobs[number].state = JobState.BOOT_FAIL  # what no event could have done
        generation = engine.generation
        engine.core.cluster.jobs[number].spec = SPEC
        engine.core.cluster.move_job = None  # type: ignore[assignment, method-assign]
        with pytest.raises(Unavailable):
            await engine.ask(e.RequeueAsked(job=number, by_uid=0, **stamp()))
        async with asyncio.timeout(20):
            while engine.trouble:
                await asyncio.sleep(0.01)
        assert engine.generation == generation + 1
        assert engine.core.cluster.jobs[number].state is JobState.PENDING
        assert await bench.submit() == number + 1

    drive(tmp_path, work)


def test_the_last_decisions_are_stored_when_it_leaves(tmp_path: Path) -> None:
    async def work(bench: Bench) -> None:
        number = await bench.submit(hold=True)
        bench.engine.tell(e.CancelAsked(jobs=(number,), by_uid=0, **stamp()))

    drive(tmp_path, work)
    assert stored(tmp_path, "SELECT json_extract(record, '$.state') FROM jobs") == ["CANCELLED"]


def test_everything_comes_back_after_a_start(tmp_path: Path) -> None:
    async def first(bench: Bench) -> None:
        await bench.submit(hold=True)
        await bench.engine.ask(e.NodeRegistered(node="n1", machine=MACHINE, runs=(), **stamp()))

    async def second(bench: Bench) -> None:
        assert bench.engine.core.cluster.jobs[1].held
        assert bench.engine.core.cluster.nodes["n1"].machine == MACHINE
        assert await bench.engine.bulk(1) == b"b"
        bench.engine.core.validate()

    drive(tmp_path, first)
    drive(tmp_path, second)
