"""Tables of a TOML file turned into frozen dataclasses, by one declaration per key.

The field of a dataclass is the declaration: its name is the key, `option` says how the value is read, what holds
where it is not given, and what a person is told about it. Nothing else in Spur lists the keys of the configuration.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from spur import addresses, gres, hostlist, times

T = TypeVar("T")
E = TypeVar("E", bound=Enum)
Read = Callable[[object], T]

REQUIRED: Any = dataclasses.MISSING


class TableError(ValueError):
    """A key that is unknown, missing or has an impossible value; one line that names table and key."""


@dataclass(frozen=True, slots=True)
class Option:
    """One key of a table: how it is read, what holds without it, and its line of documentation."""

    key: str
    read: Read[Any]
    default: Any  # REQUIRED: the key must be given
    doc: str
    shown: str  # the value, as TOML, that an example shows


def option(read: Read[T], default: T, doc: str, *, shown: str | None = None) -> T:
    """The declaration of one key, in the place of a dataclass field's default."""
    example = shown if shown is not None else as_toml(default)
    return dataclasses.field(default=default, metadata={"read": read, "doc": doc, "shown": example})


def options_of(table: type) -> Iterator[Option]:
    """The keys that `table` declares, in order."""
    for field in dataclasses.fields(table):
        if "read" in field.metadata:
            about = field.metadata
            yield Option(field.name, about["read"], field.default, about["doc"], about["shown"])


def fill(table: type[T], values: object, where: str) -> T:
    """A `table` of the TOML `values`. TableError, beginning with `where`, at the first value that cannot be."""
    if not isinstance(values, dict):
        raise TableError(f"{where} is not a table")
    options = {one.key: one for one in options_of(table)}
    found: dict[str, Any] = {}
    for key, value in values.items():
        if key not in options:
            raise TableError(f"{where} {key} is no known key{suggestion(key, options)}")
        try:
            found[key] = options[key].read(value)
        except ValueError as error:
            raise TableError(f"{where} {key} {error}".lstrip()) from None
    for one in options.values():
        if one.default is REQUIRED and one.key not in found:
            raise TableError(f"{where} {one.key} is missing")
    return table(**found)


def suggestion(key: str, known: Mapping[str, object]) -> str:
    """` (did you mean KEY?)` where `key` looks like one of `known`."""
    import difflib  # only where somebody mistyped: it costs every command some milliseconds

    near = difflib.get_close_matches(key, known, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def as_toml(value: Any) -> str:
    """`value` as TOML writes it; nothing for what has no value."""
    match value:
        case bool():
            return "true" if value else "false"
        case Enum():
            return f'"{value.value}"'
        case float() if value.is_integer():
            return str(int(value))
        case int() | float():
            return str(value)
        case tuple():
            return "[" + ", ".join(as_toml(one) for one in value) + "]"
        case str() | Path():
            return f'"{value}"'
        case _:
            return ""


def text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"is {brief(value)}, not a string")
    return value


def matching(pattern: str, wanted: str) -> Read[str]:
    """Strings that `pattern` fits wholly."""

    def read(value: object) -> str:
        if not re.fullmatch(pattern, text(value)):
            raise ValueError(f"is {brief(value)}, not {wanted}")
        return text(value)

    return read


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"is {brief(value)}, not true or false")
    return value


def integer(least: int, most: int) -> Read[int]:
    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"is {brief(value)}, not a whole number from {least} to {most}")
        return value

    return read


def number(least: float, most: float) -> Read[float]:
    def read(value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise ValueError(f"is {brief(value)}, not a number from {least:g} to {most:g}")
        return value

    return read


def one_of(kind: type[E]) -> Read[E]:
    def read(value: object) -> E:
        try:
            return kind(value)
        except ValueError:
            wanted = " or ".join(f'"{one.value}"' for one in kind)
            raise ValueError(f"is {brief(value)}, not {wanted}") from None

    return read


def path(value: object) -> Path:
    if not text(value).startswith("/") or "\0" in text(value):
        raise ValueError(f"is {brief(value)}, not an absolute path")
    return Path(text(value))


def address(value: object) -> str:
    addresses.split(text(value))
    return text(value)


def many(read: Read[T], least: int = 0) -> Read[tuple[T, ...]]:
    """Lists of what `read` reads."""

    def read_all(value: object) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise ValueError(f"is {brief(value)}, not a list")
        if len(value) < least:
            raise ValueError("is empty")
        return tuple(read(one) for one in value)

    return read_all


def host_names(value: object) -> tuple[str, ...]:
    """A host list, written `n[1-4],m1`, expanded."""
    try:
        names = tuple(hostlist.expand(text(value)))
    except hostlist.HostlistError as error:
        raise ValueError(f"is {brief(value)}: {error.detail}") from None
    if not names:
        raise ValueError("is empty")
    return names


def time_limit(value: object) -> int:
    """A limit as Slurm writes it, in seconds; a bare number is minutes. 0 is refused: it may mean none or no time."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not re.search(r"[^0:-]", text(value)):
        raise ValueError(f'is {brief(value)}: say "UNLIMITED", or leave it out')
    try:
        return times.parse_time_limit(text(value))
    except ValueError as error:
        raise ValueError(f"is {brief(value)}: {error}") from None


def gres_count(value: object) -> gres.Gres:
    return gres.parse(text(value))


def gres_files(value: object) -> tuple[gres.DeviceFile, ...]:
    return gres.parse_files(text(value))


def brief(value: object) -> str:
    shown = as_toml(value) or repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
