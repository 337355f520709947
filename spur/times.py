"""Times as Slurm's commands read and print them.

Limits are seconds here; Slurm keeps minutes, so a command that takes a limit from a user rounds it up with
`round_up_to_minutes`. Points of time are seconds since the epoch, for humans only.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping

UNLIMITED = 0xFFFFFFFF  # seconds; as the contracts carry it

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_N = r"([0-9]{1,12})"
# A field that a form does not have stands for zero. Slurm lets every field run over: 1:99 is 2:39.
_FORMS = (
    (re.compile(_N), (_MINUTE,)),
    (re.compile(f"{_N}:{_N}"), (_MINUTE, 1)),
    (re.compile(f"{_N}:{_N}:{_N}"), (_HOUR, _MINUTE, 1)),
    (re.compile(f"{_N}-{_N}"), (_DAY, _HOUR)),
    (re.compile(f"{_N}-{_N}:{_N}"), (_DAY, _HOUR, _MINUTE)),
    (re.compile(f"{_N}-{_N}:{_N}:{_N}"), (_DAY, _HOUR, _MINUTE, 1)),
)
_STANDARD = "%Y-%m-%dT%H:%M:%S"


def parse_time_limit(text: str) -> int:
    """The seconds of M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; UNLIMITED for that word, INFINITE, -1 and 0.

    The forms are those of sbatch(1) --time. ValueError: another form, or more than 32 bits of seconds hold.
    """
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return UNLIMITED
    for form, units in _FORMS:
        if match := form.fullmatch(text):
            seconds = sum(int(number) * unit for number, unit in zip(match.groups(), units, strict=True))
            if seconds >= UNLIMITED:
                raise ValueError(f"time limit {text!r} is more than {format_duration(UNLIMITED - 1)}")
            return seconds or UNLIMITED
    raise ValueError(f"{text[:40]!r} is no time limit: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S or UNLIMITED")


def round_up_to_minutes(limit_s: int) -> int:
    """`limit_s` as Slurm takes it from a user: whole minutes, in seconds."""
    if limit_s == UNLIMITED:
        return UNLIMITED
    return min(-(-limit_s // _MINUTE) * _MINUTE, UNLIMITED)


def format_duration(seconds: float) -> str:
    """`1-02:03:04`, `00:00:05`: how scontrol prints a span; INVALID where it is negative."""
    if seconds < 0:
        return "INVALID"
    days, rest = divmod(int(seconds), _DAY)
    clock = f"{rest // _HOUR:02}:{rest % _HOUR // _MINUTE:02}:{rest % _MINUTE:02}"
    return f"{days}-{clock}" if days else clock


def format_elapsed(seconds: float) -> str:
    """`1-02:03:04`, `2:03:04`, `0:05`: how squeue prints a span; INVALID where it is negative."""
    if seconds < 0:
        return "INVALID"
    days, rest = divmod(int(seconds), _DAY)
    hours, minutes, left = rest // _HOUR, rest % _HOUR // _MINUTE, rest % _MINUTE
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def format_limit(limit_s: int) -> str:
    """A limit as scontrol prints it."""
    return "UNLIMITED" if limit_s == UNLIMITED else format_duration(limit_s)


def format_short_limit(limit_s: int, unlimited: str = "UNLIMITED") -> str:
    """A limit as squeue (`UNLIMITED`) and sinfo (`infinite`) print it."""
    return unlimited if limit_s == UNLIMITED else format_elapsed(limit_s)


def format_instant(at: float, environ: Mapping[str, str], *, unset: str = "Unknown", now: float | None = None) -> str:
    """The local time `at` as SLURM_TIME_FORMAT of `environ` asks: `standard`, `relative` or a strftime format.

    0 and less stand for a time that is not known, printed as `unset`. A format that says nothing is ignored.
    """
    if at <= 0 or not math.isfinite(at):
        return unset
    when = time.localtime(at)
    wish = environ.get("SLURM_TIME_FORMAT", "")
    if wish == "relative":
        return time.strftime(_relative_form(when, time.localtime(now)), when)
    return time.strftime(wish if "%" in wish else _STANDARD, when)


def _relative_form(when: time.struct_time, today: time.struct_time) -> str:
    """What Slurm's `relative` prints for `when`. A day of another year is always a distant one, as there."""
    distance = (when.tm_year - today.tm_year) * 1000 + when.tm_yday - today.tm_yday
    if abs(distance) > 365:
        return "%-d %b %Y"
    match distance:
        case -1:
            return "Ystday %H:%M"
        case 0:
            return "%H:%M:%S"
        case 1:
            return "Tomorr %H:%M"
        case 2 | 3 | 4 | 5 | 6:
            return "%a %H:%M"
        case _:
            return "%-d %b %H:%M"
