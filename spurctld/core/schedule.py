"""Which waiting jobs start now, and where. Pure: a queue and the room on the nodes in, starts and reasons out.

First in, first out by priority. Behind the first job of a partition that must wait for resources, a job may start only
where it does not delay that one: by ending before it can start, or by taking what it will not need.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from spurctld.core.states import NODES_UNAVAILABLE, UNLIMITED, Reason
from spurctld.core.values import Gres, Need, PartitionSpec, Request, Resources, Share, sum_gres

YEAR_S = 365 * 86400.0
"""How long a job without a limit is taken to run, as Slurm does."""

GresKey = tuple[str, str]


@dataclass(slots=True)
class Room:
    """What a node has free during one pass, and what it would have if it were empty."""

    name: str
    cpus: int
    memory_mb: int
    gres: dict[GresKey, int]
    whole: Resources

    def take(self, resources: Resources) -> None:
        self.cpus -= resources.cpus
        self.memory_mb -= resources.memory_mb
        for one in resources.gres:
            self.gres[one.name, one.type] -= one.count

    def give(self, resources: Resources) -> None:
        self.cpus += resources.cpus
        self.memory_mb += resources.memory_mb
        for one in resources.gres:
            key = (one.name, one.type)
            self.gres[key] = self.gres.get(key, 0) + one.count

    def copy(self) -> Room:
        return Room(self.name, self.cpus, self.memory_mb, dict(self.gres), self.whole)

    def emptied(self) -> Room:
        return Room(self.name, self.whole.cpus, self.whole.memory_mb, inventory(self.whole), self.whole)


def inventory(resources: Resources) -> dict[GresKey, int]:
    return {(one.name, one.type): one.count for one in resources.gres}


def fit(need: Need, room: Room) -> Resources | None:
    """What `need` becomes on the node of `room`, gres in the node's own types; None: it does not fit."""
    memory_mb = room.whole.memory_mb if need.whole_memory else need.memory_mb
    if need.cpus > room.cpus or memory_mb > room.memory_mb:
        return None
    if not need.gres:
        return Resources(need.cpus, memory_mb)
    chosen = _choose_gres(need.gres, room.gres)
    return None if chosen is None else Resources(need.cpus, memory_mb, chosen)


def _choose_gres(wanted: Sequence[Gres], free: Mapping[GresKey, int]) -> tuple[Gres, ...] | None:
    """Named types first, so that a request for any type does not take them away."""
    left, chosen = dict(free), list[Gres]()
    for one in sorted(wanted, key=lambda one: not one.type):
        missing = one.count
        for key in (key for key in left if key[0] == one.name and (not one.type or key[1] == one.type)):
            count = min(missing, left[key])
            if count > 0:
                chosen.append(Gres(*key, count))
                left[key] -= count
                missing -= count
        if missing:
            return None
    return sum_gres(chosen)


def place(request: Request, rooms: Iterable[Room]) -> tuple[Share, ...] | None:
    """An allocation for `request`, its required nodes first, the others as they come; None: there is no room."""
    if request.nodes == 1 and not request.required:
        return _place_one(request, rooms)
    by_name = {room.name: room for room in rooms if room.name not in request.excluded}
    names = [*request.required, *(name for name in by_name if name not in request.required)]
    # Where tasks do not divide evenly the first shares are larger: each node bears the largest that fits.
    larger = request.tasks % request.nodes
    left = [list(range(larger)), list(range(larger, request.nodes))]
    chosen: list[Share] = []
    for at, name in enumerate(names):
        share = _take_share(request, left, by_name.get(name))
        if share is not None:
            chosen.append(share)
        elif at < len(request.required):
            return None
        if len(chosen) == request.nodes:
            return tuple(chosen)
    return None


def _place_one(request: Request, rooms: Iterable[Room]) -> tuple[Share, ...] | None:
    need = request.need(0)
    for room in rooms:
        if room.name not in request.excluded:
            resources = fit(need, room)
            if resources is not None:
                return (Share(room.name, resources, need.tasks),)
    return None


def _take_share(request: Request, left: list[list[int]], room: Room | None) -> Share | None:
    """One of the shares that are `left` for the node of `room`, the first kind that fits."""
    if room is None:
        return None
    for indexes in left:
        share = _share_on(request, indexes[0], room) if indexes else None
        if share is not None:
            del indexes[0]
            return share
    return None


