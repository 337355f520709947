"""Amounts of memory as Slurm's commands read and print them. The unit is the mebibyte throughout."""

from __future__ import annotations

import re

MAX_MB = 2**44  # 16 EiB: what 64 bits of bytes hold

_SIZE = re.compile(r"([0-9]{1,16})([KMGT]B?)?", re.IGNORECASE)
_FACTOR_KB = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}


def parse_size(text: str) -> int:
    """The MiB of `4000`, `1500K`, `50M`, `16GB` or `1T`, rounded up. ValueError: another form, or too much."""
    match = _SIZE.fullmatch(text.strip(" "))
    if match is None:
        raise ValueError(f"{text[:40]!r} is no amount of memory: a whole number and K, M, G or T")
    unit = (match[2] or "M")[0].upper()
    size_mb = -(-int(match[1]) * _FACTOR_KB[unit] // 1024)
    if size_mb >= MAX_MB:
        raise ValueError(f"{text[:40]!r} is more memory than there can be")
    return size_mb


def format_size(size_mb: int) -> str:
    """`50M`, `4000M`, `1.50G`, `2T`: the largest unit that half units are exact in; `0` for nothing."""
    if size_mb == 0:
        return "0"
    number, units = float(size_mb), "MGTP"
    # Slurm goes up a unit only while nothing finer than a half would be lost.
    while number >= 1024 and number == int(number) and int(number) % 512 == 0 and len(units) > 1:
        number, units = number / 1024, units[1:]
    return f"{int(number)}{units[0]}" if number == int(number) else f"{number:.2f}{units[0]}"
