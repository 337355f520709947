"""What the probe found: a value that the launcher holds and every supervisor forked from it inherits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """How runs are contained on this machine."""

    UNIFIED = "cgroup v2"
    HYBRID = "cgroup v2 tree, v1 controllers"
    BARE = "no cgroup"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where cgroups of runs are made, and what can be done with them.

    `node` is BASE/spur-KEY on cgroup v2, `found_in` the cgroup that the launcher was in before it was moved to
    `supervisors`. `controllers` are those of v2 that limit below `node`; `v1` has (controller, its BASE/spur-KEY).
    """

    key: str
    node: str | None = None
    found_in: str | None = None
    supervisors: str | None = None
    controllers: frozenset[str] = frozenset()
    v1: tuple[tuple[str, str], ...] = ()
    kills: bool = False  # cgroup.kill is there (Linux 5.14)
    freezes: bool = False  # cgroup.freeze is there (Linux 5.2)
    denies_devices: bool = False
    reasons: tuple[str, ...] = ()  # one line for everything that is missing

    @property
    def kind(self) -> Kind:
        if self.node is None:
            return Kind.BARE
        return Kind.HYBRID if self.v1 or not self.controllers else Kind.UNIFIED

    def limits(self, controller: str) -> bool:
        """Whether runs can be limited by `controller`, by either version."""
        return controller in self.controllers or any(name == controller for name, _ in self.v1)
