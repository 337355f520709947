"""Waiting for something to become true, with a deadline, and saying what was seen when it did not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# A busy machine may be given more with SPUR_TEST_PATIENCE=3.
PATIENCE_S = 30.0 * float(os.environ.get("SPUR_TEST_PATIENCE", "1"))


def wait_for(
    look: Callable[[], T | None],
    what: str,
    *,
    within_s: float = PATIENCE_S,
    explain: Callable[[], str] = str,
    pause_s: float = 0.02,
) -> T:
    """What `look` gives once that is neither None nor False. AssertionError with `explain()` after the deadline."""
    deadline = time.monotonic() + within_s
    while True:
        found = look()
        if found is not None and found is not False:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {within_s:g} s\n{explain()}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, 0.25)
