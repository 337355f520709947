"""The log of launcher and supervisors: one JSON line per event, appended to a file of the agent's.

A file and not the agent's stderr, since they outlive the agent. A log that cannot be written loses lines and nothing
else: no run waits or dies for it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


class EventLog:
    """Where events go, with the values bound that every line of this process carries."""

    def __init__(self, path: Path, **bound: object) -> None:
        self._path = path
        self._bound = bound
        self._fd: int | None = None

    def bind(self, **more: object) -> EventLog:
        """The same log for a process forked off, with more values in every line."""
        child = EventLog(self._path, **self._bound, **more)
        child._fd = self._fd
        return child

    def event(self, event: str, **values: object) -> None:
        """Append a line. Events are in the past tense and constant, what varies is in `values`."""
        line = {"at": round(time.time(), 3), "event": event, "pid": os.getpid(), **self._bound, **values}
        data = json.dumps(line, default=str).encode() + b"\n"
        try:
            os.write(self._open(), data)
        except OSError:
            self._fd = None  # the file may have been moved or the disk be full: try afresh with the next line

    def _open(self) -> int:
        if self._fd is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self._path, flags, 0o600)
        return self._fd
