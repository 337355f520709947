"""Which CPU ids are chosen."""

from __future__ import annotations

from spurd.placement import place_cpus

EIGHT = tuple(range(8))
PAIRS = ((0, 4), (1, 5), (2, 6), (3, 7))  # as Linux numbers hyper-threads: second threads after all first ones


def test_without_a_topology_neighbours_are_taken_from_the_stretch_that_fits_best() -> None:
    assert place_cpus(EIGHT, (), {2, 5}, 2) == (0, 1)
    assert place_cpus(EIGHT, (), {3, 5}, 1) == (4,)
    assert place_cpus(EIGHT, (), {1, 4}, 3) == (5, 6, 7)


def test_threads_of_one_core_go_together() -> None:
    assert place_cpus(EIGHT, PAIRS, (), 2) == (0, 4)
    assert place_cpus(EIGHT, PAIRS, {0}, 2) == (1, 5)
    assert place_cpus(EIGHT, PAIRS, (), 4) == (0, 1, 4, 5)


def test_one_cpu_fills_up_a_core_that_is_begun() -> None:
    assert place_cpus(EIGHT, PAIRS, {1}, 1) == (5,)


def test_where_no_stretch_is_long_enough_the_lowest_are_taken() -> None:
    assert place_cpus(EIGHT, (), {1, 3, 5}, 3) == (0, 2, 4)


def test_too_few_is_none_and_none_wanted_is_nothing() -> None:
    assert place_cpus(EIGHT, (), EIGHT[:7], 2) is None
    assert place_cpus(EIGHT, (), EIGHT, 0) == ()


def test_ids_in_no_core_come_after_the_real_ones() -> None:
    assert place_cpus((0, 1, 2, 3), ((0, 1),), (), 2) == (0, 1)
    assert place_cpus((0, 1, 2, 3), ((0, 1),), {0, 1}, 1) == (2,)
