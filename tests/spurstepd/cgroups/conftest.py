"""The machine's own hierarchy, and the bare kind that every machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator

import prctl
import pytest

from spurstepd.cgroups import Hierarchy, Kind, probe

from .places import Places


@pytest.fixture(scope="module")
def found() -> Iterator[Hierarchy]:
    """What the probe finds here; this process is back in its own cgroup afterwards, and nothing is left."""
    hierarchy = probe.find(f"test{os.getpid()}")
    yield hierarchy
    probe.withdraw(hierarchy)
    if hierarchy.node is not None:
        assert not os.path.exists(hierarchy.node)
        assert not [node for _, node in hierarchy.v1 if os.path.exists(node)]


@pytest.fixture
def contained(found: Hierarchy) -> Iterator[Places]:
    """Runs in cgroups; skipped, aloud, where there are none."""
    if found.kind is Kind.BARE:
        pytest.skip(f"no cgroups for runs here: {'; '.join(found.reasons)}")
    places = Places(found)
    yield places
    places.clear()


@pytest.fixture
def subreaper() -> Iterator[None]:
    """This process is what a supervisor is: the one that orphans below it are given to."""
    prctl.set_child_subreaper(1)
    yield
    prctl.set_child_subreaper(0)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


@pytest.fixture
def bare(subreaper: None) -> Iterator[Places]:
    places = Places(probe.bare(f"test{os.getpid()}", "for the test"))
    yield places
    places.clear()


@pytest.fixture(params=["contained", "bare"])
def places(request: pytest.FixtureRequest) -> Places:
    """Every kind that this machine has."""
    kind: Places = request.getfixturevalue(request.param)
    return kind