def _share_on(request: Request, index: int, room: Room) -> Share | None:
    need = request.need(index)
    resources = fit(need, room)
    return None if resources is None else Share(room.name, resources, need.tasks)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job in the queue."""

    job: int
    request: Request
    time_limit_s: int | None
    priority: int = 0

    @property
    def runs_for_s(self) -> float:
        unlimited = self.time_limit_s is None or self.time_limit_s == UNLIMITED
        return YEAR_S if unlimited else float(self.time_limit_s or 0)


@dataclass(frozen=True, slots=True)
class Lane:
    """A partition during one pass: who waits in it, in order, and which of its nodes can take jobs at all.

    `usable` are nodes that may start jobs, in the order in which they should be used; `absent` those that may not.
    """

    spec: PartitionSpec
    queue: Iterable[Waiting]
    usable: tuple[str, ...]
    absent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Release:
    """Something that holds resources now and is expected to free them `in_s` seconds from now."""

    in_s: float
    node: str
    resources: Resources


@dataclass(frozen=True, slots=True)
class Start:
    job: int
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    job: int
    reason: str
    desc: str = ""


@dataclass(slots=True)
class Plan:
    """What a pass decided. `unfinished`: it started as many as one pass may, and there may be more."""

    starts: list[Start] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    blocked: set[str] = field(default_factory=set)  # partitions whose first job waits for resources
    unfinished: bool = False


@dataclass(slots=True)
class Reservation:
    """What is kept for the first blocked job of a partition: nothing may be in its way when it can start."""

    in_s: float
    rooms: dict[str, Room]  # its nodes at that time, its own share already taken

    def allows(self, waiting: Waiting, share: Share) -> bool:
        room = self.rooms.get(share.node)
        return room is None or waiting.runs_for_s <= self.in_s or _covers(room, share.resources)

    def take(self, waiting: Waiting, share: Share) -> None:
        room = self.rooms.get(share.node)
        if room is not None and waiting.runs_for_s > self.in_s:
            room.take(share.resources)


def _covers(room: Room, resources: Resources) -> bool:
    return (
        resources.cpus <= room.cpus
        and resources.memory_mb <= room.memory_mb
        and all(room.gres.get((one.name, one.type), 0) >= one.count for one in resources.gres)
    )


def plan(
    lanes: Sequence[Lane],
    rooms: Mapping[str, Room],
    *,
    releases: Callable[[], list[Release]] | None = None,
    budget: int = 500,
    limit: int = 1000,
) -> Plan:
    """One pass. `rooms` is used up.

    `releases` is asked at most once, when something is blocked; None: nothing behind a blocked job is looked at.
    `budget` bounds the jobs of each partition that are looked at in vain, `limit` the starts of the pass.
    """
    decided = Plan()
    horizon = None if releases is None else _Horizon(releases)
    passes = [_Pass(lane, rooms, horizon, budget, decided) for lane in lanes]
    for waiting, one in _in_order(passes):
        if len(decided.starts) >= limit:
            decided.unfinished = True
            break
        one.consider(waiting)
    return decided


def _in_order(passes: Sequence[_Pass]) -> Iterator[tuple[Waiting, _Pass]]:
    """Partitions of higher priority first; within one priority the first jobs of the partitions in their order."""
    for priority in sorted({one.lane.spec.priority for one in passes}, reverse=True):
        group = [one for one in passes if one.lane.spec.priority == priority]
        heads = ((one.next(), at) for at, one in enumerate(group))
        heap = [(-waiting.priority, waiting.job, at, waiting) for waiting, at in heads if waiting is not None]
        heapq.heapify(heap)
        while heap:
            _, _, at, waiting = heap[0]
            yield waiting, group[at]
            following = group[at].next()
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (-following.priority, following.job, at, following))


class _Horizon:
    """What of a pass concerns the time after now, shared by its partitions."""

    def __init__(self, releases: Callable[[], list[Release]]) -> None:
        self._ask = releases
        self._releases: list[Release] | None = None
        self._started: list[Release] = []
        self.reservations: list[Reservation] = []

    def started(self, waiting: Waiting, shares: tuple[Share, ...]) -> None:
        for share in shares:
            self._started.append(Release(waiting.runs_for_s, share.node, share.resources))
            for reservation in self.reservations:
                reservation.take(waiting, share)

    def allows(self, waiting: Waiting, share: Share) -> bool:
        return all(one.allows(waiting, share) for one in self.reservations)

    def reserve(self, waiting: Waiting, rooms: Mapping[str, Room]) -> bool:
        """Keeps the earliest time and place for `waiting`. False: it is not known when it could start."""
        if self._releases is None:
            self._releases = self._ask()
        reservation = earliest(waiting.request, rooms, [*self._releases, *self._started])
        if reservation is None:
            return False
        self.reservations.append(reservation)
        return True


class _Pass:
    """One partition's queue being gone through. Rooms only shrink meanwhile: what did not fit will not fit."""

    def __init__(
        self, lane: Lane, rooms: Mapping[str, Room], horizon: _Horizon | None, budget: int, decided: Plan
    ) -> None:
        self.lane = lane
        self._queue = iter(lane.queue)
        self._rooms = {name: rooms[name] for name in lane.usable}
        self._free = dict(self._rooms)  # those with a CPU to give
        self._horizon = horizon
        self._budget = budget
        self._decided = decided
        self._blocked = False
        self._hopeless: set[tuple[Request, float]] = set()
        self._possible: dict[Request, bool] = {}

    def next(self) -> Waiting | None:
        if self._budget <= 0 or (self._blocked and self._horizon is None):
            return None
        return next(self._queue, None)

    def consider(self, waiting: Waiting) -> None:
        shares = self._find(waiting)
        if shares is not None:
            for share in shares:
                self._rooms[share.node].take(share.resources)
            if self._horizon is not None:
                self._horizon.started(waiting, shares)
            self._decided.starts.append(Start(waiting.job, shares))
            return
        self._budget -= 1
        if not self._fits_empty(waiting.request):
            self._decided.waits.append(_unavailable(self.lane, waiting))
        elif self._blocked:
            self._decided.waits.append(Wait(waiting.job, Reason.PRIORITY))
        else:
            self._block(waiting)

    def _find(self, waiting: Waiting) -> tuple[Share, ...] | None:
        reserved = self._horizon is not None and bool(self._horizon.reservations)
        key = (waiting.request, waiting.runs_for_s if reserved else 0.0)
        if key in self._hopeless:
            return None
        for name in [name for name, room in self._free.items() if room.cpus <= 0]:
            del self._free[name]
        rooms = _suited(waiting.request, self._free)
        shares = place(waiting.request, self._allowed(waiting, rooms) if reserved else rooms)
        if shares is None:
            self._hopeless.add(key)
        return shares

    def _allowed(self, waiting: Waiting, rooms: Iterable[Room]) -> Iterator[Room]:
        assert self._horizon is not None
        for room in rooms:
            share = _share_on(waiting.request, 0, room) or _share_on(waiting.request, waiting.request.nodes - 1, room)
            if share is not None and self._horizon.allows(waiting, share):
                yield room

    def _fits_empty(self, request: Request) -> bool:
        if request not in self._possible:
            rooms = [room.emptied() for room in _suited(request, self._rooms)]
            self._possible[request] = place(request, rooms) is not None
        return self._possible[request]

    def _block(self, waiting: Waiting) -> None:
        self._blocked = True
        self._decided.blocked.add(self.lane.spec.name)
        self._decided.waits.append(Wait(waiting.job, Reason.RESOURCES))
        if self._horizon is not None and not self._horizon.reserve(waiting, self._rooms):
            self._budget = 0


