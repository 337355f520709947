"""What is granted, what is refused and why, and what the two accounts of a node say of each other."""

from __future__ import annotations

import pytest

from spur import gres
from spur.gres import Gres
from spurd.claims import (
    Claims,
    Inventory,
    Refusal,
    ReleaseProof,
    Request,
    decide,
    differences,
    real_affinity,
    shrinkage,
)
from spurstepd.ids import RunId
from spurstepd.ledger import Device, Grant, Progress

RUN_1, RUN_2, RUN_3 = RunId(42, 1), RunId(43, 1), RunId(44, 2)


def gpu(index: int, type: str = "a100") -> Device:
    return Device("gpu", type, index, f"/dev/nvidia{index}")


def node(cpus: int = 8, memory_mb: int = 1000, gpus: tuple[Device, ...] = ()) -> Claims:
    return Claims(Inventory(tuple(range(cpus)), memory_mb, gpus))


def claimed(claims: Claims, run: RunId, cpus: int, memory_mb: int = 0, *wanted: str) -> Claims:
    after = claims.claimed(run, Request(cpus, memory_mb, tuple(map(gres.parse, wanted))))
    assert isinstance(after, Claims), after
    return after


def refused(claims: Claims, run: RunId, cpus: int, memory_mb: int = 0, *wanted: str) -> Refusal:
    after = claims.claimed(run, Request(cpus, memory_mb, tuple(map(gres.parse, wanted))))
    assert isinstance(after, Refusal), after
    return after


def proof(run: RunId) -> ReleaseProof:
    return ReleaseProof(run, supervisor_gone=True, processes_gone=True, epilog=Progress.DONE)


def test_a_claim_is_all_or_nothing() -> None:
    """R30: what there is of CPUs and memory is not taken when the device is not there."""
    claims = claimed(node(gpus=(gpu(0),)), RUN_1, 1, 0, "gpu:1")
    refusal = refused(claims, RUN_2, 2, 100, "gpu:1")
    assert refusal == Refusal("gres/gpu: 1 wanted, 0 of 1 free, the rest held by 42.1", (RUN_1,))
    assert list(claims.held) == [RUN_1]


def test_the_same_run_has_one_claim() -> None:
    claims = claimed(node(), RUN_1, 1)
    assert refused(claims, RUN_1, 1).reason == "run 42.1 has a claim on this node already"


def test_memory_beyond_the_total_is_refused_and_says_that_it_never_fits() -> None:
    """R35."""
    assert refused(node(memory_mb=1000), RUN_1, 1, 1001) == Refusal(
        "1001 MB of memory wanted, the node has 1000 MB", never=True
    )


def test_memory_that_others_hold_is_refused_to_the_megabyte() -> None:
    """R35."""
    claims = claimed(node(memory_mb=1000), RUN_1, 1, 600)
    assert refused(claims, RUN_2, 1, 401) == Refusal(
        "MB of memory: 401 wanted, 400 of 1000 free, the rest held by 42.1", (RUN_1,)
    )
    assert claimed(claims, RUN_2, 1, 400).held[RUN_2].memory_mb == 400


def test_who_asked_for_no_memory_claims_none() -> None:
    claims = claimed(node(memory_mb=100), RUN_1, 1, 100)
    assert claimed(claims, RUN_2, 1, 0).held[RUN_2].memory_mb == 0


def test_what_never_fits_is_told_even_where_something_else_is_merely_taken() -> None:
    claims = claimed(node(cpus=2), RUN_1, 2)
    refusal = refused(claims, RUN_2, 1, 0, "gpu:1")
    assert refusal == Refusal("gres/gpu: 1 wanted, the node has 0", never=True)


def test_more_cpus_than_are_free_names_who_holds_them() -> None:
    claims = claimed(claimed(node(cpus=4), RUN_1, 1), RUN_2, 2)
    assert refused(claims, RUN_3, 2) == Refusal(
        "CPUs: 2 wanted, 1 of 4 free, the rest held by 42.1, 43.1", (RUN_1, RUN_2)
    )


