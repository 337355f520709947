"""spurd as a witness: for the exit of a leader whose supervisor and whose launcher have both died.

It holds a pidfd of every leader, behind which the kernel keeps the exit (Linux 6.15). On older kernels it is what a
subreaper gets to reap: as long as spurd is the one that started the launcher, orphans of both become its children.
What it knows goes to the successor through `Launchers.supervise`, and into the run's witness.json before it is reaped.

Under systemd a duplicate of each pidfd lies in the unit's descriptor store, so that a leader which ends and is reaped
while no spurd lives can still be asked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import structlog

from spur.servicemanager import KeptDescriptor, Notifier
from spurd.launcher import Leader
from spurstepd import faults, pidfd
from spurstepd.ids import RunId
from spurstepd.ledger import Exit, ExitSource, Process
from spurstepd.pidfd import Likeness
from spurstepd.rundir import NodeDirs
from spurstepd.waitstatus import from_waitid
from spurstepd.witness import Witness as Testimony
from spurstepd.witness import write

log = structlog.get_logger()


@dataclass(slots=True)
class _Held:
    process: Process
    pidfd: int
    status: int | None = None


class Witness:
    """The leaders of all runs of this node. The descriptors are closed with `forget` and `close`.

    `kept` came back from the descriptor store behind `notifier`, and is owned from now on.
    """

    def __init__(self, notifier: Notifier, kept: Iterable[KeptDescriptor] = ()) -> None:
        self._notifier = notifier
        self._held: dict[RunId, _Held] = {}
        self._kept = {one.name: one.descriptor for one in kept}

    def hold(self, run: RunId, leader: Process) -> None:
        """Hold `leader` from now on, if it is still that process or its descriptor was kept."""
        held = self._held.get(run)
        if held is not None and held.process == leader:
            return
        kept = self._kept.pop(_name(run), None)
        if kept is not None and leader.inode is not None and os.fstat(kept).st_ino == leader.inode:
            self._held[run] = _Held(leader, kept)
            return
        if kept is not None:
            self._drop(run, kept)
        self.forget(run)
        likeness, fd = pidfd.open_same(leader)
        if likeness is Likeness.SAME and fd is not None:
            self._held[run] = _Held(leader, fd)
            self._notifier.store(_name(run), fd)

    def leader(self, run: RunId) -> Leader | None:
        """What can be told to a successor. The descriptor stays ours."""
        held = self._held.get(run)
        return None if held is None else Leader(held.process.pid, held.pidfd, held.status)

    def forget(self, run: RunId) -> None:
        """Nobody will ask for the leader of `run` any more."""
        held = self._held.pop(run, None)
        if held is not None:
            self._drop(run, held.pidfd)

    def forget_others(self, runs: Collection[RunId]) -> None:
        """What was kept for runs other than `runs` is of no use: they were released while no spurd lived."""
        names = {_name(run) for run in runs}
        for name in [one for one in self._kept if one not in names]:
            os.close(self._kept.pop(name))
            self._notifier.remove(name)

    def _drop(self, run: RunId, fd: int) -> None:
        os.close(fd)
        self._notifier.remove(_name(run))

    def close(self) -> None:
        """Leave the rest to the descriptor store."""
        for fd in [*(one.pidfd for one in self._held.values()), *self._kept.values()]:
            os.close(fd)
        self._held.clear()
        self._kept.clear()

    def saw(self, pid: int, status: int) -> tuple[RunId, Testimony] | None:
        """`pid` has ended as our child with the raw wait `status`, and is about to be reaped.

        What a successor can be told, where it is the leader of a run that is held.
        """
        for run, held in self._held.items():
            if held.process.pid == pid and held.status is None and pidfd.is_gone(held.pidfd):
                held.status = status
                log.info("leader_reaped", job=run.job, attempt=run.attempt, pid=pid, status=status)
                return run, Testimony(held.process, Exit(ExitSource.WITNESS, status, time.time()))
        return None


def write_down(dirs: NodeDirs, run: RunId, seen: Testimony) -> None:
    """As the launcher would have done: another spurd may have to tell the successor. Where it fails, memory has it."""
    try:
        write(dirs.run(run), seen)
    except OSError as error:
        log.warning("witness_not_written", job=run.job, attempt=run.attempt, reason=str(error))
    faults.point("leader-seen")


def _name(run: RunId) -> str:
    return f"leader-{run}"


def reap(waited_for: Callable[[int], bool], saw: Callable[[int, int], None]) -> None:
    """Reap every child that has ended. `waited_for` reaps a child that somebody waits for, and says so."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None:
            return
        if not waited_for(found.si_pid):
            saw(found.si_pid, from_waitid(found))  # a zombie still: its pid is nobody else's while we look whose
            os.waitpid(found.si_pid, 0)