def _suited(request: Request, rooms: Mapping[str, Room]) -> Iterable[Room]:
    """Only the required nodes where they are all that is asked for."""
    if request.required and len(request.required) >= request.nodes:
        return [rooms[name] for name in request.required if name in rooms]
    return rooms.values()


def _unavailable(lane: Lane, waiting: Waiting) -> Wait:
    """It would not even fit on the nodes that can be used if they were empty."""
    members = len(lane.usable) + len(lane.absent)
    if waiting.request.nodes > members:
        return Wait(waiting.job, Reason.PARTITION_NODE_LIMIT if members else Reason.PARTITION_CONFIG)
    missing = [name for name in waiting.request.required if name in lane.absent]
    if missing:
        return Wait(waiting.job, Reason.REQ_NODE_NOT_AVAIL, f"ReqNodeNotAvail, UnavailableNodes:{','.join(missing)}")
    return Wait(waiting.job, Reason.REQ_NODE_NOT_AVAIL, NODES_UNAVAILABLE)


def earliest(request: Request, rooms: Mapping[str, Room], releases: Sequence[Release]) -> Reservation | None:
    """When and where `request` fits if everything ends as late as it may. None: that is not known."""
    future = {name: room.copy() for name, room in rooms.items()}
    ends = sorted((one for one in releases if one.node in future), key=lambda one: one.in_s)
    for at, one in enumerate(ends):
        future[one.node].give(one.resources)
        if at + 1 < len(ends) and ends[at + 1].in_s == one.in_s:
            continue
        shares = place(request, future.values())
        if shares is not None:
            for share in shares:
                future[share.node].take(share.resources)
            return Reservation(max(one.in_s, 0.0), {share.node: future[share.node] for share in shares})
    return None
