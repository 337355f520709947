"""A daemon of a test cluster: the real program, its log, and the signals that end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from tests.patience import PATIENCE_S, wait_for

Event = dict[str, Any]


class Daemon:
    """One program that may be started and stopped many times; its log goes on in the same file.

    `mine` are the pids of all that run: a cluster may outlive a test, and answers for its daemons itself.
    """

    mine: ClassVar[set[int]] = set()

    def __init__(
        self, name: str, command: Callable[[], list[str]], log: Path, env: Mapping[str, str], ready: tuple[str, ...]
    ) -> None:
        self.name, self.log = name, log
        self._command, self._env, self._ready = command, dict(env), ready
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0  # where the log of the current start begins

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} has not been started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait: bool = True, env: Mapping[str, str] | None = None) -> None:
        """Start the program and wait until it says that it is ready. `env` is added to its environment."""
        assert not self.running, f"{self.name} runs already"
        with open(self.log, "ab") as log:
            self._began = log.tell()
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**self._env, **(env or {})}
            )
            self.mine.add(self._process.pid)
        if wait:
            for event in self._ready:
                self.wait_event(event)

    def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM, *, within_s: float = PATIENCE_S) -> int:
        """Send the signal, wait for the end, and give the exit code as subprocess does. The test fails if it stays."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self.wait(within_s)

    def wait(self, within_s: float = PATIENCE_S) -> int:
        """Wait until the program ends."""
        assert self._process is not None
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"{self.name} did not end within {within_s:g} s\n{self.tail()}") from None

    def kill(self) -> None:
        """kill -9"""
        self.stop(signal.SIGKILL)

    def restart(self, number: int = signal.SIGTERM) -> None:
        self.stop(number)
        self.start()

    def events(self, name: str | None = None, *, since_start: bool = True) -> list[Event]:
        """What it logged since its last start, or ever; events called `name` alone where one is given."""
        with open(self.log, "rb") as log:
            log.seek(self._began if since_start else 0)
            lines = log.read().rpartition(b"\n")[0].splitlines()
        events = [event for line in lines if (event := _decode(line)) is not None]
        return [event for event in events if name is None or event.get("event") == name]

    def wait_event(self, name: str, *, since_start: bool = True, within_s: float = PATIENCE_S, **fields: Any) -> Event:
        """The first event `name` with these fields, once it is logged. The test fails early where the daemon ends."""

        def look() -> Event | None:
            ended = not self.running
            for event in self.events(name, since_start=since_start):
                if fields.items() <= event.items():
                    return event
            assert not ended, f"{self.name} ended before it logged {name}\n{self.tail()}"
            return None

        return wait_for(look, f"{self.name} logs {name} {fields or ''}", within_s=within_s, explain=self.tail)

    def tail(self, lines: int = 40) -> str:
        """The end of its log, for a failure message."""
        try:
            text = self.log.read_text(errors="replace")
        except FileNotFoundError:
            text = ""
        return f"--- {self.log} ---\n" + "\n".join(text.splitlines()[-lines:])

    def discard(self) -> None:
        """End it without ceremony."""
        if self.running:
            assert self._process is not None
            os.kill(self._process.pid, signal.SIGCONT)
            self._process.kill()
        if self._process is not None:
            self._process.wait()


def _decode(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
