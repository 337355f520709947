"""Signals as scancel names them."""

from __future__ import annotations

import signal

from spur.numerals import number


def number_of(text: str) -> int | None:
    """The number of `USR1`, `SIGusr1` or `10`; None: there is no such signal."""
    if text.isdigit():
        return number(text, signal.NSIG - 1) or None
    name = text.upper()
    try:
        return signal.Signals[name if name.startswith("SIG") and name != "SIG" else f"SIG{name}"].value
    except KeyError:
        return None
