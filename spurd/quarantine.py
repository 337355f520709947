"""Records that could not be understood: set aside for an admin, and the run ended the way every run is ended.

In place of what was set aside a new record is made, which says the little that is known: that nobody knows how the
run ended. A supervisor takes it from there: it ends what may be left of the run, waits for the controller's answer and
clears away. So a lost record costs its run the exit, and the node a drain, and neither a process nor a path.

    quarantine/42.1.1760000000000000000     set aside at that time, nanoseconds since the epoch
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from pathlib import Path

import structlog

from spurd import rundirs
from spurd.rundirs import Unreadable
from spurstepd.ids import RunId
from spurstepd.launchplan import Hooks, LaunchPlan
from spurstepd.ledger import (
    Duty,
    Exit,
    ExitSource,
    Manifest,
    Obligation,
    Progress,
    Verdict,
    VerdictKind,
    owed,
)
from spurstepd.manifest import sync_directory
from spurstepd.rundir import NodeDirs

_KILL_WAIT_S = 30.0
_UNKILLABLE_S = 60.0

log = structlog.get_logger()


def set_aside(dirs: NodeDirs, found: Unreadable, boot_id: str) -> Manifest | None:
    """Move the record away and put a new one in its place; None where its name names no run.

    OSError: no new one could be made, or the old one not be moved.
    """
    aside = dirs.quarantine / f"{found.name}.{time.time_ns()}"
    if found.run is None:
        _move(dirs, found, aside)
        return None
    ledger = substitute(found.run, found.ledger, f"{found.reason}; it is kept in {aside}", boot_id, time.time())
    made = rundirs.build(dirs, ledger, _idle_plan(ledger), b"")  # first: on a full disk all stays as it was
    _move(dirs, found, aside)
    made.rename(dirs.run(found.run).path)
    sync_directory(dirs.runs)
    return ledger


def _move(dirs: NodeDirs, found: Unreadable, aside: Path) -> None:
    (dirs.runs / found.name).rename(aside)
    for directory in (dirs.quarantine, dirs.runs):
        sync_directory(directory)
    log.error("record_quarantined", record=found.name, reason=found.reason, now_at=str(aside))


def substitute(run: RunId, known: Manifest | None, reason: str, boot_id: str, at: float) -> Manifest:
    """The record of a run whose own, or the plan beside it, is lost. `known`: the ledger, where that could be read.

    An epilog that may have been owed is not run: whether it ran before is not known, and what it needs is lost.
    """
    text = f"the record of run {run} was lost: {reason}"
    if known is None:
        known = Manifest(run, boot_id, secrets.token_hex(16), 0, owed(prolog=False, epilog=True, at=at))
    obligations = dict(known.obligations)
    for duty in (Duty.PROLOG, Duty.EPILOG):
        if not obligations[duty].progress.settled:
            obligations[duty] = Obligation(Progress.UNKNOWN, at, text)
    lost = known.leader is None and known.exit is None
    return replace(
        known,
        obligations=obligations,
        verdict=known.verdict or Verdict(VerdictKind.NODE_LOST, 0, at, text),
        exit=Exit(ExitSource.UNKNOWN, None, at, detail=text) if lost else known.exit,
        drain=known.drain or text,
        drain_noted=False,
    )


def _idle_plan(ledger: Manifest) -> LaunchPlan:
    """For a supervisor that only has to clear away."""
    return LaunchPlan(
        argv=(),
        environment=(),
        cwd="/",
        uid=ledger.uid,
        gid=ledger.uid,
        groups=(),
        umask=0o077,
        stdin="/dev/null",
        stdout="/dev/null",
        stderr="/dev/null",
        append=True,
        limits=(),
        kill_wait_s=_KILL_WAIT_S,
        unkillable_s=_UNKILLABLE_S,
        time_limit_s=None,
        overrun_s=0.0,
        may_start=False,
        hooks=Hooks(),
    )
