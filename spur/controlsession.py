"""One call of scontrol, which may carry out many keywords: how it prints, and its line to the controller."""

from __future__ import annotations

from dataclasses import dataclass, field

from spur import client
from spur.client import Controller, ControllerError
from spur.console import Console, Environ
from spur.numerals import number


@dataclass(slots=True)
class Session:
    """One call of scontrol. The controller is connected to when it is first needed, and let go at the end."""

    console: Console
    environ: Environ
    details: bool = False
    one_line: bool = False
    quiet: bool = False
    over: bool = False
    _controller: Controller | None = field(default=None)

    @property
    def controller(self) -> Controller:
        """ControllerError: none can be reached."""
        if self._controller is None:
            self._controller = client.connect(self.environ)
        return self._controller

    def close(self) -> None:
        if self._controller is not None:
            self._controller.__exit__(None, None, None)

    def say(self, line: str) -> None:
        """A message on the error stream, unless there are to be none."""
        if not self.quiet:
            self.console.say(line)

    def tell(self, error: ControllerError, line: str) -> int:
        """The controller's error in this command's words; the exit code."""
        if not self.quiet:
            client.tell(self.console, error, line)
        return 1


def is_job_id(text: str) -> bool:
    return number(text) is not None
