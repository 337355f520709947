"""Orders for fault points (see spurstepd.faults): die, stop, fail or wait at a named line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.patience import wait_for


@dataclass(frozen=True, slots=True)
class Faults:
    """The directory in which the processes under test look."""

    directory: Path

    def order(self, point: str, order: str) -> None:
        """Have the next process that comes by `point` do `order`."""
        beside = self.directory / f".{point}"
        beside.write_text(order)
        beside.rename(self.directory / point)

    def taken(self, point: str) -> bool:
        """Whether a process came by and carried the order out, or is about to."""
        return not (self.directory / point).exists()

    def reached(self, point: str) -> int:
        """The pid of the process that waits at `point`, once there is one."""
        told = self.directory / f"{point}.reached"
        wait_for(told.exists, f"somebody comes by {point}")
        return int(told.read_text())

    def let_go(self, point: str) -> None:
        """Let whoever waits at `point` go on, and clear up so that it can be ordered again."""
        (self.directory / f"{point}.go").touch()

    def withdraw(self, point: str) -> None:
        """Take the order back, and what is left of one that was carried out."""
        for name in (point, f"{point}.reached", f"{point}.go"):
            (self.directory / name).unlink(missing_ok=True)
