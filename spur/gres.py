"""Generic resources as Slurm writes them: `gpu:4`, `gpu:a100:2`; and the device files behind them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from spur import hostlist

MAX_COUNT = 65536

_WORD = r"[A-Za-z_][A-Za-z0-9_.-]*"
_GRES = re.compile(rf"(?P<name>{_WORD})(?::(?P<type>{_WORD}))?(?::(?P<count>[0-9]{{1,9}}))?")
_FILES = re.compile(rf"(?:(?P<type>{_WORD}):)?(?P<files>/.+)")


@dataclass(frozen=True, slots=True)
class Gres:
    """An amount of one resource. An empty type means any of that name."""

    name: str
    type: str
    count: int

    def __str__(self) -> str:
        return ":".join(part for part in (self.name, self.type, str(self.count)) if part)


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """A file that stands for one device. An empty type says nothing of its kind."""

    type: str
    file: str


def parse(text: str) -> Gres:
    """`name[:type][:count]`, count 1 where it is left out. ValueError: another form."""
    match = _GRES.fullmatch(text)
    if match is None:
        raise ValueError(f'is "{text[:60]}", not NAME[:TYPE][:COUNT]')
    count = int(match["count"] or 1)
    if count > MAX_COUNT:
        raise ValueError(f'is "{text[:60]}": more than {MAX_COUNT} of one kind')
    return Gres(match["name"], match["type"] or "", count)


def parse_list(text: str) -> tuple[Gres, ...]:
    """`gpu:2,license:1`, as --gres takes it; nothing and `none` mean none. ValueError: another form."""
    if text.lower() in ("", "none"):
        return ()
    return tuple(parse(one) for one in text.split(","))


def parse_files(text: str) -> tuple[DeviceFile, ...]:
    """`[TYPE:]/dev/nvidia[0-3]`: one device per file. ValueError: another form."""
    match = _FILES.fullmatch(text)
    if match is None:
        raise ValueError(f'is "{text[:60]}", not [TYPE:]/PATH')
    try:
        files = hostlist.expand(match["files"])
    except hostlist.HostlistError as error:
        raise ValueError(f'is "{text[:60]}": {error.detail}') from None
    return tuple(DeviceFile(match["type"] or "", file) for file in files)


def total(amounts: Iterable[Gres]) -> tuple[Gres, ...]:
    """`amounts` with those of one name and type added up, in the order of their first mention."""
    sums: dict[tuple[str, str], int] = {}
    for one in amounts:
        sums[one.name, one.type] = sums.get((one.name, one.type), 0) + one.count
    return tuple(Gres(name, type, count) for (name, type), count in sums.items())
