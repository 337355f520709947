"""Who keeps the daemons of a chaos run alive: those that were ended come back after their time, all others at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster import Agent, Cluster
from tests.daemon import Daemon

_REVIVAL_S = 1.0  # after a death that nobody planned
_POLITE_END_S = 40.0  # after SIGTERM
# SIGTERM before the program has come to its handler ends it as any program.
_POLITE_CODES = frozenset({0, -signal.SIGTERM})


@dataclass(slots=True)
class Absence:
    """Of a daemon that was told to end: when it comes back, what it may end with, until when it has to have ended."""

    until: float
    codes: frozenset[int]
    deadline: float


class Keeper:
    """`look_after` has to be called often."""

    def __init__(self, cluster: Cluster, say: Callable[[str], None]) -> None:
        self._cluster, self._say = cluster, say
        self._absences: dict[str, Absence] = {}
        self.surprises: list[str] = []

    def ended(self, daemon: Daemon, down_s: float, politely: bool) -> None:
        """It was sent a signal that ends it."""
        now = time.monotonic()
        codes = _POLITE_CODES if politely else frozenset({-signal.SIGKILL})
        before = self._absences.get(daemon.name)
        if before is not None:  # it was still on its way out
            codes |= before.codes
        self._absences[daemon.name] = Absence(now + down_s, codes, now + _POLITE_END_S)

    def is_dying(self, daemon: Daemon) -> bool:
        """Whether it was sent a SIGKILL, which takes its time."""
        absence = self._absences.get(daemon.name)
        return absence is not None and -signal.SIGKILL in absence.codes

    def hurry(self) -> None:
        """Bring all back as soon as they have ended."""
        for absence in self._absences.values():
            absence.until = 0.0

    def look_after(self, murdered: Callable[[Agent], bool]) -> int:
        """How many agents were found killed by somebody else, who is asked whether that was meant."""
        found = 0
        for daemon in (self._cluster.controller, *self._cluster.agents.values()):
            absence = self._absences.get(daemon.name)
            if absence is not None:
                found += self._see_out(daemon, absence, murdered)
            elif not daemon.running:
                found += self._take_in_death(daemon, murdered)
        return found

    def _see_out(self, daemon: Daemon, absence: Absence, murdered: Callable[[Agent], bool]) -> int:
        """How many were killed by somebody else on their way out."""
        now = time.monotonic()
        if daemon.running:
            if now > absence.deadline:
                self._wonder(f"{daemon.name} did not end within {_POLITE_END_S:g} s\n{daemon.tail()}")
                absence.codes |= {-signal.SIGKILL}
                absence.deadline = now + _POLITE_END_S
                daemon.send(signal.SIGKILL)
            return 0
        if now < absence.until:
            return 0
        code = daemon.wait()
        meant = code not in absence.codes and _is_murder(daemon, code, murdered)
        if code not in absence.codes and not meant:
            self._wonder(f"{daemon.name} ended with {code}\n{daemon.tail()}")
        del self._absences[daemon.name]
        daemon.start(wait=False)
        return int(meant)

    def _take_in_death(self, daemon: Daemon, murdered: Callable[[Agent], bool]) -> int:
        code = daemon.wait()
        meant = _is_murder(daemon, code, murdered)
        if not meant:
            self._wonder(f"{daemon.name} ended by itself with {code}\n{daemon.tail()}")
        self._absences[daemon.name] = Absence(time.monotonic() + _REVIVAL_S, frozenset({code}), 0.0)
        return int(meant)

    def _wonder(self, text: str) -> None:
        self._say(f"    SURPRISE: {text.splitlines()[0]}")
        self.surprises.append(text)


def _is_murder(daemon: Daemon, code: int, murdered: Callable[[Agent], bool]) -> bool:
    return code == -signal.SIGKILL and isinstance(daemon, Agent) and murdered(daemon)
