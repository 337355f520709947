"""Tables of fixed-width columns, as `-o` and `-O` of squeue and sinfo describe them.

A field is a letter (`%.18i`) or a name (`jobid:.18`); its header and value come from the command's own list of
columns. A width cuts and pads: a value is padded on the right, or on the left where the field has a `.`. The parsing
of both kinds of format is Slurm 22.05's, found by trying it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

DEFAULT_NAME_WIDTH = 20
NULL = "(null)"  # how Slurm prints a text that is not there

Row = TypeVar("Row")

MAX_WIDTH = 2**20

_LETTER_FIELD = re.compile(r"(?P<right>\.?)(?P<width>[0-9]*)(?P<letter>[^0-9]?)(?P<suffix>.*)", re.DOTALL)
_NAME_FIELD = re.compile(r"(?P<name>[^:]*)(?::(?P<right>\.?)(?P<width>[0-9]*)(?P<suffix>.*))?", re.DOTALL)


Fit = Callable[[str, int, bool], str]  # a text, a width that is not 0, whether it is aligned to the right


def cut(text: str, width: int, right: bool) -> str:
    """No longer than `width`. A text that is not there leaves a narrow left-aligned column empty: C's printf does."""
    if text == NULL and not right and width < len(NULL):
        return ""
    return text[:width]


def cut_unless_right(text: str, width: int, right: bool) -> str:
    """No longer than `width`, but whole where it is aligned to the right: so Slurm does with times and host lists."""
    return text if right else cut(text, width, right)


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """What a letter or a name stands for. `key` is what else the command knows the column by."""

    header: str
    value: Callable[[Row], str]
    fit: Fit = cut
    fit_header: Fit = cut
    key: str = ""


@dataclass(frozen=True, slots=True)
class Field(Generic[Row]):
    """A column as it stands in a format. `width` 0: as wide as the value."""

    column: Column[Row] | None  # None: text alone, in `suffix`
    width: int = 0
    right: bool = False
    suffix: str = ""

    def header(self) -> str:
        return self._show(self.column.header, self.column.fit_header) if self.column else self.suffix

    def show(self, row: Row) -> str:
        return self._show(self.column.value(row), self.column.fit) if self.column else self.suffix

    def _show(self, text: str, fit: Fit) -> str:
        if self.width:
            text = fit(text, self.width, self.right)
            text = text.rjust(self.width) if self.right else text.ljust(self.width)
        return text + self.suffix


@dataclass(frozen=True, slots=True)
class Format(Generic[Row]):
    """A whole format, and what was wrong in it: a field that is not known is an error that is told, and no more."""

    fields: tuple[Field[Row], ...]
    unknown: tuple[str, ...] = ()

    def header(self) -> str:
        return "".join(field.header() for field in self.fields)

    def line(self, row: Row) -> str:
        return "".join(field.show(row) for field in self.fields)

    def lines(self, rows: Iterable[Row], header: bool) -> Iterable[str]:
        if header:
            yield self.header()
        for row in rows:
            yield self.line(row)

    @property
    def keys(self) -> frozenset[str]:
        """The keys of its columns."""
        return frozenset(field.column.key for field in self.fields if field.column)


def by_letters(text: str, columns: Mapping[str, Column[Row]]) -> Format[Row]:
    """The format `text` of `-o`: `%[[.]width]letter`, and any text between. An unknown letter is printed as it is."""
    fields: list[Field[Row]] = []
    unknown: list[str] = []
    literal, *specifications = text.split("%")
    if literal:
        fields.append(Field(None, suffix=literal))
    for one in specifications:
        if not one:
            continue
        match = _LETTER_FIELD.fullmatch(one)
        assert match is not None, "the expression takes any text"
        letter = match["letter"]
        if letter not in columns:
            unknown.append(letter)
            fields.append(Field(None, suffix=f"%{one}"))
            continue
        fields.append(Field(columns[letter], _width(match["width"]), bool(match["right"]), match["suffix"]))
    return Format(tuple(fields), tuple(unknown))


def by_names(text: str, columns: Mapping[str, Column[Row]]) -> Format[Row]:
    """The format `text` of `-O`: `name[:[.][width][suffix]]`, separated by commas. An unknown name prints nothing.

    The names of `columns` are in lower case. Without a colon a field is 20 wide, with one as wide as it says.
    """
    fields: list[Field[Row]] = []
    unknown: list[str] = []
    for one in text.split(","):
        match = _NAME_FIELD.fullmatch(one)
        assert match is not None, "the expression takes any text"
        column = columns.get(match["name"].lower())
        if column is None:
            if one:
                unknown.append(match["name"])
            continue
        width = DEFAULT_NAME_WIDTH if match["width"] is None else _width(match["width"])
        fields.append(Field(column, width, bool(match["right"]), match["suffix"] or ""))
    return Format(tuple(fields), tuple(unknown))


def _width(digits: str) -> int:
    return min(int(digits[:12] or 0), MAX_WIDTH)


def all_letters(columns: Mapping[str, Column[Row]], order: Sequence[str]) -> str:
    """The `-o` format that `%all` stands for: every letter of `order` with a bar between."""
    return "|".join(f"%{letter}" for letter in order if letter in columns)
