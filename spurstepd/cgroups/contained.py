"""A run in a cgroup of the v2 tree, limited by the controllers of either version."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from spurstepd.cgroups import devicefilter, files, legacy, processes, tree, unified
from spurstepd.cgroups.container import ContainmentError, Counters, Leftover, Limits
from spurstepd.cgroups.hierarchy import Hierarchy
from spurstepd.cgroups.mounts import escape, unescape
from spurstepd.ids import RunId

_ITSELF = b"0"
"""Written to cgroup.procs: the writer."""

_SWEEP_S = 2.0
"""How long a new run waits for the killed leftovers in its place."""


def create(hierarchy: Hierarchy, run: RunId, limits: Limits) -> ContainedRun:
    """A fresh cgroup for `run` in every hierarchy that it needs. ContainmentError."""
    assert hierarchy.node is not None
    directory = f"{hierarchy.node}/{run}"
    _make_fresh(directory, lambda: make_node(hierarchy))
    unmet = [*unified.limit(directory, limits, hierarchy.controllers), *_deny_devices(hierarchy, directory, limits)]
    v1: dict[str, str] = {}
    for controller in legacy.needed(limits):
        node = dict(hierarchy.v1).get(controller)
        if node is None:
            continue
        v1[controller] = f"{node}/{run}"
        _make_fresh(v1[controller], lambda: make_node(hierarchy))
        refused = list(_limit_v1(controller, v1[controller], limits))
        if refused and controller == "cpuset":  # nothing can enter a cpuset without CPUs
            tree.remove(v1.pop(controller))
        unmet += refused
    return ContainedRun(directory, v1, (*unmet, *_unlimited(hierarchy, limits)))


def _deny_devices(hierarchy: Hierarchy, directory: str, limits: Limits) -> Iterator[str]:
    """By a filter, where no v1 controller does it."""
    if limits.denied_devices and hierarchy.denies_devices and not hierarchy.limits("devices"):
        try:
            devicefilter.deny(directory, limits.denied_devices)
        except OSError as error:
            yield f"devices are not denied: {files.refusal(directory, error)}"


def _limit_v1(controller: str, directory: str, limits: Limits) -> Iterator[str]:
    try:
        legacy.make(controller, directory)
    except OSError as error:
        raise files.refusal(directory, error) from None
    yield from legacy.limit(controller, directory, limits)


def _unlimited(hierarchy: Hierarchy, limits: Limits) -> Iterator[str]:
    """One line for each limit that no controller is there for."""
    wanted = {
        "cpuset": limits.cpus is not None,
        "memory": limits.memory_bytes is not None,
        "pids": limits.pids_max is not None,
    }
    for controller, is_wanted in wanted.items():
        if is_wanted and not hierarchy.limits(controller):
            yield f"no {controller} controller for runs on this machine"
    if limits.denied_devices and not hierarchy.denies_devices:
        yield "no way to deny devices to runs on this machine"


def make_node(hierarchy: Hierarchy) -> None:
    """The directories that runs of one agent are made in; they may be there already. ContainmentError."""
    assert hierarchy.node is not None
    directory = hierarchy.node
    try:
        tree.make(directory)
        for controller in sorted(hierarchy.controllers):
            files.write(f"{directory}/cgroup.subtree_control", f"+{controller}")
        for controller, directory in hierarchy.v1:
            legacy.make(controller, directory)
    except OSError as error:
        raise files.refusal(directory, error) from None


def _make_fresh(directory: str, make_parent: Callable[[], None]) -> None:
    """Make `directory`, which nobody has recorded yet: what is in it is killed and removed."""
    for _ in range(3):
        try:
            os.mkdir(directory, 0o755)
            return
        except FileNotFoundError:  # the last launcher of this agent has removed it on leaving
            make_parent()
        except FileExistsError:
            tree.kill(directory)
            if not tree.remove(directory, _SWEEP_S):
                break
        except OSError as error:
            raise files.refusal(directory, error) from None
    left = ", ".join(map(str, processes.describe(tree.pids(directory))))
    raise ContainmentError(f"{directory} is not free: it holds {left or 'nothing, and cannot be removed'}")


def standing(hierarchy: Hierarchy) -> Iterator[tuple[RunId, ContainedRun]]:
    """The runs that have a directory in the tree, with those that they have in the v1 hierarchies."""
    for name in sorted(os.listdir(hierarchy.node)):
        try:
            run = RunId.parse(name)
        except ValueError:
            continue  # the supervisors' leaf, or a file of the kernel's
        v1 = {controller: f"{node}/{run}" for controller, node in hierarchy.v1 if os.path.isdir(f"{node}/{run}")}
        yield run, ContainedRun(f"{hierarchy.node}/{run}", v1, ())


def reopen(recorded: str) -> ContainedRun:
    """The cgroup that `recorded` names; it may be gone. ContainmentError: it names none."""
    directory, *rest = [unescape(word) for word in recorded.split(" ")]
    v1 = dict(word.split("=", 1) for word in rest if "=" in word)
    if len(v1) != len(rest) or not all(place.startswith("/") for place in (directory, *v1.values())):
        raise ContainmentError(f"the recorded cgroup {recorded!r} is not a list of directories")
    return ContainedRun(directory, v1, ())


def rejoin(recorded: str) -> ContainedRun | None:
    """`reopen`, and the caller moves to the supervisors beside the run. None: the run's cgroup is gone."""
    run = reopen(recorded)
    with suppress(OSError):
        files.write(f"{os.path.dirname(run.directory)}/supervisors/cgroup.procs", "0")
    return run if os.path.isdir(run.directory) else None


