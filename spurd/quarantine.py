"""Records that could not be understood: set aside, shown, and the run ended where the controller keeps its book.

What was set aside stays for an admin to look at. Its name tells how far it is, so that it is reported once:

    quarantine/42.1.1760000000000000000             set aside at that time (nanoseconds since the epoch)
    quarantine/42.1.1760000000000000000.reported    the controller has been told
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import structlog

from spur.pb import common_pb2, spurctld_pb2
from spurd import messages, rundirs
from spurd.controller import Controller, Pause, Unanswered
from spurd.rundirs import Unreadable
from spurstepd.ids import RunId
from spurstepd.ledger import Exit, ExitSource
from spurstepd.rundir import NodeDirs

_REPORTED = ".reported"

log = structlog.get_logger()


class Quarantine:
    """What is set aside and not reported yet."""

    def __init__(self, dirs: NodeDirs, node: str, controller: Controller) -> None:
        self._dirs = dirs
        self._node = node
        self._controller = controller
        self._reasons: dict[Path, str] = {}
        for name in sorted(os.listdir(dirs.quarantine)):
            if not name.endswith(_REPORTED):
                self._reasons[dirs.quarantine / name] = "its record was set aside by an earlier start of spurd"

    def take(self, found: Unreadable) -> None:
        """Set one aside. OSError: it could not be moved."""
        aside = rundirs.quarantine(self._dirs, found)
        self._reasons[aside] = found.reason
        log.error("record_quarantined", name=found.name, reason=found.reason, now_at=str(aside))

    def drains(self) -> dict[str, str]:
        """Why the node is to be drained, by source."""
        return {
            f"quarantine {path.name}": f"record of run {_name(path)} set aside in {path}: {reason}"
            for path, reason in self._reasons.items()
        }

    def statuses(self) -> list[spurctld_pb2.RunStatus]:
        return [self._status(run, reason) for path, reason in self._reasons.items() if (run := _run(path)) is not None]

    def _status(self, run: RunId, reason: str) -> spurctld_pb2.RunStatus:
        ended = Exit(ExitSource.UNKNOWN, None, time.time(), detail=f"the record of the run was lost: {reason}")
        return spurctld_pb2.RunStatus(
            run=common_pb2.RunId(job_id=run.job, attempt=run.attempt),
            phase="quarantined",
            exit=messages.exit_record(ended),
        )

    async def report(self) -> None:
        """Tell the controller of each until it answers."""
        pause = Pause()
        while self._reasons:
            path = next(iter(self._reasons))
            try:
                await self._tell(path)
            except Unanswered as error:
                log.debug("report_not_answered", report="quarantined", reason=str(error))
                await self._controller.wait_answered(pause.next_s())
                continue
            pause.reset()
            os.rename(path, path.with_name(path.name + _REPORTED))
            self._reasons.pop(path)

    async def _tell(self, path: Path) -> None:
        """Unanswered."""
        run = _run(path)
        if run is None:
            return
        reason = self._reasons[path]
        status = self._status(run, reason)
        drain = self.drains()[f"quarantine {path.name}"]
        for phase in (spurctld_pb2.ReportRunRequest.FINISHED, spurctld_pb2.ReportRunRequest.RELEASED):
            request = spurctld_pb2.ReportRunRequest(node=self._node, phase=phase, status=status, drain_reason=drain)
            await self._controller.report(request)


def _name(path: Path) -> str:
    return path.name.rpartition(".")[0]


def _run(path: Path) -> RunId | None:
    try:
        return RunId.parse(_name(path))
    except ValueError:
        return None
