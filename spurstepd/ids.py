"""The names of what a supervisor works on."""

from __future__ import annotations

import re
from dataclasses import dataclass

_DIRECTORY = re.compile(r"([1-9][0-9]{0,9})\.([1-9][0-9]{0,9})")


@dataclass(frozen=True, slots=True, order=True)
class RunId:
    """One attempt at a job on this node. Both numbers start at 1; 0 is never a wildcard."""

    job: int
    attempt: int

    def __post_init__(self) -> None:
        if self.job < 1 or self.attempt < 1:
            raise ValueError(f"no run can be called {self.job}.{self.attempt}: both numbers start at 1")

    def __str__(self) -> str:
        return f"{self.job}.{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> RunId:
        """The run that a directory called `text` belongs to. ValueError: no run is called so."""
        match = _DIRECTORY.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not JOB.ATTEMPT")
        return cls(int(match[1]), int(match[2]))
