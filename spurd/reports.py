"""The reports on one run: each is sent until it is answered or a later one takes its place; forever (R14)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from spurd import messages
from spurd.controller import Controller, Pause, Unanswered
from spurd.runs import Known, Report, due_report
from spurstepd import faults


class Reporter:
    """Tells the controller what `due_report` finds in what `look` gives; `answered` is called with each answer."""

    def __init__(
        self,
        node: str,
        controller: Controller,
        look: Callable[[], Known],
        answered: Callable[[Report, str], None],
        log: Any,
    ) -> None:
        self._node = node
        self._controller = controller
        self._look = look
        self._answered = answered
        self._log = log
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """What `look` gives is not what it was."""
        self._changed.set()

    async def run(self) -> None:
        """For as long as this is awaited."""
        pause = Pause()
        while True:
            self._changed.clear()
            due = due_report(self._look())
            if due is None:
                await self._changed.wait()
                continue
            try:
                await self._send(due)
                pause.reset()
            except Unanswered as error:
                self._log.debug("report_not_answered", report=due.name, reason=str(error))
                await self._pause(due, pause.next_s())

    async def _pause(self, failed: Report, pause_s: float) -> None:
        """Until the time is over, the controller answers somebody, or something later is to be told."""
        until = time.monotonic() + pause_s
        answer = asyncio.create_task(self._controller.wait_answered(pause_s))
        try:
            while due_report(self._look()) is failed and not answer.done() and time.monotonic() < until:
                self._changed.clear()
                change = asyncio.create_task(self._changed.wait())
                await asyncio.wait([answer, change], return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
        finally:
            answer.cancel()

    async def _send(self, due: Report) -> None:
        """Unanswered."""
        if due is Report.FINISHED:
            faults.point("report-due")
        reply = await self._controller.report(messages.report(self._node, self._look(), due))
        answer = messages.ANSWERS.get(reply.answer)
        if answer is None:
            raise Unanswered(f"ReportRun: an answer of kind {reply.answer}")
        self._log.info("report_answered", report=due.name, answer=answer)
        if due is Report.FINISHED:
            faults.point("report-answered")
        self._answered(due, answer)
