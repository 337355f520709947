"""Processes that do not die: said by pid and wait channel, for as long as they are there."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from spurstepd.cgroups import Leftover
from spurstepd.ending import Ending
from spurstepd.eventlog import EventLog
from spurstepd.launchplan import Hooks, LaunchPlan
from spurstepd.reactor import Reactor
from tests.patience import wait_for


@dataclass
class Place:
    """A place of a kind of its own: its one process ignores every signal until it is told to go."""

    alive: bool = True
    signals: list[int] = field(default_factory=list)

    def signal(self, signum: int) -> int:
        self.signals.append(signum)
        return 1

    def kill_all(self) -> None:
        self.signals.append(signal.SIGKILL)

    def thaw(self) -> None:
        pass

    def populated(self) -> bool:
        return self.alive

    def left(self) -> list[Leftover]:
        return [Leftover(4711, "stuck", "D", "nfs_wait")]


def plan(kill_wait_s: float, unkillable_s: float) -> LaunchPlan:
    return LaunchPlan(
        ("/bin/true",), (), "/", 0, 0, (), 0o022, "/dev/null", "/dev/null", "/dev/null", False, (), kill_wait_s,
        unkillable_s, None, 0.0, True, Hooks(),
    )  # fmt: skip


def test_a_process_that_does_not_die_is_complained_about_once_and_no_longer_than_it_lives(tmp_path: Path) -> None:
    place, reactor, said, cleared = Place(), Reactor(), [], []
    complain: Callable[[str | None], None] = said.append
    ending = Ending(
        place, plan(0.05, 0.05), reactor, EventLog(tmp_path / "log"), lambda: cleared.append(True), complain  # type: ignore[arg-type]
    )  # fmt: skip
    ending.begin()
    turn(reactor, lambda: bool(said))
    assert place.signals[:3] == [signal.SIGCONT, signal.SIGTERM, signal.SIGKILL]
    assert said == ["4711 (stuck, state D in nfs_wait)"]
    place.alive = False
    turn(reactor, lambda: bool(cleared))
    assert said == ["4711 (stuck, state D in nfs_wait)", None]


def turn(reactor: Reactor, until: Callable[[], bool]) -> None:
    def look() -> bool:
        reactor.run_once()
        return until()

    wait_for(look, "the ending goes on", pause_s=0.0)
