"""How a run is ended: CONT and TERM, a grace, KILL until it is empty, and a name for what does not die. Pure.

The times are of the monotonic clock. The grace is Slurm's KillWait (slurm.conf(5)).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Rung(Enum):
    NOTHING = "nothing is due"
    TERM = "continue all and ask them to end"
    KILL = "kill all"
    COMPLAIN = "drain the node for what does not die"


@dataclass(frozen=True, slots=True)
class Ladder:
    """Where an ending stands. A new one has not begun; `kill_wait_s` and `unkillable_s` come from the launch plan."""

    kill_wait_s: float
    unkillable_s: float
    asked_at: float | None = None
    killed_at: float | None = None
    complained: bool = False

    def next_rung(self, now: float) -> Rung:
        """What is due at `now`, given that something is left. KILL is due again and again."""
        if self.asked_at is None:
            return Rung.TERM
        if self.killed_at is None:
            return Rung.KILL if now >= self.asked_at + self.kill_wait_s else Rung.NOTHING
        if not self.complained and now >= self.killed_at + self.unkillable_s:
            return Rung.COMPLAIN
        return Rung.KILL

    def due_in(self, now: float) -> float:
        """Seconds until `next_rung` can give something else than NOTHING; repeated kills are spaced."""
        if self.asked_at is None:
            return 0.0
        if self.killed_at is None:
            return max(0.0, self.asked_at + self.kill_wait_s - now)
        return REPEAT_S if self.complained or now < self.killed_at + self.unkillable_s else 0.0


REPEAT_S = 0.5
"""Between two rounds of KILL: new processes of a fork bomb, or ones that were frozen."""
