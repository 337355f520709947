"""What a start of spurd makes of the records that it finds, before it serves.

Nothing here waits for a supervisor or for the controller; what stands in the spool cannot block it (R21).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from spurd import restoration, rundirs
from spurd.claims import Inventory
from spurd.quarantine import Quarantine
from spurd.restoration import Restoration
from spurd.rundirs import Unreadable
from spurd.runs import Known
from spurd.witness import Witness
from spurstepd import pidfd
from spurstepd.ids import RunId
from spurstepd.ledger import Grant, Manifest
from spurstepd.pidfd import Likeness
from spurstepd.rundir import NodeDirs

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Found:
    """What the spool held. `obscure`: runs with a living supervisor and an unreadable record, and why."""

    known: tuple[Known, ...]
    restoration: Restoration
    obscure: tuple[tuple[RunId, str], ...]


def recover(
    dirs: NodeDirs,
    inventory: Inventory,
    before: Inventory | None,
    boot_id: str,
    witness: Witness,
    quarantine: Quarantine,
) -> Found:
    """Read every record, hold every leader, restore every claim. OSError: runs/ cannot be read."""
    manifests: list[Manifest] = []
    obscure: list[tuple[RunId, str]] = []
    for found in rundirs.read_all(dirs):
        if isinstance(found, Manifest):
            manifests.append(found)
        elif found.run is not None and rundirs.is_supervised(dirs.run(found.run)) is not False:
            # Its supervisor lives and has the ledger in memory: it is asked, and nothing is taken from under it.
            log.error("record_unreadable", name=found.name, reason=found.reason)
            obscure.append((found.run, found.reason))
        else:
            _set_aside(quarantine, found)
    alive = {one.run: _hold_leader(one, boot_id, witness) for one in manifests}
    witness.forget_others([*alive, *(run for run, _ in obscure)])
    records = [_record(one, alive[one.run]) for one in manifests]
    known = [Known(one.run, one.granted, nonce=one.nonce, deadline=_deadline(one, boot_id)) for one in manifests]
    known += [Known(run, Grant()) for run, _ in obscure]
    return Found(tuple(known), restoration.restore(inventory, records, before), tuple(obscure))


def _set_aside(quarantine: Quarantine, found: Unreadable) -> None:
    try:
        quarantine.take(found)
    except OSError as error:
        log.error("record_not_quarantined", name=found.name, reason=found.reason, error=os.strerror(error.errno or 0))


def _hold_leader(manifest: Manifest, boot_id: str, witness: Witness) -> bool | None:
    """Whether the leader lives, as far as can be told; if it does, it is held from now on."""
    if manifest.boot_id != boot_id:
        return False
    if manifest.leader is None or manifest.exit is not None:
        return None
    witness.hold(manifest.run, manifest.leader)
    likeness, fd = pidfd.open_same(manifest.leader)
    if fd is None:
        return False if likeness is Likeness.OTHER else None
    try:
        gone = pidfd.is_gone(fd)
    finally:
        os.close(fd)
    return not gone


def _record(manifest: Manifest, alive: bool | None) -> restoration.Record:
    since = min((one.since for one in manifest.obligations.values()), default=0.0)
    return restoration.Record(manifest.run, manifest.granted, restoration.life_of(manifest, alive), since)


def _deadline(manifest: Manifest, boot_id: str) -> float | None:
    return manifest.deadline_boottime if manifest.boot_id == boot_id else None


def drains(found: Found) -> Iterable[tuple[str, str]]:
    """Why the node has to be drained after that, by source."""
    for number, difference in enumerate(found.restoration.differences):
        if difference.drains:
            yield f"inventory {number}", str(difference)
    for run, reason in found.obscure:
        yield f"record {run}", f"the record of run {run} is unreadable while it lives: {reason}"
