"""Random lives of a node: whatever happens, nothing is granted twice and nothing is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spur.gres import Gres
from spurd.claims import Claims, Inventory, Refusal, ReleaseProof, Request, key
from spurd.restoration import Life, Record, restore
from spurstepd.ids import RunId
from spurstepd.ledger import Device, Grant, Progress

CPUS, MEMORY_MB = 8, 100
DEVICES = tuple(Device("gpu", "ab"[index % 2], index, f"/dev/nvidia{index}") for index in range(4))
CORES = st.sampled_from([(), ((0, 4), (1, 5), (2, 6), (3, 7)), ((0, 1), (2, 3))])


@dataclass(frozen=True)
class OnDisk:
    """What a manifest would say, kept by the test rather than by the code under test."""

    granted: Grant
    life: Life
    since: float


def requests() -> st.SearchStrategy[Request]:
    gres = st.builds(Gres, st.just("gpu"), st.sampled_from(["", "a", "b"]), st.integers(0, 3))
    return st.builds(Request, st.integers(0, 5), st.integers(0, 60), st.lists(gres, max_size=2).map(tuple))


def grants() -> st.SearchStrategy[Grant]:
    return st.builds(
        Grant,
        st.lists(st.integers(0, CPUS - 1), max_size=4, unique=True).map(tuple),
        st.integers(0, MEMORY_MB),
        st.lists(st.sampled_from(DEVICES), max_size=3, unique=True).map(tuple),
    )


class Node(RuleBasedStateMachine):
    """An agent that launches, releases, dies and restores, on a machine that changes under it."""

    def __init__(self) -> None:
        super().__init__()
        self.disk: dict[RunId, OnDisk] = {}
        self.clock = 0.0
        self.next_job = 1

    @initialize(cores=CORES)
    def boot(self, cores: tuple[tuple[int, ...], ...]) -> None:
        self.whole = Inventory(tuple(range(CPUS)), MEMORY_MB, DEVICES, cores)
        self.claims = Claims(self.whole)

    def new_run(self) -> RunId:
        self.next_job += 1
        self.clock += 1
        return RunId(self.next_job, 1)

    def occupied(self) -> tuple[set[int], set[object], int]:
        """By the records alone: what no launch may touch."""
        grants = [one.granted for one in self.disk.values()]
        return (
            {cpu for grant in grants for cpu in grant.cpus},
            {key(device) for grant in grants for device in grant.gpus},
            sum(grant.memory_mb for grant in grants),
        )

    def would_fit(self, wanted: Request) -> bool:
        cpus, devices, memory_mb = self.occupied()
        inventory = self.claims.inventory
        free = [device.type for device in inventory.gpus if key(device) not in devices]
        typed = Counter({kind: sum(one.count for one in wanted.gres if one.type == kind) for kind in "ab"})
        return (
            len(set(inventory.cpus) - cpus) >= wanted.cpus
            and (wanted.memory_mb == 0 or memory_mb + wanted.memory_mb <= inventory.memory_mb)
            and typed <= Counter(free)
            and sum(one.count for one in wanted.gres) <= len(free)
        )

    @rule(wanted=requests())
    def launch(self, wanted: Request) -> None:
        run = self.new_run()
        cpus, devices, memory_mb = self.occupied()
        after = self.claims.claimed(run, wanted)
        if isinstance(after, Refusal):
            assert not self.would_fit(wanted)
            return
        grant = after.held[run]
        assert len(set(grant.cpus)) == wanted.cpus and grant.memory_mb == wanted.memory_mb
        assert len({key(device) for device in grant.gpus}) == sum(one.count for one in wanted.gres)
        assert cpus.isdisjoint(grant.cpus) and devices.isdisjoint(map(key, grant.gpus))
        assert set(grant.cpus) <= set(self.claims.inventory.cpus)
        assert {key(one) for one in grant.gpus} <= {key(one) for one in self.claims.inventory.gpus}
        assert grant.memory_mb == 0 or memory_mb + grant.memory_mb <= self.claims.inventory.memory_mb
        for one in wanted.gres:
            assert sum(device.type == one.type for device in grant.gpus) >= (one.count if one.type else 0)
        self.claims = after
        self.disk[run] = OnDisk(grant, Life.WAITING, self.clock)

    @precondition(lambda self: self.disk)
    @rule(data=st.data(), life=st.sampled_from(Life))
    def live_on(self, data: st.DataObject, life: Life) -> None:
        run = data.draw(st.sampled_from(sorted(self.disk)))
        if self.disk[run].life is not Life.ENDING:
            self.disk[run] = replace(self.disk[run], life=life)

    @precondition(lambda self: self.disk)
    @rule(data=st.data(), epilog=st.sampled_from(Progress), supervisor=st.booleans(), processes=st.booleans())
    def end(self, data: st.DataObject, epilog: Progress, supervisor: bool, processes: bool) -> None:
        run = data.draw(st.sampled_from(sorted(self.disk)))
        if not (supervisor and processes and epilog.settled):
            with pytest.raises(ValueError, match=f"the claim of run {run} cannot be released"):
                ReleaseProof(run, supervisor, processes, epilog)
            return
        self.claims = self.claims.released(ReleaseProof(run, supervisor, processes, epilog))
        del self.disk[run]

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """The agent loses its memory and reads the records in whatever order the directory gives them."""
        before = self.claims
        records = [Record(run, one.granted, one.life, one.since) for run, one in self.disk.items()]
        found = restore(before.inventory, data.draw(st.permutations(records)), before=self.whole)
        if not before.lapsing:
            assert found.conflicts == ()
            assert dict(found.claims.held) == dict(before.held)
        self.settle(found.claims, {one.lost: one for one in found.conflicts})

    @rule(planted=grants(), life=st.sampled_from(Life), since=st.floats(0, 50), data=st.data())
    def conflict(self, planted: Grant, life: Life, since: float, data: st.DataObject) -> None:
        """A record of another provenance stands on the disk at the next start, and may claim what others hold."""
        self.disk[self.new_run()] = OnDisk(planted, life, since)
        self.crash_with_conflicts(data)

    def crash_with_conflicts(self, data: st.DataObject) -> None:
        records = [Record(run, one.granted, one.life, one.since) for run, one in self.disk.items()]
        found = restore(self.claims.inventory, data.draw(st.permutations(records)), before=self.whole)
        self.settle(found.claims, {one.lost: one for one in found.conflicts})

    def settle(self, claims: Claims, conflicts: dict[RunId, object]) -> None:
        assert set(conflicts) == set(claims.lapsing)
        for run, conflict in conflicts.items():
            assert conflict.kept and set(conflict.kept) <= set(claims.held)  # type: ignore[attr-defined]
            named = conflict.reason  # type: ignore[attr-defined]
            assert str(run) in named and all(str(kept) in named for kept in conflict.kept)  # type: ignore[attr-defined]
            self.disk[run] = replace(self.disk[run], life=Life.ENDING)
        self.claims = claims

    @rule(
        cpus=st.sets(st.integers(0, CPUS - 1), max_size=3),
        devices=st.sets(st.sampled_from(DEVICES), max_size=2),
        memory_mb=st.integers(MEMORY_MB // 2, MEMORY_MB),
    )
    def change(self, cpus: set[int], devices: set[Device], memory_mb: int) -> None:
        """Parts of the machine vanish, others come back. No run loses its claim by that."""
        now = replace(
            self.whole,
            cpus=tuple(cpu for cpu in self.whole.cpus if cpu not in cpus),
            gpus=tuple(device for device in self.whole.gpus if device not in devices),
            memory_mb=memory_mb,
        )
        held = self.claims.held
        self.claims = self.claims.on(now)
        assert self.claims.held == held
        lost = {device for grant in held.values() for device in grant.gpus} & devices
        named = {str(one) for one in self.claims.missing()}
        assert all(any(device.file in text for text in named) for device in lost)

    @invariant()
    def nothing_is_held_twice(self) -> None:
        cpus = [cpu for grant in self.claims.held.values() for cpu in grant.cpus]
        devices = [key(device) for grant in self.claims.held.values() for device in grant.gpus]
        assert len(cpus) == len(set(cpus)) and len(devices) == len(set(devices))
        assert sum(grant.memory_mb for grant in self.claims.held.values()) <= MEMORY_MB

    @invariant()
    def every_record_has_its_claim(self) -> None:
        both = {**self.claims.held, **self.claims.lapsing}
        assert len(both) == len(self.claims.held) + len(self.claims.lapsing)
        assert both == {run: one.granted for run, one in self.disk.items()}

    @invariant()
    def nothing_is_lost(self) -> None:
        """All that nobody has can be had, at once, and not one more."""
        cpus, devices, memory_mb = self.occupied()
        inventory = self.claims.inventory
        free = len(set(inventory.cpus) - cpus)
        left_mb = max(inventory.memory_mb - memory_mb, 0)
        gpus = sum(key(device) not in devices for device in inventory.gpus)
        run = RunId(self.next_job + 1, 1)
        rest = Request(free, left_mb, (Gres("gpu", "", gpus),))
        assert isinstance(self.claims.claimed(run, rest), Claims)
        for more in (
            replace(rest, cpus=free + 1),
            replace(rest, memory_mb=left_mb + 1),
            replace(rest, gres=(Gres("gpu", "", gpus + 1),)),
        ):
            assert isinstance(self.claims.claimed(run, more), Refusal)


TestNode = pytest.mark.timeout(300)(Node.TestCase)
TestNode.settings = settings(
    derandomize=True,
    deadline=None,
    max_examples=150,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
