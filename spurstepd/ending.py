"""Carrying out the ladder: what is left of a run is asked, killed and, where it does not die, complained about."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace

from spurstepd import faults
from spurstepd.cgroups import RunCgroup
from spurstepd.eventlog import EventLog
from spurstepd.ladder import Ladder, Rung
from spurstepd.launchplan import LaunchPlan
from spurstepd.reactor import Reactor, Timer


class Ending:
    """The one ending of a run, whoever wants it: a verdict while it runs, or its own exit with processes left.

    `cleared` is called when nothing is left, `complain` with the processes that do not die, and with None when they
    have died after all.
    """

    def __init__(
        self,
        place: RunCgroup,
        plan: LaunchPlan,
        reactor: Reactor,
        log: EventLog,
        cleared: Callable[[], None],
        complain: Callable[[str | None], None],
    ) -> None:
        self._place, self._reactor, self._log = place, reactor, log
        self._cleared, self._complain = cleared, complain
        self._ladder = Ladder(plan.kill_wait_s, plan.unkillable_s)
        self._timer: Timer | None = None
        self.stuck_on = ""  # the processes that do not die

    def begin(self) -> None:
        """Start to climb; again does nothing."""
        if self._timer is None:
            self._climb()

    def over(self) -> None:
        """Nothing is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.stuck_on = ""
        self._complain(None)  # a predecessor may have complained

    def _climb(self) -> None:
        now = time.monotonic()
        rung = self._ladder.next_rung(now)
        faults.point(f"ladder-{rung.name.lower()}")
        self._take(rung, now)
        self._timer = self._reactor.after(self._ladder.due_in(time.monotonic()), self._look)

    def _take(self, rung: Rung, now: float) -> None:
        match rung:
            case Rung.TERM:
                self._place.thaw()
                self._place.signal(signal.SIGCONT)
                self._place.signal(signal.SIGTERM)
                self._ladder = replace(self._ladder, asked_at=now)
            case Rung.KILL:
                self._place.kill_all()
                if self._ladder.killed_at is None:
                    self._ladder = replace(self._ladder, killed_at=now)
            case Rung.COMPLAIN:
                self._ladder = replace(self._ladder, complained=True)
                self.stuck_on = ", ".join(str(one) for one in self._place.left())
                self._log.event("processes_unkillable", left=self.stuck_on)
                self._complain(self.stuck_on)
            case Rung.NOTHING:
                pass

    def _look(self) -> None:
        if self._place.populated():
            self._climb()
            return
        self.over()
        self._cleared()
