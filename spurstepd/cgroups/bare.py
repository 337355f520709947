"""A run without a cgroup: whoever descends from the supervisor, and whoever carries the run's cookie.

The weakest kind. A process that detaches itself is given to the supervisor (a subreaper) and so found; one that
detached itself from a supervisor that died is found by the cookie in the environment it was started with. One that
did both, after wiping its environment, is lost to us. Nothing is limited.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

from spurstepd.cgroups import processes
from spurstepd.cgroups.container import ContainmentError, Counters, Leftover, Limits
from spurstepd.cgroups.processes import Entry
from spurstepd.ids import RunId

PREFIX = "cookie:"
VARIABLE = "SPUR_RUN_COOKIE"

_ROUNDS = 32
"""How often a kill looks for members that were forked meanwhile before it leaves the rest to the next call."""


def create(key: str, run: RunId, limits: Limits) -> BareRun:
    """A place for `run` of the agent `key`: nothing but a fresh cookie."""
    unmet = tuple(
        f"{name}: this machine offers no cgroups"
        for name, wanted in (
            ("cpuset", limits.cpus is not None),
            ("memory", limits.memory_bytes is not None),
            ("pids", limits.pids_max is not None),
            ("devices", bool(limits.denied_devices)),
        )
        if wanted
    )
    return BareRun(f"{key}/{run}/{os.urandom(8).hex()}", unmet)


def reopen(recorded: str) -> BareRun:
    """The run that recorded its cookie. ContainmentError: that is no cookie."""
    cookie = recorded.removeprefix(PREFIX)
    if cookie == recorded or cookie.count("/") != 2:
        raise ContainmentError(f"the recorded place {recorded!r} is not {PREFIX}KEY/RUN/NUMBER")
    return BareRun(cookie, ())


def descendants(table: dict[int, Entry], roots: set[int]) -> set[int]:
    """Everybody in `table` whose chain of parents reaches one of `roots`, without the roots themselves."""
    children: dict[int, list[int]] = {}
    for one in table.values():
        children.setdefault(one.ppid, []).append(one.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found and child not in roots:
                found.add(child)
                waiting.append(child)
    return found


@dataclass(slots=True)
class _Cookies:
    """Who carries a cookie. Those of other parents that do not are remembered: only our own get it, by their exec."""

    wanted: str
    _without: set[tuple[int, int]] = field(default_factory=set)

    def carriers(self, table: dict[int, Entry]) -> Iterator[int]:
        known = {(one.pid, one.start_ticks) for one in table.values()}
        own = descendants(table, {os.getpid()})
        self._without &= known
        for pid, start in known - self._without:
            environment = processes.proc_file(pid, "environ")
            if environment and self.wanted in f"\0{environment}":
                yield pid
            elif environment and pid not in own:  # empty: a kernel thread, a zombie, or one in the middle of its exec
                self._without.add((pid, start))


class _Members:
    """The processes that carry a cookie, and their descendants; of a whole run also the supervisor's."""

    def __init__(self, wanted: str, *, with_children: bool) -> None:
        self._cookies = _Cookies(f"\0{VARIABLE}={wanted}")
        self._with_children = with_children

    def _members(self) -> list[Entry]:
        table = processes.table()
        carriers = set(self._cookies.carriers(table)) - {os.getpid()}
        found = carriers | descendants(table, carriers)
        if self._with_children:
            found |= descendants(table, {os.getpid()})
        return [table[pid] for pid in sorted(found - {os.getpid()}) if table[pid].state not in "ZX"]

    def pids(self) -> list[int]:
        return [one.pid for one in self._members()]

    def signal(self, signum: int) -> int:
        return sum(_send(one, signum) for one in self._members())

    def kill_all(self) -> None:
        # Stopped first, until nobody is left who could fork: then the kill is complete.
        for _ in range(_ROUNDS):
            running = [one for one in self._members() if one.state not in "Tt"]
            if not sum(_send(one, signal.SIGSTOP) for one in running):
                break
        self.signal(signal.SIGKILL)


def _send(one: Entry, signum: int) -> bool:
    def is_it(pid: int) -> bool:
        now = processes.entry(pid)
        return now is not None and now.start_ticks == one.start_ticks

    return processes.send(one.pid, signum, is_it)


class BareLeaf(_Members):
    """One thing started in a bare run."""

    def __init__(self, cookie: str) -> None:
        super().__init__(f"{cookie}\0", with_children=False)
        self._environment = (f"{VARIABLE}={cookie}",)

    @property
    def environment(self) -> tuple[str, ...]:
        return self._environment

    def enter(self) -> None:
        pass

    def close(self) -> None:
        pass


class BareRun(_Members):
    """One run, known by the cookie of its members."""

    def __init__(self, cookie: str, unmet: tuple[str, ...]) -> None:
        super().__init__(f"{cookie}/", with_children=True)
        self._cookie = cookie
        self._unmet = unmet

    @property
    def recorded(self) -> str:
        return f"{PREFIX}{self._cookie}"

    @property
    def unmet(self) -> tuple[str, ...]:
        return self._unmet

    @property
    def confines_cpus(self) -> bool:
        return False

    def leaf(self, name: str) -> BareLeaf:
        return BareLeaf(f"{self._cookie}/{name}")

    def events_fd(self) -> int | None:
        return None

    def populated(self) -> bool:
        return bool(self._members())

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def usage(self) -> Counters:
        members = self._members()
        return Counters(
            user_cpu_s=sum(one.user_ticks for one in members) / processes.TICKS,
            system_cpu_s=sum(one.system_ticks for one in members) / processes.TICKS,
            memory_bytes=sum(one.rss_bytes for one in members),
        )

    def oom_kills(self) -> int:
        return 0

    def left(self) -> list[Leftover]:
        return processes.describe(self.pids())

    def remove(self, wait_s: float = 0.0) -> bool:
        return not self.populated()

    def close(self) -> None:
        pass
