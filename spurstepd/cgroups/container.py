"""The interface of all kinds of places, and the values that go through it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Protocol

LEAST_MEMORY_BYTES = 30 << 20
"""No run gets less than this, as in Slurm (MinRAMSpace): below it the shell itself would not start."""


class ContainmentError(Exception):
    """A cgroup could not be made, entered or read; the text says which file and why."""


@dataclass(frozen=True, slots=True, order=True)
class DeviceNumber:
    """A device file as the kernel knows it. `kind`: "c" or "b"."""

    kind: str
    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.kind} {self.major}:{self.minor}"


def device_number(path: str) -> DeviceNumber | None:
    """The device behind `path`; None where it is none, as a file that stands in for one, or is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    if stat.S_ISCHR(found.st_mode):
        return DeviceNumber("c", os.major(found.st_rdev), os.minor(found.st_rdev))
    if stat.S_ISBLK(found.st_mode):
        return DeviceNumber("b", os.major(found.st_rdev), os.minor(found.st_rdev))
    return None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run is held to, derived from its allocation. None: not held to anything there.

    `oom_group`: when the limit kills one process, it kills the whole run (v2 only). Devices are denied one by one, as
    Slurm does with the devices of its generic resources that a job did not get; all others stay as they are.
    Swap is never granted on top of memory.
    """

    cpus: tuple[int, ...] | None = None
    memory_bytes: int | None = None
    oom_group: bool = False
    pids_max: int | None = None
    denied_devices: tuple[DeviceNumber, ...] = ()

    @property
    def memory_limit_bytes(self) -> int | None:
        return None if self.memory_bytes is None else max(self.memory_bytes, LEAST_MEMORY_BYTES)


@dataclass(frozen=True, slots=True)
class Counters:
    """What all processes of a run have used, the dead ones too. None: nothing on this machine counts it.

    In a bare place only the living and what they waited for are counted.
    """

    user_cpu_s: float | None = None
    system_cpu_s: float | None = None
    memory_bytes: int | None = None
    peak_memory_bytes: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process that is still there. `waiting_in`: the kernel function it sleeps in, "" where unknown."""

    pid: int
    name: str
    state: str
    waiting_in: str

    def __str__(self) -> str:
        where = f" in {self.waiting_in}" if self.waiting_in else ""
        return f"{self.pid} ({self.name}, state {self.state}{where})"


class Members(Protocol):
    """Processes that belong together."""

    def pids(self) -> list[int]:
        """All of them, whatever they have forked and however they detached themselves. Zombies are not in it."""

    def signal(self, signum: int) -> int:
        """Send `signum` to each of them; how many got it."""

    def kill_all(self) -> None:
        """Kill all of them at once, also stopped, frozen and forking ones.

        What was forked by the caller and has not entered yet is not in it: kill that by its pidfd. Returns before
        the last one is gone; without cgroup.kill it may have to be repeated until nothing is populated.
        """


class Leaf(Members, Protocol):
    """One thing started in a run: its batch script, a step, a hook."""

    @property
    def environment(self) -> tuple[str, ...]:
        """NAME=VALUE that must be in the environment of what is started here."""

    def enter(self) -> None:
        """Move the calling process here. For the child, between fork and exec: it only writes to open files.

        Every child that comes out of it is contained from its first instruction. OSError: it must not go on.
        """

    def close(self) -> None:
        """Forget the open files. The processes stay."""


class RunCgroup(Members, Protocol):
    """The place of one run."""

    @property
    def recorded(self) -> str:
        """What goes into the manifest, one line of text for `reopen`."""

    @property
    def unmet(self) -> tuple[str, ...]:
        """One line for each limit that could not be put on the run; empty for a reopened place."""

    @property
    def confines_cpus(self) -> bool:
        """False: nothing keeps the run on its CPUs; the caller sets the affinity of its children."""

    def leaf(self, name: str) -> Leaf:
        """The leaf `name`, made where it is missing. The caller closes it. ContainmentError: it cannot be made."""

    def events_fd(self) -> int | None:
        """Readable (POLLIN) when `populated` may have changed, until `populated` is asked. None: ask by the clock."""

    def populated(self) -> bool:
        """Whether a process is in it. False may come before its exit status can be waited for: wait for both."""

    def freeze(self) -> None:
        """Stop every process of it. Returns before the last one has stopped."""

    def thaw(self) -> None: ...

    def usage(self) -> Counters: ...

    def oom_kills(self) -> int:
        """How many of its processes the kernel has killed for memory. Ask before `remove`."""

    def left(self) -> list[Leftover]:
        """What is in it, for the reason of a drain."""

    def remove(self, wait_s: float = 0.0) -> bool:
        """Remove it, waiting at most `wait_s` for processes that are just leaving. False: something is still in it."""

    def close(self) -> None:
        """Forget the open files. The place stays."""
