"""Tables of fixed-width columns. What Slurm makes of a format is held against it in test_goldens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spur.columns import MAX_WIDTH, Column, by_letters, by_names, cut_unless_right

COLUMNS: dict[str, Column[str]] = {
    "a": Column("HEADER", lambda row: row),
    "t": Column("TIME", lambda row: row, fit=cut_unless_right),
    "n": Column("NULL", lambda _row: "(null)"),
}


def line(text: str, row: str = "value") -> str:
    return by_letters(text, COLUMNS).line(row)


def test_a_width_cuts_and_pads_and_a_dot_aligns_to_the_right() -> None:
    assert line("%a|%8a|%.8a|%3a|%.3a|") == "value|value   |   value|val|val|"
    assert by_letters("%.3a|%8a|", COLUMNS).header() == "HEA|HEADER  |"


def test_some_values_are_whole_where_they_are_aligned_to_the_right() -> None:
    assert line("%.3t|%3t|") == "value|val|"


def test_text_around_the_fields_stays() -> None:
    assert line("x %a, %%a y") == "x value, value y"


def test_an_unknown_field_is_told_and_printed_as_it_is() -> None:
    table = by_letters("%a %!x %7", COLUMNS)
    assert (table.line("v"), table.unknown) == ("v %!x %7", ("!", ""))
    named = by_names("A:3,b,a", COLUMNS)
    assert (named.line("value"), named.unknown) == ("val" + "value".ljust(20), ("b",))


def test_behind_a_colon_stands_a_width_or_a_suffix() -> None:
    assert by_names("a:\x1f,a:.7x,a", COLUMNS).line("v") == "v\x1f      vx" + "v".ljust(20)


def test_a_width_beyond_reason_is_bounded() -> None:
    assert len(line("%99999999999999999999a")) == MAX_WIDTH


@given(st.text("%.a!t0123n |", max_size=12), st.text(max_size=8))
def test_no_format_makes_it_fail(text: str, row: str) -> None:
    table = by_letters(text[:12], {**COLUMNS})
    assert isinstance(table.header() + table.line(row), str)


@given(st.integers(1, 30), st.text(max_size=40), st.booleans())
def test_a_column_is_exactly_as_wide_as_it_says(width: int, row: str, right: bool) -> None:
    assert len(line(f"%{'.' if right else ''}{width}a", row)) == width
