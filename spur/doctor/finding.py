"""What a check came to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Grade(Enum):
    """The word that begins a line."""

    OK = "ok"
    LACKING = "lacking"  # Spur works, and something is weaker or missing
    BROKEN = "broken"  # a daemon will not start, or a promise does not hold


@dataclass(frozen=True, slots=True)
class Finding:
    """`text` says what is there; where something is not, what is missing and what that costs."""

    grade: Grade
    subject: str
    text: str

    def line(self) -> str:
        return f"{self.grade.value:<7} {self.subject}: {self.text}"


Check = Callable[[], Finding]


def ok(subject: str, text: str) -> Finding:
    return Finding(Grade.OK, subject, text)


def lacking(subject: str, text: str) -> Finding:
    return Finding(Grade.LACKING, subject, text)


def broken(subject: str, text: str) -> Finding:
    return Finding(Grade.BROKEN, subject, text)