class _Members:
    """The processes in and below one directory of the tree."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def pids(self) -> list[int]:
        return tree.pids(self._directory)

    def signal(self, signum: int) -> int:
        return tree.send(self._directory, signum)

    def kill_all(self) -> None:
        tree.kill(self._directory)


class ContainedLeaf(_Members):
    """A leaf of the v2 tree; where v1 controllers limit the run, entering it enters those of the run too."""

    def __init__(self, directory: str, v1: Iterable[str]) -> None:
        """ContainmentError: the leaf cannot be made."""
        super().__init__(directory)
        self._gates: list[tuple[int, str]] = []
        path = directory
        try:
            tree.make(directory)
            for place in (directory, *v1):
                path = f"{place}/cgroup.procs"
                self._gates.append((os.open(path, os.O_WRONLY | os.O_CLOEXEC), path))
        except OSError as error:
            self.close()
            raise files.refusal(path, error) from None

    @property
    def environment(self) -> tuple[str, ...]:
        return ()

    def enter(self) -> None:
        for gate, path in self._gates:
            try:
                os.write(gate, _ITSELF)
            except OSError as error:
                raise OSError(error.errno, error.strerror, path) from None

    def close(self) -> None:
        while self._gates:
            os.close(self._gates.pop()[0])


class ContainedRun(_Members):
    """The cgroup of one run: its directory in the v2 tree, and one in each v1 hierarchy that limits it."""

    def __init__(self, directory: str, v1: Mapping[str, str], unmet: tuple[str, ...]) -> None:
        super().__init__(directory)
        self._v1 = dict(v1)
        self._unmet = unmet
        self._events: tree.Events | None = None

    @property
    def directory(self) -> str:
        """In the v2 tree."""
        return self._directory

    @property
    def recorded(self) -> str:
        """The directory, then CONTROLLER=DIRECTORY for each v1 hierarchy, blanks inside escaped as in mountinfo."""
        return " ".join([escape(self._directory), *(f"{name}={escape(place)}" for name, place in self._v1.items())])

    @property
    def unmet(self) -> tuple[str, ...]:
        return self._unmet

    @property
    def confines_cpus(self) -> bool:
        return "cpuset" in self._v1 or bool((files.read_if_there(f"{self._directory}/cpuset.cpus") or "").strip())

    def kill_all(self) -> None:
        super().kill_all()
        tree.freeze(self._directory, False)  # what is started in it from now on, the epilog, must be able to run

    def leaf(self, name: str) -> ContainedLeaf:
        return ContainedLeaf(f"{self._directory}/{name}", self._v1.values())

    def events_fd(self) -> int | None:
        if self._events is None:
            try:
                self._events = tree.Events(self._directory)
            except OSError as error:
                if error.errno in files.GONE:
                    return None
                raise
        return self._events.fileno()

    def populated(self) -> bool:
        if self._events is not None:
            return self._events.populated()
        return "populated 1" in (files.read_if_there(f"{self._directory}/cgroup.events") or "")

    def freeze(self) -> None:
        if not tree.freeze(self._directory, True):
            self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if not tree.freeze(self._directory, False):
            self.signal(signal.SIGCONT)

    def usage(self) -> Counters:
        counted = unified.counters(self._directory)
        if "memory" not in self._v1:
            return counted
        current, peak = legacy.memory(self._v1["memory"])
        return replace(counted, memory_bytes=current, peak_memory_bytes=peak)

    def oom_kills(self) -> int:
        if "memory" in self._v1:
            return legacy.oom_kills(self._v1["memory"])
        return unified.oom_kills(self._directory) or 0

    def left(self) -> list[Leftover]:
        return processes.describe(self.pids())

    def remove(self, wait_s: float = 0.0) -> bool:
        self.close()
        until = time.monotonic() + wait_s
        places = (self._directory, *self._v1.values())
        removed = [tree.remove(place, max(0.0, until - time.monotonic())) for place in places]
        return all(removed)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None
