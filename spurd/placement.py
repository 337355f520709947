"""Which CPU ids a claim gets: close to each other, the same ones for the same arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence


def place_cpus(
    cpus: Collection[int], cores: Sequence[tuple[int, ...]], used: Collection[int], count: int
) -> tuple[int, ...] | None:
    """`count` ids out of `cpus` that are not in `used`, sorted; None where there are not as many.

    In the order of sockets and cores, the stretch of free neighbours is taken that touches the fewest cores, then
    the one that begins the fewest free cores without filling them, then the one that leaves the smallest rest, then
    the first. Where no stretch is long enough, the lowest are taken.
    """
    line = walk(cpus, cores)
    taken = set(used)
    free = [cpu for cpu in line if cpu not in taken]
    if len(free) < count:
        return None
    if count == 0:
        return ()
    core_of = {cpu: core for core in cores for cpu in core}
    threads = max(map(len, cores), default=1)
    best: tuple[int, int, int, int] | None = None
    choice = free[:count]
    for start, length in stretches(line, taken):
        # Within a stretch of like cores, only how a window lies to the borders of cores makes a difference.
        rest = length - count
        for offset in sorted({*range(min(threads, rest + 1)), rest} if rest >= 0 else ()):
            window = line[start + offset : start + offset + count]
            cost = (*_cost(window, core_of, taken), rest, start + offset)
            if best is None or cost < best:
                best, choice = cost, window
    return tuple(sorted(choice))


def _cost(window: Sequence[int], core_of: Mapping[int, tuple[int, ...]], taken: Collection[int]) -> tuple[int, int]:
    """How many cores the window touches, and how many of them were free and will be taken in part."""
    inside = Counter(core_of.get(cpu, (cpu,)) for cpu in window)
    begun = sum(count < len(core) and not any(cpu in taken for cpu in core) for core, count in inside.items())
    return len(inside), begun


def walk(cpus: Collection[int], cores: Sequence[tuple[int, ...]]) -> list[int]:
    """The ids in the order in which they are neighbours: core by core, then those that stand in no core."""
    known = set(cpus)
    line = [cpu for core in cores for cpu in core if cpu in known]
    placed = set(line)
    return line + sorted(known - placed)


def stretches(line: Sequence[int], taken: Collection[int]) -> Iterator[tuple[int, int]]:
    """Start and length of each unbroken stretch of free ids in `line`."""
    start = 0
    for position in range(len(line) + 1):
        if position == len(line) or line[position] in taken:
            if position > start:
                yield start, position - start
            start = position + 1