@pytest.mark.parametrize("request_", [Request(-1), Request(1, -1), Request(1, 0, (Gres("gpu", "", -1),))])
def test_less_than_nothing_is_refused(request_: Request) -> None:
    assert isinstance(node().claimed(RUN_1, request_), Refusal)


def test_devices_are_picked_by_type_and_lowest_index_whatever_the_order_of_the_inventory() -> None:
    devices = (gpu(2, "h100"), gpu(1), gpu(3, "h100"), gpu(0))
    grant = claimed(node(gpus=devices), RUN_1, 1, 0, "gpu:h100:1").held[RUN_1]
    assert grant.gpus == (gpu(2, "h100"),)


def test_a_request_for_any_type_leaves_the_named_type_to_who_named_it() -> None:
    grant = claimed(node(gpus=(gpu(0), gpu(1, "h100"))), RUN_1, 1, 0, "gpu:1", "gpu:a100:1").held[RUN_1]
    assert grant.gpus == (gpu(0), gpu(1, "h100"))


def test_other_generic_resources_are_claimed_like_devices() -> None:
    licences = tuple(Device("fpga", "", index, "") for index in range(2))
    claims = claimed(node(gpus=licences), RUN_1, 1, 0, "fpga:2")
    assert refused(claims, RUN_2, 1, 0, "fpga").reason == "gres/fpga: 1 wanted, 0 of 2 free, the rest held by 42.1"


def test_a_released_claim_is_free_again_and_releasing_twice_changes_nothing() -> None:
    claims = claimed(node(cpus=2, gpus=(gpu(0),)), RUN_1, 2, 500, "gpu:1")
    free = claims.released(proof(RUN_1))
    assert free.held == {} and free.released(proof(RUN_1)) == free
    assert claimed(free, RUN_2, 2, 1000, "gpu:1").held[RUN_2].gpus == (gpu(0),)


@pytest.mark.parametrize(
    ("supervisor", "processes", "epilog", "reason"),
    [
        (False, True, Progress.DONE, "its supervisor may still live"),
        (True, False, Progress.DONE, "processes of it are left"),
        (True, True, Progress.OWED, "its epilog is owed"),
        (True, True, Progress.RUNNING, "its epilog is running"),
    ],
)
def test_nothing_is_released_without_proof(supervisor: bool, processes: bool, epilog: Progress, reason: str) -> None:
    with pytest.raises(ValueError, match=f"the claim of run 42.1 cannot be released: {reason}"):
        ReleaseProof(RUN_1, supervisor, processes, epilog)


@pytest.mark.parametrize("epilog", [Progress.NONE, Progress.DONE, Progress.FAILED, Progress.UNKNOWN])
def test_an_epilog_that_will_not_run_any_more_is_no_obstacle(epilog: Progress) -> None:
    assert ReleaseProof(RUN_1, supervisor_gone=True, processes_gone=True, epilog=epilog).run == RUN_1


def test_a_record_passes_the_same_decision_and_gets_exactly_what_it_names() -> None:
    """R30."""
    inventory = Inventory(tuple(range(8)), 1000, (gpu(0), gpu(1)))
    record = Grant((3, 5), 10, (gpu(1),))
    assert decide(inventory, [(RUN_1, Grant((4,), 990, (gpu(0),)))], record) == record
    collision = decide(inventory, [(RUN_1, Grant((5,), 0, (gpu(1),)))], record)
    assert collision == Refusal("CPU 5, gres/gpu 1 (/dev/nvidia1) held by 42.1", (RUN_1,))


def test_a_record_that_names_one_thing_twice_is_refused() -> None:
    inventory = Inventory((0, 1), 10, (gpu(0),))
    assert isinstance(decide(inventory, (), Grant((1, 1))), Refusal)
    assert isinstance(decide(inventory, (), Grant((), 0, (gpu(0), gpu(0)))), Refusal)
    assert isinstance(decide(inventory, (), Grant((), -1)), Refusal)


