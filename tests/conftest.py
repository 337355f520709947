"""What all tests share: a cluster each, and the rule that nothing is left behind."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import hypothesis
import pytest

from tests.cluster import Cluster
from tests.daemon import Daemon
from tests.leftovers import children, descriptors

# How long an example takes says how busy the machine is, and nothing else.
hypothesis.settings.register_profile(
    "spur",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("spur")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of one node, n1, that runs."""
    with Cluster() as running:
        yield running


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., Cluster]]:
    """Makes clusters of the test's own kind: `make_cluster(nodes=..., config=...)`."""
    with ExitStack() as stack:

        def make(**options: Any) -> Cluster:
            return stack.enter_context(Cluster(**options))

        yield make


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Fail a test that leaves descriptors or child processes in the process of the tests."""
    descriptors_before, children_before = descriptors(), children()
    yield
    if opened := _new(descriptors_before):
        gc.collect()  # what only a cycle of garbage holds is not held
        opened = _new(descriptors_before)
    started = children() - children_before - Daemon.mine
    assert not opened, f"descriptors left open: {opened}"
    assert not started, f"child processes left: {sorted(started)}"


def _new(before: dict[int, str]) -> dict[int, str]:
    return {fd: target for fd, target in descriptors().items() if before.get(fd) != target}
