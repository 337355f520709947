"""The ledger that a living supervisor holds: in memory, on disk, and what happens when the disk is full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spurstepd import faults, manifest, slot
from spurstepd.eventlog import EventLog
from spurstepd.ledger import Manifest
from spurstepd.reactor import Reactor
from spurstepd.rundir import RunDir

RETRY_S = 1.0


class LedgerFile:
    """The one writer of a run's manifest. `changed` is called after every change.

    A ledger that cannot be stored goes into the spare half of the slot, whose blocks are there already. One that fits
    nowhere is kept in memory, where the socket answers from, and is stored as soon as there is room.
    """

    def __init__(self, run_dir: RunDir, log: EventLog, reactor: Reactor, changed: Callable[[], None]) -> None:
        self._run_dir = run_dir
        self._log = log
        self._reactor = reactor
        self._changed = changed
        self._retrying = False
        self.value = slot.load_latest(run_dir)
        self.stored = True

    def hold(self, value: Manifest) -> None:
        """Take `value` as the ledger; it is stored with the next one."""
        self.value = value
        self._changed()

    def put(self, value: Manifest) -> bool:
        """Take `value` as the ledger, whether or not it can be stored now; True where it is durable."""
        value = replace(value, revision=self.value.revision + 1)
        durable = self._store(value)
        self.value = value
        self._changed()
        return durable

    def put_durably(self, value: Manifest) -> bool:
        """Take `value` as the ledger if it can be made durable, as everything must be that permits an act."""
        value = replace(value, revision=self.value.revision + 1)
        if not self._store(value):
            return False
        self.value = value
        self._changed()
        return True

    def _store(self, value: Manifest) -> bool:
        try:
            faults.point("manifest-write")
            manifest.store(self._run_dir, value)
            self.stored = True
            return True
        except OSError as error:
            self._log.event("manifest_not_stored", error=str(error))
        self.stored = False
        self._retry_later()
        try:
            faults.point("spare-write")
            slot.write_spare(self._run_dir, value)
            return True
        except (OSError, slot.SlotFull) as error:
            self._log.event("spare_not_stored", error=str(error))
            return False

    def _retry_later(self) -> None:
        if not self._retrying:
            self._retrying = True
            self._reactor.after(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._retrying = False
        if not self.stored and self._store(self.value):
            self._changed()