def test_a_device_that_vanished_under_a_run_is_named_and_drains() -> None:
    """Field report 54: the run keeps its claim, the node gets no new work."""
    claims = claimed(node(gpus=(gpu(0), gpu(1))), RUN_1, 1, 0, "gpu:2")
    (difference,) = claims.on(node(gpus=(gpu(0),)).inventory).missing()
    assert str(difference) == "gres/gpu 1 (/dev/nvidia1) is not on this node, held by 42.1"
    assert difference.drains and difference.run == RUN_1


def test_a_node_that_shrank_says_what_is_gone() -> None:
    before = Inventory((0, 1, 2, 3), 1000, (gpu(0), gpu(1)))
    found = shrinkage(before, Inventory((0, 1), 900, (gpu(1),)))
    assert list(map(str, found)) == [
        "CPUs: the node had 4, it has 2 (gone: 2, 3)",
        "gres/gpu 0 (/dev/nvidia0) has vanished",
        "memory: the node had 1000 MB, it has 900 MB",
    ]
    assert all(one.drains for one in found)
    assert shrinkage(before, before) == []


def test_the_memory_that_another_kernel_keeps_for_itself_does_not_drain_the_node() -> None:
    (found,) = shrinkage(Inventory((), 64000), Inventory((), 63990))
    assert str(found) == "memory: the node had 64000 MB, it has 63990 MB" and not found.drains


def test_what_controller_and_node_believe_is_compared_run_by_run() -> None:
    held = {RUN_1: Grant((0, 1), 500, (gpu(0),)), RUN_2: Grant((2,))}
    believed = {
        RUN_1: Request(4, 400, (Gres("gpu", "", 2),)),
        RUN_3: Request(1, 0, (Gres("gpu", "a100", 1),)),
    }
    assert list(map(str, differences(believed, held))) == [
        "run 42.1: CPUs: the controller believes 4, the node holds 2",
        "run 42.1: MB of memory: the controller believes 400, the node holds 500",
        "run 42.1: gres/gpu: the controller believes 2, the node holds 1",
        "run 43.1: the controller believes nothing, the node holds 1 CPUs, 0 MB",
        "run 44.2: the controller believes 1 CPUs, 0 MB, 1 gres/gpu:a100, the node holds nothing",
    ]


def test_accounts_that_agree_differ_in_nothing() -> None:
    held = {RUN_1: Grant((0, 1), 500, (gpu(0), gpu(1)))}
    assert differences({RUN_1: Request(2, 500, (Gres("gpu", "", 2),))}, held) == []
    assert differences({RUN_1: Request(2, 500, (Gres("gpu", "a100", 2),))}, held) == []


def test_a_device_that_the_controller_does_not_know_of_is_a_difference() -> None:
    (found,) = differences({RUN_1: Request(0)}, {RUN_1: Grant((), 0, (gpu(0),))})
    assert str(found) == "run 42.1: gres/gpu: the controller believes 0, the node holds 1"


def test_a_type_that_was_asked_for_and_is_not_held_is_a_difference() -> None:
    believed = {RUN_1: Request(0, 0, (Gres("gpu", "a100", 1), Gres("gpu", "", 1)))}
    assert differences(believed, {RUN_1: Grant((), 0, (gpu(0), gpu(1)))}) == []
    (found,) = differences(believed, {RUN_1: Grant((), 0, (gpu(0, "h100"), gpu(1, "h100")))})
    assert str(found) == "run 42.1: gres/gpu:a100: the controller believes 1, the node holds 0"


def test_only_a_run_on_real_cpus_alone_is_bound_to_them() -> None:
    assert real_affinity(Grant((1, 0)), (0, 1)) == (0, 1)
    assert real_affinity(Grant((1, 2)), (0, 1)) is None
    assert real_affinity(Grant(), (0, 1)) is None
