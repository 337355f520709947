"""Random lives of a cluster: whatever users, nodes, trouble and restarts do in whatever order, the books stay right."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import Phase as Step
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from spurctld.core.states import JobState
from spurctld.core.values import Policy
from tests.spurctld.core.world import World

T = TypeVar("T")

OFTEN: list[Callable[[World], None]] = [
    World.submit, World.submit, World.submit, World.work, World.work, World.work, World.work, World.work,
    World.beat, World.beat, World.schedule, World.end_hook, World.end_hook, World.wait,
]  # fmt: skip
SELDOM: list[Callable[[World], None]] = [
    World.ask, World.ask, World.muddle, World.muddle, World.end_early, World.lose_node, World.lose_node, World.leave,
    World.order_node, World.wait_long, World.restart,
]  # fmt: skip


def policy(choose: Callable[[Sequence[T]], T]) -> Policy:
    hooks = choose([False, False, True])  # type: ignore[list-item]
    take_back = choose([True, True, False])  # type: ignore[list-item]
    return Policy(
        controller_prolog=bool(hooks),
        controller_epilog=bool(hooks),
        take_back_runs=bool(take_back),
        missing_run_grace_s=20.0,
    )


class ClusterLife(RuleBasedStateMachine):
    """Short lives that hypothesis makes ever shorter where one goes wrong."""

    world: World | None = None

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self._data = data
        self.world = World(policy(self._choose), self._choose)

    def _choose(self, options: Sequence[T]) -> T:
        return self._data.draw(st.sampled_from(options))

    @rule(data=st.data(), action=st.sampled_from(OFTEN))
    def live(self, data: st.DataObject, action: Callable[[World], None]) -> None:
        self._act(data, action)

    @rule(data=st.data(), action=st.sampled_from(SELDOM))
    def suffer(self, data: st.DataObject, action: Callable[[World], None]) -> None:
        self._act(data, action)

    def _act(self, data: st.DataObject, action: Callable[[World], None]) -> None:
        self._data = data
        assert self.world is not None
        action(self.world)

    def teardown(self) -> None:
        if self.world is not None:
            self.world.wind_down()


ClusterLife.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    report_multiple_bugs=False,
    phases=(Step.explicit, Step.generate, Step.shrink),
    suppress_health_check=list(HealthCheck),
)
TestClusterLife = ClusterLife.TestCase


@pytest.mark.parametrize("seed", range(12))
def test_long_lives(seed: int) -> None:
    """Hundreds of steps each, mostly without trouble, so that jobs come to every kind of end."""
    live(seed, 300)


def test_the_lives_are_worth_living() -> None:
    """Across a few of them jobs reach every state that there is a way to; or the walks would prove nothing."""
    seen: Counter[JobState] = Counter()
    for seed in range(100, 106):
        live(seed, 200, seen)
    reached = {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT, JobState.NODE_FAIL}
    assert reached | {JobState.OUT_OF_MEMORY, JobState.SUSPENDED, JobState.CONFIGURING} <= seen.keys()


def live(seed: int, steps: int, seen: Counter[JobState] | None = None) -> None:
    rng = random.Random(seed)
    world = World(policy(rng.choice), rng.choice)
    for _ in range(steps):
        rng.choice(OFTEN if rng.random() < 0.85 else SELDOM)(world)
        if seen is not None:
            seen.update(world.states)
    world.wind_down()
