"""Runs with real processes in them, for the tests of every kind of place."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from spurstepd import cgroups
from spurstepd.cgroups import Hierarchy, Leaf, Limits, RunCgroup
from spurstepd.ids import RunId

PATIENCE_S = 20.0

FORK_BOMB = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
EAT_MEMORY = "a = bytearray({bytes})\nfor i in range(0, len(a), 4096): a[i] = 1\nprint('ate it')"
DAEMON = "setsid sh -c 'setsid sleep 1000 & exec sleep 1001' </dev/null >/dev/null 2>&1 & "


class Places:
    """Makes runs, starts processes in them, and leaves nothing of both behind."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.hierarchy = hierarchy
        self._runs: list[RunCgroup] = []
        self._leaves: list[Leaf] = []
        self._started: list[subprocess.Popen[str]] = []

    def need(self, controller: str) -> None:
        """Skip the test, aloud, where runs are not limited by `controller`."""
        if not self.hierarchy.limits(controller):
            pytest.skip(f"{self.hierarchy.kind.value}: no {controller} controller for runs here")

    def create(self, limits: Limits | None = None, *, job: int | None = None) -> RunCgroup:
        number = len(self._runs) + 1 if job is None else job
        run = cgroups.create(self.hierarchy, RunId(number, 1), limits or Limits())
        self._runs.append(run)
        return run

    def start(self, run: RunCgroup, *argv: str, leaf: str = "batch") -> subprocess.Popen[str]:
        """`argv` in a leaf of `run`, entered before the exec; its stdout is a pipe."""
        place = run.leaf(leaf)
        self._leaves.append(place)
        environment = {**os.environ, **dict(word.split("=", 1) for word in place.environment)}
        process = subprocess.Popen(
            argv, preexec_fn=place.enter, env=environment, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        self._started.append(process)
        return process

    def python(self, run: RunCgroup, source: str, leaf: str = "batch") -> subprocess.Popen[str]:
        return self.start(run, sys.executable, "-S", "-E", "-c", source, leaf=leaf)

    def shell(self, run: RunCgroup, script: str, leaf: str = "batch") -> subprocess.Popen[str]:
        return self.start(run, "/bin/sh", "-c", script, leaf=leaf)

    def clear(self) -> None:
        for run in self._runs:
            run.kill_all()
            await_empty(run)
        for process in self._started:
            process.kill()
            process.communicate()
        for leaf in self._leaves:
            leaf.close()
        for run in self._runs:
            assert run.remove(PATIENCE_S), run.left()


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for what no event tells."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def await_populated(run: RunCgroup, populated: bool) -> None:
    """Wait by the run's own events, where it has them."""
    events = run.events_fd()
    if events is None:
        until(lambda: run.populated() is populated, f"populated {populated}, left: {run.left()}")
        return
    waiting = select.poll()
    waiting.register(events, select.POLLIN)
    while run.populated() is not populated:
        assert waiting.poll(PATIENCE_S * 1000), f"no event, left: {run.left()}"


def await_empty(run: RunCgroup) -> None:
    """Wait until nobody is left, killing again where one kill is not complete."""
    if run.events_fd() is None:
        until(lambda: not run.populated() or run.kill_all() is not None, f"left: {run.left()}")
    else:
        await_populated(run, False)


def first_line(process: subprocess.Popen[str]) -> str:
    """What `process` says first; waits for it."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")
