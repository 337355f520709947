"""Times against what sbatch, squeue and scontrol of Slurm 22.05 took and printed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spur.times import (
    UNLIMITED,
    format_duration,
    format_elapsed,
    format_instant,
    format_limit,
    format_short_limit,
    parse_time_limit,
    round_up_to_minutes,
)

NOW = 1796119331.0  # 2026-12-01T10:02:11Z, a Tuesday
DAY = 86400


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1", 60),
        ("1:30", 90),
        ("1:60", 120),
        ("1:2:3", 3723),
        ("1:61:00", 7260),
        ("1-0", DAY),
        ("1-2:3", 93780),
        ("1-2:3:4", 93784),
        ("1-25", 176400),
        ("00:00:30", 30),
        ("0-0:0:1", 1),
        ("365-00:00:00", 365 * DAY),
        ("0", UNLIMITED),
        ("0:0", UNLIMITED),
        ("-1", UNLIMITED),
        ("UNLIMITED", UNLIMITED),
        ("infinite", UNLIMITED),
    ],
)
def test_reads_the_forms_of_a_limit(text: str, seconds: int) -> None:
    assert parse_time_limit(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", " 5", "5 ", "5\n", "5m", "-", "1-:", ":", "1:", ":1", "1::", "1:2:3:4", "1-2-3", "1.5", "+5", "1-1:1:1:1"]
    + ["Unlim", "UNLIMITEDx", "1_0", "٣", "-5", "1:2:3x"],
)
def test_refuses_another_form(text: str) -> None:
    with pytest.raises(ValueError, match="is no time limit"):
        parse_time_limit(text)


@pytest.mark.parametrize("text", ["71582789", "4294967295", "49710-06:28:15", "999999999999-0"])
def test_refuses_a_limit_that_would_overflow(text: str) -> None:
    with pytest.raises(ValueError, match="more than 49710-06:28:14"):
        parse_time_limit(text)


def test_the_longest_limit_is_one_second_short_of_unlimited() -> None:
    assert parse_time_limit("49710-06:28:14") == UNLIMITED - 1


@pytest.mark.parametrize(("seconds", "rounded"), [(1, 60), (60, 60), (90, 120), (UNLIMITED, UNLIMITED)])
def test_a_users_limit_is_rounded_up_to_minutes(seconds: int, rounded: int) -> None:
    assert round_up_to_minutes(seconds) == rounded


@pytest.mark.parametrize(
    ("seconds", "scontrol", "squeue"),
    [
        (0, "00:00:00", "0:00"),
        (1.9, "00:00:01", "0:01"),
        (754, "00:12:34", "12:34"),
        (3723, "01:02:03", "1:02:03"),
        (86399, "23:59:59", "23:59:59"),
        (93784, "1-02:03:04", "1-02:03:04"),
        (-1, "INVALID", "INVALID"),
    ],
)
def test_prints_spans(seconds: float, scontrol: str, squeue: str) -> None:
    assert (format_duration(seconds), format_elapsed(seconds)) == (scontrol, squeue)


def test_prints_limits() -> None:
    assert format_limit(3600) == "01:00:00"
    assert format_limit(UNLIMITED) == "UNLIMITED"
    assert format_short_limit(3600) == "1:00:00"
    assert format_short_limit(UNLIMITED, "infinite") == "infinite"


@pytest.mark.parametrize(
    ("wish", "at", "printed"),
    [
        ("", NOW, "2026-12-01T10:02:11"),
        ("standard", NOW, "2026-12-01T10:02:11"),
        ("bogus", NOW, "2026-12-01T10:02:11"),
        ("%s", NOW, "1796119331"),
        ("%b-%d", NOW, "Dec-01"),
        ("relative", NOW, "10:02:11"),
        ("relative", NOW + DAY, "Tomorr 10:02"),
        ("relative", NOW - DAY, "Ystday 10:02"),
        ("relative", NOW + 3 * DAY, "Fri 10:02"),
        ("relative", NOW + 6 * DAY, "Mon 10:02"),
        ("relative", NOW + 7 * DAY, "8 Dec 10:02"),
        ("relative", NOW + 300 * DAY, "27 Sep 2027"),
        ("relative", NOW + 400 * DAY, "5 Jan 2028"),
    ],
)
@pytest.mark.usefixtures("utc")
def test_prints_a_point_of_time_as_the_environment_asks(wish: str, at: float, printed: str) -> None:
    assert format_instant(at, {"SLURM_TIME_FORMAT": wish}, now=NOW) == printed


def test_prints_a_time_that_is_not_known() -> None:
    assert format_instant(0, {}) == "Unknown"
    assert format_instant(0, {}, unset="N/A") == "N/A"


@settings(derandomize=True)
@given(st.integers(1, UNLIMITED - 1))
def test_what_scontrol_prints_is_read_back(seconds: int) -> None:
    assert parse_time_limit(format_duration(seconds)) == seconds


@settings(derandomize=True)
@given(st.text(alphabet="0123456789:-", max_size=12))
def test_any_text_is_a_limit_or_a_value_error(text: str) -> None:
    try:
        seconds = parse_time_limit(text)
    except ValueError:
        return
    assert 0 < seconds <= UNLIMITED
