"""Whole numbers as options and arguments write them: plain digits, and none that are absurdly many."""

from __future__ import annotations

MAX_ID = 2**32 - 1  # of a job, a user, a group


def number(text: str, most: int = MAX_ID) -> int | None:
    """The number that `text` is; None: it is none, or more than `most`."""
    digits = text.lstrip("0") or "0"
    if not (text.isascii() and text.isdigit()) or len(digits) > len(str(most)):
        return None  # int() takes its time over thousands of digits, and in the end refuses them
    value = int(digits)
    return value if value <= most else None
