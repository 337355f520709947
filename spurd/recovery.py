"""What a start of spurd makes of the records that it finds, before it serves.

Nothing here waits for a supervisor or for the controller; what stands in the spool cannot block it (R21).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from spurd import quarantine, restoration, rundirs
from spurd.claims import Inventory
from spurd.restoration import Restoration
from spurd.rundirs import Unreadable
from spurd.runs import Known
from spurd.runstate import of_manifest
from spurd.witness import Witness
from spurstepd import pidfd
from spurstepd.ids import RunId
from spurstepd.ledger import Grant, Manifest
from spurstepd.pidfd import Likeness
from spurstepd.rundir import NodeDirs

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Found:
    """What the spool held. `misplaced`: what was no run at all, and why not."""

    known: tuple[Known, ...]
    restoration: Restoration
    misplaced: tuple[tuple[str, str], ...]


def recover(dirs: NodeDirs, inventory: Inventory, before: Inventory | None, boot_id: str, witness: Witness) -> Found:
    """Read every record, hold every leader, restore every claim. OSError: runs/ cannot be read."""
    manifests: list[Manifest] = []
    obscure: list[RunId] = []
    misplaced: list[tuple[str, str]] = []
    for found in rundirs.read_all(dirs):
        match found:
            case Manifest():
                manifests.append(found)
            case Unreadable(name, None, reason):
                misplaced.append((name, reason))
                _set_aside(dirs, found, boot_id)
            case Unreadable(name, run, reason) if run is not None and _may_live(dirs, run):
                # Its supervisor lives and has the ledger in memory: it is asked, and nothing is taken from under it.
                log.error("record_unreadable", record=name, reason=reason)
                obscure.append(run)
            case Unreadable() if (substitute := _set_aside(dirs, found, boot_id)) is not None:
                manifests.append(substitute)
            case _:
                pass
    alive = {one.run: _hold_leader(one, boot_id, witness) for one in manifests}
    witness.forget_others([*alive, *obscure])
    records = [_record(one, alive[one.run]) for one in manifests]
    known = [
        Known(one.run, one.granted, nonce=one.nonce, state=of_manifest(one), deadline=_deadline(one, boot_id))
        for one in manifests
    ]
    known += [Known(run, Grant()) for run in obscure]
    restored = restoration.restore(inventory, records, before, obscure)
    return Found(tuple(known), restored, tuple(misplaced))


def _may_live(dirs: NodeDirs, run: RunId) -> bool:
    path = dirs.run(run).path
    return path.is_dir() and not path.is_symlink() and rundirs.is_supervised(dirs.run(run)) is not False


def _set_aside(dirs: NodeDirs, found: Unreadable, boot_id: str) -> Manifest | None:
    """The record that took its place; None where there is none. The controller then misses the run and ends it."""
    try:
        return quarantine.set_aside(dirs, found, boot_id)
    except OSError as error:
        log.error("record_not_quarantined", record=found.name, reason=found.reason, error=str(error))
        return None


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
    for name, reason in found.misplaced:
        yield f"record {name}", f"{name} was found among the records of runs: {reason}"
