"""What we ask of the cluster during a chaos run, and what it said: commands of a user, in threads of their own.

A controller may be away for any length; a command that waits for it must not hold up the next fault.
"""

from __future__ import annotations

import subprocess
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.audit import Fate
from tests.chaos.jobs import Ending, JobPlan, natural_end, options, script
from tests.cluster import Caller, Result

_PATIENCE_S = 60.0
_RETRY_S = 1.0
_OVER = ("already completing or completed", "Invalid job id specified")


@dataclass(slots=True)
class Request:
    """One job. `number` is there once sbatch has told it."""

    plan: JobPlan
    submission: Future[int | None]
    submitted: Fate = Fate.UNCLEAR
    cancelled: Fate = Fate.NONE
    said: list[str] = field(default_factory=list)  # by commands that failed


class Requests:
    """Owns the threads."""

    def __init__(self, caller: Caller, traces: Path) -> None:
        self._caller, self._traces = caller, traces
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="request")
        self._shut, self._closing = threading.Event(), threading.Event()
        self._cancels: list[Future[None]] = []
        self._cancelled: set[int] = set()
        self.jobs: dict[int, Request] = {}
        self.requeues = 0  # that the controller agreed to

    def submit(self, job: JobPlan) -> None:
        future: Future[int | None] = Future()
        request = self.jobs[job.index] = Request(job, future)
        self._pool.submit(self._submit, request)

    def cancel(self, index: int) -> None:
        """Until the controller has said yes or no. A job that was never taken is not cancelled."""
        self._cancelled.add(index)
        self._cancels.append(self._pool.submit(self._cancel, self.jobs[index]))

    def requeue(self, index: int) -> None:
        """Once, whatever comes of it: the job runs again, or does not."""
        self._pool.submit(self._requeue, self.jobs[index])

    def shut(self) -> None:
        """What has not been submitted is not submitted any more."""
        self._shut.set()

    def cancel_endless(self) -> None:
        """Those that would be there for ever and are not cancelled yet."""
        for index, request in self.jobs.items():
            endless = natural_end(request.plan) is None and request.plan.ending is not Ending.OVERRUN
            if endless and index not in self._cancelled:
                self.cancel(index)

    def settle(self, within_s: float) -> list[str]:
        """Wait for all answers; what did not come."""
        futures: list[Future[Any]] = [*(one.submission for one in self.jobs.values()), *self._cancels]
        try:
            for future in futures:
                future.result(within_s)
        except TimeoutError:
            return ["a command hung"]
        finally:
            self._closing.set()
            self._pool.shutdown(wait=False, cancel_futures=True)
        return []

    def _submit(self, request: Request) -> None:
        try:
            request.submission.set_result(self._sbatch(request))
        except BaseException as error:  # whoever waits for the number is to see it
            request.submission.set_exception(error)

    def _sbatch(self, request: Request) -> int | None:
        plan = request.plan
        if self._shut.is_set():
            request.submitted = Fate.NONE  # it came too late to be sent
            return None
        result = self._run(request, "sbatch", "--parsable", *options(plan), script=script(plan, self._traces))
        if result is None or result.returncode:
            return None
        request.submitted = Fate.TAKEN
        return int(result.stdout.split(";")[0])

    def _requeue(self, request: Request) -> None:
        number = request.submission.result(_PATIENCE_S)
        if number is not None:
            result = self._run(request, "scontrol", "requeue", str(number))
            self.requeues += result is not None and not result.returncode

    def _cancel(self, request: Request) -> None:
        number = request.submission.result(_PATIENCE_S)
        while number is not None and not self._closing.is_set():
            result = self._run(
                request, "scancel", "-v", str(number)
            )  # without -v it is silent about jobs that are over
            before, request.cancelled = request.cancelled, _fate_of(result)
            if request.cancelled is Fate.REFUSED and before is Fate.UNCLEAR:
                request.cancelled = Fate.UNCLEAR  # over for a reason that may be the call before
                return
            if request.cancelled is not Fate.UNCLEAR:
                return
            self._closing.wait(_RETRY_S)

    def _run(self, request: Request, *command: str, script: str = "") -> Result | None:
        try:
            result = self._caller.run(*command, stdin=script, within_s=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            request.said.append(f"{command[0]} hung")
            return None
        if result.returncode:
            request.said.append(f"{command[0]}: {result.returncode}: {result.stderr.strip()}")
        return result


def _fate_of(result: Result | None) -> Fate:
    if result is None:
        return Fate.UNCLEAR
    if any(text in result.stderr for text in _OVER):
        return Fate.REFUSED
    return Fate.UNCLEAR if result.returncode or "error" in result.stderr else Fate.TAKEN
