"""node.json: which node the state directory belongs to, and what the machine was like when it was last used."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from spurd import inventory
from spurd.claims import Inventory
from spurstepd.ledger import LedgerError, Record
from spurstepd.manifest import ManifestUnreadable, dump, read_file, replace_file

_BYTES = 1 << 20


class WrongNode(Exception):
    """The state directory is another node's; one line."""


@dataclass(frozen=True, slots=True)
class Identity:
    node: str
    boot_id: str
    inventory: Inventory


def load(path: Path, node: str) -> Identity | None:
    """What an earlier agent left; None where there is nothing that can be read. WrongNode."""
    try:
        record = Record(json.loads(read_file(path, _BYTES)), "node")
        found = Identity(record.text("node"), record.text("boot_id"), inventory.decode(record.record("inventory")))
    except (ManifestUnreadable, LedgerError, ValueError, RecursionError):
        return None
    if found.node != node:
        raise WrongNode(f"{path} says that this state directory is node {found.node}'s: this is {node}")
    return found


def store(path: Path, identity: Identity) -> None:
    """Durably. OSError: it could not be written."""
    values = {
        "node": identity.node,
        "boot_id": identity.boot_id,
        "inventory": inventory.encode(identity.inventory),
    }
    replace_file(path, dump(values))
