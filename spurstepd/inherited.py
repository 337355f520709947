"""A task that a dead supervisor started: its successor is not its parent, and learns its exit from those who saw it."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum

from spurstepd import pidfd, slot, witness
from spurstepd.ledger import Exit, Process
from spurstepd.pidfd import Likeness
from spurstepd.reactor import READ, Reactor, Timer
from spurstepd.rundir import RunDir
from spurstepd.settle import settle
from spurstepd.witness import Witness

WITNESS_WAIT_S = 0.5  # from the kernel's word that the leader was reaped until the launcher's, which knows its usage
LAST_WAIT_S = 10.0  # on kernels without an exit record: until the exit of a dead leader is given up as unknown

_REBOOTED = "the node was rebooted while it ran"
_ALL_DEAD = "supervisor and launcher died before it ended"
_UNSEEN = "its supervisor died, and nobody who saw its exit is left"


class Watching(Enum):
    STARTED = "started"  # `settled` will be called, or has been
    UNREADABLE = "unreadable"  # whether it lives cannot be told now


class InheritedTask:
    """Watches the process `leader` of this boot; `settled` is given its exit, once, when that is known or lost.

    `kept`: a pidfd that launcher or agent kept of it, which is then this object's for good.
    """

    def __init__(
        self, leader: Process, kept: int | None, run_dir: RunDir, reactor: Reactor, settled: Callable[[Exit], None]
    ) -> None:
        self._leader = leader
        self._fd = kept
        self._dir = run_dir
        self._reactor = reactor
        self._settled = settled
        self._witness = self._of_leader(witness.read(run_dir))
        self._settling: Timer | None = None

    def watch(self, same_boot: bool) -> Watching:
        """Hold the leader by a pidfd, or settle its exit if it has ended."""
        recorded = slot.read_exit(self._dir, self._leader)
        if recorded is not None or not same_boot:
            self._settle_soon(recorded, _REBOOTED)
            return Watching.STARTED
        if self._fd is None:
            likeness, self._fd = pidfd.open_same(self._leader)
            if likeness is Likeness.UNKNOWN:
                return Watching.UNREADABLE
            if self._fd is None:
                self._settle_soon(None, _ALL_DEAD)
                return Watching.STARTED
        fd = self._fd
        self._reactor.watch(fd, READ, lambda _: self._ended(fd))
        return Watching.STARTED

    def hear(self, seen: Witness) -> None:
        """The launcher reaped somebody of this run."""
        self._witness = self._of_leader(seen) or self._witness
        if self._witness is not None and self._settling is not None:
            self._wait_for_witness(0.0)

    def _of_leader(self, seen: Witness | None) -> Witness | None:
        """Not of a child whose supervisor died before it was recorded, and which was never let go."""
        return seen if seen is not None and seen.leader == self._leader else None

    def _ended(self, fd: int) -> None:
        """Wait until it is reaped, then for the word of the launcher, then take what is there."""
        if pidfd.is_reaped(fd):
            self._reactor.forget(fd)
            self._wait_for_witness(WITNESS_WAIT_S)
        elif self._settling is None:
            self._reactor.watch(fd, 0, lambda _: self._ended(fd))  # a zombie: only its hang-up is news
            self._wait_for_witness(LAST_WAIT_S)

    def _wait_for_witness(self, seconds: float) -> None:
        if self._settling is not None:
            self._settling.cancel()
        wait_s = 0.0 if self._witness is not None else seconds
        self._settling = self._reactor.after(wait_s, lambda: self._settle(None, _UNSEEN))

    def _settle_soon(self, recorded: Exit | None, why_lost: str) -> None:
        self._settling = self._reactor.after(0.0, lambda: self._settle(recorded, why_lost))

    def _settle(self, recorded: Exit | None, why_lost: str) -> None:
        kernel = pidfd.exit_status(self._fd) if self._fd is not None else None
        self._settled(
            settle(self._leader, slot=recorded, witness=self._witness, kernel=kernel, at=time.time(), why_lost=why_lost)
        )
