"""Carrying out the ladder: what is left of a run is asked, killed and, where it does not die, complained about."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from spurstepd import faults
from spurstepd.ladder import Ladder, Rung
from spurstepd.reactor import Timer

if TYPE_CHECKING:
    from spurstepd.supervisor import Supervisor


class Ending:
    """The one ending of a run, whoever wants it: a verdict while it runs, or its own exit with processes left."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._ladder = Ladder(supervisor.plan.kill_wait_s, supervisor.plan.unkillable_s)
        self._timer: Timer | None = None
        self.stuck_on = ""

    def begin(self) -> None:
        """Start to climb; again does nothing."""
        if self._timer is None:
            self._climb()

    def over(self) -> None:
        """Nothing is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.stuck_on:
            self.stuck_on = ""
            self._supervisor.complain(None)

    def _climb(self) -> None:
        now, place = time.monotonic(), self._supervisor.place
        self._timer = self._supervisor.reactor.after(0.0, self._look)
        rung = self._ladder.next_rung(now)
        faults.point(f"ladder-{rung.name.lower()}")
        match rung:
            case Rung.TERM:
                place.thaw()
                place.signal(signal.SIGCONT)
                place.signal(signal.SIGTERM)
                self._ladder = replace(self._ladder, asked_at=now)
            case Rung.KILL:
                place.kill_all()
                if self._ladder.killed_at is None:
                    self._ladder = replace(self._ladder, killed_at=now)
            case Rung.COMPLAIN:
                self._ladder = replace(self._ladder, complained=True)
                self._complain()
            case Rung.NOTHING:
                pass
        self._timer.cancel()
        self._timer = self._supervisor.reactor.after(self._ladder.due_in(time.monotonic()), self._look)

    def _look(self) -> None:
        supervisor = self._supervisor
        if supervisor.place.populated():
            self._climb()
            return
        self.over()
        supervisor.advance_soon()

    def _complain(self) -> None:
        left = ", ".join(str(one) for one in self._supervisor.place.left())
        self.stuck_on = f"unkillable: {left}"
        self._supervisor.log.event("processes_unkillable", left=left)
        self._supervisor.complain(self.stuck_on)
