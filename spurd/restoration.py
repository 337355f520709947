"""The claims of the runs that were found on disk, and which run has to go where two claim the same.

Pure functions of records that the agent reads at its start, before it takes the first launch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

from spurd.claims import Claims, Difference, Inventory, Refusal, decide, flaw, key, names
from spurstepd.ids import RunId
from spurstepd.ledger import Device, Duty, Grant, Manifest, Progress


class Life(Enum):
    """What is known of a run whose record was found, from the strongest title to its claim to the weakest."""

    ALIVE = "its leader lives"
    UNKNOWN = "whether it lives is not known"
    WAITING = "it has not started"
    ENDING = "it is being ended"


_RANK = {life: rank for rank, life in enumerate(Life)}


def life_of(manifest: Manifest, leader_alive: bool | None) -> Life:
    """What the ledger of a run and a look at its leader say; `leader_alive` None: it could not be established."""
    if manifest.verdict is not None or manifest.exit is not None or leader_alive is False:
        return Life.ENDING
    if leader_alive:
        return Life.ALIVE
    return Life.WAITING if manifest.progress(Duty.RUN) is Progress.OWED else Life.UNKNOWN


@dataclass(frozen=True, slots=True)
class Record:
    """What a manifest says of its run. `since`: when the run came to the node, in seconds since the epoch."""

    run: RunId
    granted: Grant
    life: Life
    since: float


@dataclass(frozen=True, slots=True)
class Conflict:
    """Of records that claim the same, `lost` has to be ended, for `reason`, which names it and those that were kept."""

    lost: RunId
    kept: tuple[RunId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Restoration:
    claims: Claims
    conflicts: tuple[Conflict, ...]
    differences: tuple[Difference, ...]


def restore(
    inventory: Inventory, records: Iterable[Record], before: Inventory | None = None, obscure: Iterable[RunId] = ()
) -> Restoration:
    """The claims of all runs that were found, whatever the order of `records`.

    Of records that claim the same, those are kept first whose leader lives, then those that have been here longer,
    then the lower job and attempt: what runs is never ended for something that has only been planned, and what has
    cost most is kept. A run is ended for what another run holds, never because the node has lost something:
    that is a difference, which drains. `before` is what the node had for its last agent: where memory has shrunk
    since, records that fitted then still do. `obscure` runs live, but their records cannot be read.
    """
    ordered = sorted(records, key=lambda record: (_RANK[record.life], record.since, record.run))
    if len({record.run for record in ordered}) < len(ordered):
        raise ValueError("two records of one run")
    grants = {record.run: _sound(inventory, record.granted) for record in ordered}
    room = _widened(inventory, grants.values(), before)
    held: dict[RunId, Grant] = {}
    lapsing: dict[RunId, Grant] = {}
    conflicts = []
    for run, grant in grants.items():
        decision = decide(room, held.items(), grant)
        if isinstance(decision, Grant):
            held[run] = decision
            continue
        lapsing[run] = grant
        reason = f"run {run} ended, run {names(decision.against)} kept: both claim the same: {decision.reason}"
        conflicts.append(Conflict(run, decision.against, reason))
    claims = Claims(inventory, MappingProxyType(held), MappingProxyType(lapsing), frozenset(obscure))
    flaws = [_unsound(record.run, found) for record in ordered if (found := flaw(record.granted))]
    return Restoration(claims, tuple(conflicts), (*flaws, *claims.missing()))


def _sound(inventory: Inventory, grant: Grant) -> Grant:
    """The record in terms of this inventory. One that contradicts itself still blocks what it names, once."""
    devices = {key(one): one for one in (_recognised(inventory, device) for device in grant.gpus)}
    return Grant(tuple(dict.fromkeys(grant.cpus)), max(grant.memory_mb, 0), tuple(devices.values()))


def _recognised(inventory: Inventory, device: Device) -> Device:
    """The device under the name it has now, where the configuration has begun or ceased to tell its file."""
    if any(key(one) == key(device) for one in inventory.gpus):
        return device
    for one in inventory.gpus:
        if (one.name, one.index) == (device.name, device.index) and not (one.file and device.file):
            return one
    return device


def _unsound(run: RunId, found: Refusal) -> Difference:
    return Difference(run, "record", f"the record of run {run} is unsound: {found.reason}", drains=True)


def _widened(inventory: Inventory, grants: Collection[Grant], before: Inventory | None) -> Inventory:
    """The inventory with all that records name, so that only another run can be in the way of one."""
    devices = {key(device): device for grant in grants for device in grant.gpus}
    devices |= {key(device): device for device in inventory.gpus}
    memory = [inventory.memory_mb, *(grant.memory_mb for grant in grants), *([before.memory_mb] if before else [])]
    return replace(
        inventory,
        cpus=tuple(sorted({*inventory.cpus, *(cpu for grant in grants for cpu in grant.cpus)})),
        memory_mb=max(memory),
        gpus=tuple(devices.values()),
    )
