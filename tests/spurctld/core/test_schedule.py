"""Who starts where: first in first out, and what may be filled in behind a job that waits."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from spurctld.core.schedule import Lane, Plan, Release, Room, Waiting, fit, inventory, plan
from spurctld.core.values import Gres, Need, PartitionSpec, Request, Resources

MAIN = PartitionSpec("main")


def room(name: str = "n1", cpus: int = 4, memory_mb: int = 1000, *gres: Gres, used: int = 0) -> Room:
    whole = Resources(cpus, memory_mb, gres)
    return Room(name, cpus - used, memory_mb, inventory(whole), whole)


def job(number: int, cpus: int = 1, limit_s: int | None = None, **more: object) -> Waiting:
    return Waiting(number, Request(cpus_per_task=cpus, **more), limit_s)  # type: ignore[arg-type]


def run(
    queue: Sequence[Waiting],
    rooms: Sequence[Room],
    releases: list[Release] | None = None,
    absent: frozenset[str] = frozenset(),
    **more: int,
) -> Plan:
    lane = Lane(MAIN, queue, tuple(room.name for room in rooms), absent)
    ask = None if releases is None else lambda: releases
    return plan([lane], {room.name: room for room in rooms}, releases=ask, **more)


def started(decided: Plan) -> list[tuple[int, str]]:
    return [(start.job, "+".join(share.node for share in start.shares)) for start in decided.starts]


def reasons(decided: Plan) -> dict[int, str]:
    return {wait.job: wait.desc or wait.reason for wait in decided.waits}


def test_starts_in_order_while_there_is_room() -> None:
    decided = run([job(1, 2), job(2, 2), job(3, 1)], [room()])
    assert started(decided) == [(1, "n1"), (2, "n1")]
    assert reasons(decided) == {3: "Resources"}
    assert decided.blocked == {"main"}


def test_nothing_overtakes_a_job_that_waits_for_resources() -> None:
    decided = run([job(1, 4), job(2, 1)], [room(used=1)])
    assert started(decided) == []
    assert reasons(decided) == {1: "Resources"}


def test_fills_in_what_ends_before_the_blocked_job_can_start() -> None:
    releases = [Release(100.0, "n1", Resources(2))]
    decided = run([job(1, 4), job(2, 1, 50), job(3, 1, 101), job(4, 1, 100)], [room(used=2)], releases)
    assert started(decided) == [(2, "n1"), (4, "n1")]
    assert reasons(decided) == {1: "Resources", 3: "Priority"}


def test_a_job_without_limit_is_not_filled_in() -> None:
    decided = run([job(1, 4), job(2, 1, None)], [room(used=2)], [Release(100.0, "n1", Resources(2))])
    assert started(decided) == []


def test_a_job_without_limit_that_runs_leaves_room_for_limited_ones() -> None:
    decided = run([job(1, 4), job(2, 1, 3600)], [room(used=2)], [Release(365 * 86400.0, "n1", Resources(2))])
    assert started(decided) == [(2, "n1")]


def test_fills_in_beside_the_blocked_job() -> None:
    """What it will not need, and nodes that it will not use, are free for all."""
    rooms = [room("n1", used=3), room("n2", used=1)]
    releases = [Release(10.0, "n1", Resources(3)), Release(99.0, "n2", Resources(1))]
    decided = run([job(1, 4), job(2, 3, None)], rooms, releases)
    assert started(decided) == [(2, "n2")]


def test_what_was_filled_in_for_long_is_not_given_twice() -> None:
    rooms = [room("n1", 8, used=4)]
    releases = [Release(10.0, "n1", Resources(4))]
    decided = run([job(1, 6), job(2, 2, None), job(3, 1, None)], rooms, releases)
    assert started(decided) == [(2, "n1")]


def test_ends_of_jobs_started_in_the_same_pass_count() -> None:
    decided = run([job(1, 3, 50), job(2, 4), job(3, 1, 40), job(4, 1, 60)], [room()], [])
    assert started(decided) == [(1, "n1"), (3, "n1")]


def test_nothing_is_filled_in_while_it_is_unknown_when_the_blocked_job_can_start() -> None:
    """Something holds its resources that nobody expects to end, such as a run on a silent node."""
    assert started(run([job(1, 4), job(2, 1, 1)], [room(used=1)], [])) == []


def test_a_job_for_absent_nodes_blocks_nobody() -> None:
    rooms, absent = [room("n2")], frozenset({"n1"})
    decided = run([job(1, required=("n1",)), job(2)], rooms, absent=absent)
    assert started(decided) == [(2, "n2")]
    assert reasons(decided) == {1: "ReqNodeNotAvail, UnavailableNodes:n1"}


def test_says_that_nodes_are_missing_which_would_do() -> None:
    decided = run([job(1, 8)], [room()], absent=frozenset({"big"}))
    assert reasons(decided)[1].startswith("Nodes required for job are DOWN, DRAINED or reserved")


def test_nodes_are_used_in_their_order() -> None:
    assert started(run([job(1, 4), job(2, 1)], [room("n1"), room("n2")])) == [(1, "n1"), (2, "n2")]


def test_excluded_nodes_are_left_out() -> None:
    assert started(run([job(1, excluded=frozenset({"n1"}))], [room("n1"), room("n2")])) == [(1, "n2")]


def test_several_nodes_start_together_or_not_at_all() -> None:
    rooms = [room("n1"), room("n2", used=3)]
    assert started(run([job(1, 2, nodes=2, tasks=2)], rooms)) == []
    rooms = [room("n1"), room("n2")]
    assert started(run([job(1, 2, nodes=2, tasks=2)], rooms)) == [(1, "n1+n2")]


def test_partitions_share_nodes_without_granting_twice() -> None:
    rooms = {"n1": room()}
    lanes = [
        Lane(PartitionSpec("low"), [job(1, 3), job(2, 3)], ("n1",)),
        Lane(PartitionSpec("high", priority=5), [job(3, 3)], ("n1",)),
    ]
    assert started(plan(lanes, rooms)) == [(3, "n1")]


def test_memory_and_gres_count() -> None:
    gpu = Gres("gpu", "a", 2)
    assert fit(Need(1, 1001, False, (), 1), room()) is None
    assert fit(Need(1, 0, True, (), 1), room()) == Resources(1, 1000)
    assert fit(Need(1, 0, False, (Gres("gpu", "", 3),), 1), room("n1", 4, 1000, gpu)) is None
    assert fit(Need(1, 0, False, (Gres("gpu", "", 2),), 1), room("n1", 4, 1000, gpu)) == Resources(1, 0, (gpu,))


def test_a_request_for_any_type_leaves_the_named_one() -> None:
    both = (Gres("gpu", "a", 1), Gres("gpu", "b", 1))
    wanted = (Gres("gpu", "", 1), Gres("gpu", "a", 1))
    assert fit(Need(1, 0, False, wanted, 1), room("n1", 4, 1000, *both)) == Resources(1, 0, both)


def test_a_pass_looks_at_a_bounded_number_of_jobs_in_vain() -> None:
    looked = 0

    def queue():  # type: ignore[no-untyped-def]
        nonlocal looked
        for number in range(1, 100_000):
            looked += 1
            yield job(number, 8)

    run(queue(), [room()], [], budget=50)  # type: ignore[arg-type]
    assert looked <= 51


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.sampled_from([10, 100, None]), st.sampled_from([None, 300, 0])), max_size=20
    ),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
)
def test_never_grants_more_than_there_is(jobs: list[tuple[int, int | None, int | None]], used: list[int]) -> None:
    rooms = [room(f"n{at}", used=cpus) for at, cpus in enumerate(used)]
    releases = [Release(50.0 * at, f"n{at}", Resources(cpus)) for at, cpus in enumerate(used) if cpus]
    queue = [job(at, cpus, limit, memory_mb=memory) for at, (cpus, limit, memory) in enumerate(jobs)]
    decided = run(queue, rooms, releases)
    for one, cpus in zip(rooms, used, strict=True):
        granted = [s.resources for start in decided.starts for s in start.shares if s.node == one.name]
        assert sum(r.cpus for r in granted) <= 4 - cpus
        assert sum(r.memory_mb for r in granted) <= 1000
