"""The claims of runs that were found on disk."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from spurd.claims import Claims, Inventory, Refusal, ReleaseProof, Request
from spurd.restoration import Life, Record, life_of, restore
from spurstepd.ids import RunId
from spurstepd.ledger import (
    Device,
    Duty,
    Exit,
    ExitSource,
    Grant,
    Manifest,
    Progress,
    Verdict,
    VerdictKind,
    owed,
)

OLD, NEW, THIRD = RunId(42, 1), RunId(57, 1), RunId(60, 1)


def gpu(index: int, file: str | None = None) -> Device:
    return Device("gpu", "", index, f"/dev/nvidia{index}" if file is None else file)


NODE = Inventory(tuple(range(8)), 1000, (gpu(0), gpu(1)))


def record(run: RunId, granted: Grant, life: Life = Life.ALIVE, since: float = 0.0) -> Record:
    return Record(run, granted, life, since)


def proof(run: RunId) -> ReleaseProof:
    return ReleaseProof(run, supervisor_gone=True, processes_gone=True, epilog=Progress.DONE)


def test_every_run_gets_back_exactly_what_it_had() -> None:
    """R30."""
    grants = {OLD: Grant((5, 3), 400, (gpu(1),)), NEW: Grant((0,), 600, (gpu(0),))}
    found = restore(NODE, [record(run, grant) for run, grant in grants.items()])
    assert found.claims.held == grants and found.conflicts == () and found.differences == ()
    refusal = found.claims.claimed(THIRD, Request(7))
    assert isinstance(refusal, Refusal) and refusal.against == (OLD, NEW)


def test_a_reservation_without_a_process_keeps_its_claim() -> None:
    """R34."""
    found = restore(NODE, [record(OLD, Grant(tuple(range(8))), Life.WAITING)])
    assert isinstance(found.claims.claimed(NEW, Request(1)), Refusal)


@pytest.mark.parametrize(
    ("shared", "what"),
    [
        (Grant((3,)), "CPU 3 held by 42.1"),
        (Grant((), 0, (gpu(1),)), "gres/gpu 1 (/dev/nvidia1) held by 42.1"),
        (Grant((), 700), "MB of memory: 700 wanted, 300 of 1000 free, the rest held by 42.1"),
    ],
)
def test_a_conflict_ends_one_run_with_a_reason_that_names_both(shared: Grant, what: str) -> None:
    """R31."""
    found = restore(NODE, [record(NEW, shared, since=2.0), record(OLD, shared, since=1.0)])
    (conflict,) = found.conflicts
    assert (conflict.lost, conflict.kept) == (NEW, (OLD,))
    assert conflict.reason == f"run 57.1 ended, run 42.1 kept: both claim the same: {what}"
    assert found.claims.held == {OLD: shared} and found.claims.lapsing == {NEW: shared}


@pytest.mark.parametrize(("kept", "lost"), [*zip(list(Life), list(Life)[1:], strict=False)])
def test_the_run_that_lives_is_kept_against_an_older_one_of_which_less_is_known(kept: Life, lost: Life) -> None:
    """R31."""
    one = Grant((1,))
    found = restore(NODE, [record(OLD, one, lost, since=1.0), record(NEW, one, kept, since=2.0)])
    assert [conflict.lost for conflict in found.conflicts] == [OLD]


def test_who_wins_does_not_depend_on_the_order_in_which_the_records_are_read() -> None:
    records = [
        record(OLD, Grant((0, 1)), since=1.0),
        record(NEW, Grant((1, 2)), since=1.0),
        record(THIRD, Grant((2, 3)), Life.UNKNOWN),
    ]
    first, *others = [restore(NODE, order) for order in permutations(records)]
    assert all(other == first for other in others)
    assert set(first.claims.held) == {OLD, THIRD}


def test_what_the_loser_may_still_use_is_not_handed_out_until_it_is_proven_gone() -> None:
    found = restore(
        NODE, [record(OLD, Grant((0,), 0, (gpu(0),)), since=1.0), record(NEW, Grant((0, 1), 900, (gpu(1),)), since=2.0)]
    )
    claims = found.claims
    assert isinstance(claims.claimed(THIRD, Request(7)), Refusal)
    assert isinstance(claims.claimed(THIRD, Request(1, 101)), Refusal)
    # the winner's end does not free what the loser may still use
    claims = claims.released(proof(OLD))
    assert isinstance(claims.claimed(THIRD, Request(7)), Refusal)
    after = claims.released(proof(NEW)).claimed(THIRD, Request(8, 1000))
    assert isinstance(after, Claims)


def test_a_device_that_is_gone_ends_no_run_and_drains_the_node() -> None:
    """Field report 54."""
    found = restore(replace(NODE, gpus=(gpu(0),)), [record(OLD, Grant((0,), 0, (gpu(1),)))])
    assert found.conflicts == () and OLD in found.claims.held
    assert list(map(str, found.differences)) == ["gres/gpu 1 (/dev/nvidia1) is not on this node, held by 42.1"]
    assert all(one.drains for one in found.differences)


def test_cpus_that_are_gone_end_no_run_and_drain_the_node() -> None:
    found = restore(Inventory((0,), 1000), [record(OLD, Grant((0, 1)))])
    assert OLD in found.claims.held
    assert list(map(str, found.differences)) == ["CPU 1 is not on this node, held by 42.1"]


def test_memory_that_has_shrunk_ends_no_run_that_fitted_before() -> None:
    """R35: and nothing new is granted until enough is free."""
    records = [record(OLD, Grant((0,), 600), since=1.0), record(NEW, Grant((1,), 400), since=2.0)]
    found = restore(replace(NODE, memory_mb=700), records, before=NODE)
    assert found.conflicts == ()
    assert list(map(str, found.differences)) == ["memory: 42.1, 57.1 hold 1000 MB, the node has 700 MB"]
    assert isinstance(found.claims.claimed(THIRD, Request(1, 1)), Refusal)


def test_a_record_that_names_a_cpu_twice_holds_it_once_and_is_reported() -> None:
    found = restore(NODE, [record(OLD, Grant((1, 1)))])
    assert found.claims.held == {OLD: Grant((1,))}
    assert [str(one) for one in found.differences] == [
        "the record of run 42.1 is unsound: CPUs: the same one is named twice"
    ]


def test_a_device_is_recognised_when_the_configuration_begins_or_ceases_to_tell_its_file() -> None:
    """Otherwise the same GPU would be handed out a second time under its new name."""
    nameless = replace(NODE, gpus=(gpu(0, ""), gpu(1, "")))
    for before, now in ((NODE, nameless), (nameless, NODE)):
        found = restore(now, [record(OLD, Grant((0,), 0, (before.gpus[0],)))])
        assert found.claims.held[OLD].gpus == (now.gpus[0],) and found.differences == ()


def test_nothing_is_handed_out_while_a_run_lives_of_which_nobody_knows_what_it_holds() -> None:
    """R33: unreadable is not free."""
    found = restore(NODE, [record(OLD, Grant((0,)))], obscure=[NEW])
    assert found.claims.claimed(THIRD, Request(1)) == Refusal("it is not known what 57.1 may hold of this node", (NEW,))
    assert isinstance(found.claims.released(proof(OLD)).claimed(THIRD, Request(1)), Refusal)
    assert isinstance(found.claims.released(proof(NEW)).claimed(THIRD, Request(1)), Claims)


def test_two_records_of_one_run_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="two records of one run"):
        restore(NODE, [record(OLD, Grant()), record(OLD, Grant())])


def manifest(run_progress: Progress = Progress.RUNNING) -> Manifest:
    duties = owed(prolog=False, epilog=False, at=0.0)
    return Manifest(OLD, "boot", "nonce", 0, duties).marked(Duty.RUN, run_progress, 0.0)


def test_what_the_ledger_tells_of_a_run() -> None:
    verdict = Verdict(VerdictKind.CANCELLED, 0, 0.0)
    exit = Exit(ExitSource.WAITID, 0, 0.0)
    assert life_of(manifest(), True) is Life.ALIVE
    assert life_of(manifest(), None) is Life.UNKNOWN
    assert life_of(manifest(), False) is Life.ENDING
    assert life_of(manifest(Progress.OWED), None) is Life.WAITING
    assert life_of(replace(manifest(), verdict=verdict), True) is Life.ENDING
    assert life_of(replace(manifest(Progress.DONE), exit=exit), None) is Life.ENDING
