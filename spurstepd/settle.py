"""Who knows the exit: the one decision about it, pure.

Never a default: where nobody saw it, the exit is UNKNOWN and says so.
"""

from __future__ import annotations

from dataclasses import replace

from spurstepd.ledger import Exit, ExitSource, Process
from spurstepd.waitstatus import sentence
from spurstepd.witness import Witness


def settle(
    leader: Process, *, slot: Exit | None, witness: Witness | None, kernel: int | None, at: float, why_lost: str
) -> Exit:
    """The exit of `leader`, which is known to have ended, from all who may have seen it.

    `slot` is the record of the supervisor that waited for it. `witness` is what the launcher reaped, `kernel` the raw
    status behind a pidfd. Two that differ are both kept: the first counts, `detail` names the other. `why_lost` is the
    sentence for the case in which there is none; `at` the wall-clock time for one that carries none.
    """
    if slot is not None:
        return slot
    if witness is not None and witness.leader == leader:
        return _beside(witness.exit, kernel)
    if kernel is not None:
        return Exit(ExitSource.KERNEL, kernel, at)
    return Exit(ExitSource.UNKNOWN, None, at, detail=why_lost)


def _beside(seen: Exit, kernel: int | None) -> Exit:
    if kernel is None or kernel == seen.status:
        return seen
    return replace(seen, detail=f"the kernel's record differs: {sentence(kernel)} (raw {kernel})")
