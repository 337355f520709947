"""What `scontrol update` asks for: key=value words become a change of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spur import __version__

# States that nodes can be put into, and the fewest letters that will do.
STATES = {"DOWN": 3, "DRAIN": 3, "RESUME": 3, "UNDRAIN": 3}
_NEED_REASON = frozenset({"DOWN", "DRAIN"})
_OTHER_ENTITIES = ("jobid", "partitionname", "reservationname", "stepid", "slurmctlddebug")


class UpdateError(Exception):
    """The words are no update that Spur knows; Slurm's lines."""

    def __init__(self, *lines: str) -> None:
        super().__init__(*lines)
        self.lines = lines


@dataclass(frozen=True, slots=True)
class NodeUpdate:
    """`state` and `reason` are empty where they are not to change."""

    nodes: str
    state: str
    reason: str


def read(words: Sequence[str]) -> NodeUpdate:
    """The update in `words`, in which keys may be in any case and shortened. UpdateError: it is none."""
    nodes = state = reason = None
    pairs = [word.partition("=") for word in words]
    if not any(_is("nodename", key, 4) for key, _, _ in pairs):
        raise _without_node(pairs)
    for key, equals, value in pairs:
        if not equals:
            raise UpdateError(f"scontrol: error: Invalid input: {key}  Request aborted", "slurm_update error: No error")
        if _is("nodename", key, 4):
            nodes = value
        elif _is("state", key, 1):
            state = _state(f"{key}={value}", value)
        elif _is("reason", key, 1):
            reason = value.removeprefix('"').removesuffix('"')
        else:
            raise UpdateError(f"Update of this parameter is not supported: {key}={value}", "Request aborted")
    if state is None and reason is None:
        raise UpdateError("No changes specified")
    if state in _NEED_REASON and not reason:
        raise UpdateError("You must specify a reason when DOWNING or DRAINING a node. Request denied")
    return NodeUpdate(nodes or "", state or "", reason or "")


def _is(name: str, key: str, least: int) -> bool:
    return len(key) >= least and name.startswith(key.lower())


def _without_node(pairs: Sequence[tuple[str, str, str]]) -> UpdateError:
    for key, _, _ in pairs:
        for entity in _OTHER_ENTITIES:
            if _is(entity, key, 3):
                return UpdateError(f"scontrol: error: update {key} is not supported by Spur {__version__}")
    return UpdateError(
        "No valid entity in update command",
        'Input line must include "NodeName", "PartitionName", "Reservation", "JobId", or "SlurmctldDebug"',
    )


def _state(word: str, text: str) -> str:
    for name, least in STATES.items():
        if len(text) >= least and name.startswith(text.upper()):
            return name
    raise UpdateError(
        f"Invalid input: {word}",
        "Request aborted",
        f"Valid states are: {' '.join(STATES)}",
        "Not all states are valid given a node's prior state",
    )
