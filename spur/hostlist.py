"""Host lists as Slurm writes them: `n[01-03,7],login` and back.

The order of the names and their duplicates are kept, and only the last number of a name is folded, as
`scontrol show hostnames` and `scontrol show hostlist` of Slurm do. Where Slurm yields nonsense or nothing for a
list that is not well formed (`n[3-1]`, `n[1`, `n[1-2]x`), this refuses it with Slurm's first words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product

MAX_NAMES = 65536  # of one list; Slurm's limit for one range

_NAME = re.compile(r"[^\s,\[\]]+")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_TRAILING_NUMBER = re.compile(r"(.*?)([0-9]+)", re.DOTALL)


class HostlistError(ValueError):
    """The text is no host list. Its message is Slurm's `Invalid hostlist: TEXT`; `detail` says what is wrong."""

    def __init__(self, text: str, detail: str) -> None:
        super().__init__(f"Invalid hostlist: {text if len(text) <= 200 else text[:197] + '...'}")
        self.detail = detail


def expand(text: str) -> list[str]:
    """The names that `text` stands for, in its order. HostlistError: it is not well formed or means too many."""
    names: list[str] = []
    for entry in _entries(text):
        names.extend(_expand_entry(text, entry, MAX_NAMES - len(names)))
    return names


def compress(names: Iterable[str]) -> str:
    """The shortest list that Slurm would print for `names`: neighbours that count up by one are folded."""
    return ",".join(_fold(prefix, numbers) for prefix, numbers in _families(names))


def _entries(text: str) -> Iterator[str]:
    """The parts of `text` between commas and blanks that stand outside brackets."""
    start, inside = 0, False
    for at, character in enumerate(text):
        match character:
            case "[" if inside:
                raise HostlistError(text, f"a bracket within a bracket at character {at + 1}")
            case "[":
                inside = True
            case "]" if not inside:
                raise HostlistError(text, f"a bracket closes at character {at + 1} that was never opened")
            case "]":
                inside = False
            case "," | " " | "\t" | "\n" if not inside:
                if at > start:
                    yield text[start:at]
                start = at + 1
            case _:
                pass
    if inside:
        raise HostlistError(text, "a bracket is not closed")
    if start < len(text):
        yield text[start:]


def _expand_entry(text: str, entry: str, room: int) -> Iterator[str]:
    """The names of one entry such as `n[1-2]-[3-4]`. The sizes are checked before a name is made."""
    pieces = re.split(r"(\[[^\]]*\])", entry)
    if len(pieces) > 1 and pieces[-1]:
        raise HostlistError(text, f"{pieces[-1]!r} follows a bracket at the end of a name")
    ranges: list[tuple[int, int, int]] = []
    choices: list[list[tuple[int, int, int]]] = []
    total = 1
    for piece in pieces:
        if not piece.startswith("["):
            if piece and not _NAME.fullmatch(piece):
                raise HostlistError(text, f"{piece!r} is no part of a name")
            continue
        ranges = [_parse_range(text, one) for one in piece[1:-1].split(",")]
        choices.append(ranges)
        total *= sum(last - first + 1 for first, last, _ in ranges)
        if total > room:
            raise HostlistError(text, f"more than {MAX_NAMES} names")
    if total > room:
        raise HostlistError(text, f"more than {MAX_NAMES} names")
    literals = [piece for piece in pieces if not piece.startswith("[")]
    for numbers in product(*(_numbers(one) for one in choices)):
        yield "".join(literal + number for literal, number in zip(literals, (*numbers, ""), strict=False))


def _parse_range(text: str, part: str) -> tuple[int, int, int]:
    """First and last number of `3` or `08-11`, and the width that its first number is written with."""
    match = _RANGE.fullmatch(part)
    if match is None or len(part) > 40:
        raise HostlistError(text, f"Invalid range: {part!r}")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise HostlistError(text, f"Invalid range: {part!r}")
    if last - first >= MAX_NAMES:
        raise HostlistError(text, f"Too many hosts in range {part!r}")
    return first, last, len(match[1])


def _numbers(ranges: list[tuple[int, int, int]]) -> list[str]:
    return [str(number).zfill(width) for first, last, width in ranges for number in range(first, last + 1)]


def _families(names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Neighbours in `names` that differ in their last number alone: their prefix and these numbers as written."""
    family: tuple[str, list[str]] | None = None
    for name in names:
        match = _TRAILING_NUMBER.fullmatch(name)
        prefix, number = (match[1], match[2]) if match else (name, "")
        if family is not None and number and family[0] == prefix and family[1][0]:
            family[1].append(number)
            continue
        if family is not None:
            yield family
        family = (prefix, [number])
    if family is not None:
        yield family


def _fold(prefix: str, numbers: list[str]) -> str:
    if len(numbers) == 1:
        return prefix + numbers[0]
    spans: list[list[str]] = []
    for number in numbers:
        if spans and _follows(spans[-1], number):
            spans[-1].append(number)
        else:
            spans.append([number])
    written = (span[0] if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans)
    return f"{prefix}[{','.join(written)}]"


def _follows(span: list[str], number: str) -> bool:
    """Whether a range that began with `span` would print `number` next, padding included."""
    return len(span) < MAX_NAMES and number == str(int(span[-1]) + 1).zfill(len(span[0]))
