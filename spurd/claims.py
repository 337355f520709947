"""Who holds which CPU, GPU and megabyte of this node.

Values and pure functions; nothing here reads the machine or the disk. The agent keeps one `Claims` for as long as
it lives. It is not stored: the manifests are the truth, and `restoration` makes it anew from them at every start.

The one decision is `decide`: all or nothing over CPUs, memory and devices, for a launch (which says how much) and
for a record found on disk (which says what exactly) alike.

    held       what a run has to itself; no two of these share anything
    lapsing    what a run that lost a conflict may still be using: nobody's claim, and not handed out
               until that run is proven gone
    obscure    runs that live while nobody can tell what they hold: it might be anything, so nothing is
               handed out until they are proven gone
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from spur.gres import Gres
from spurd.placement import place_cpus
from spurstepd.ids import RunId
from spurstepd.ledger import Device, Grant, Progress

DeviceKey = tuple[str, str | int]


def key(device: Device) -> DeviceKey:
    """What makes a device the same one after a restart: its file, since an index may shift when another vanishes."""
    return (device.name, device.file or device.index)


def covers(asked: Gres, device: Device) -> bool:
    return device.name == asked.name and asked.type in ("", device.type)


@dataclass(frozen=True, slots=True)
class Request:
    """How much is wanted on this node. `memory_mb` 0: no limit was asked for, and none is claimed."""

    cpus: int
    memory_mb: int = 0
    gres: tuple[Gres, ...] = ()


@dataclass(frozen=True, slots=True)
class Inventory:
    """What there is to claim.

    `cores` groups the ids of hardware threads that share a core, in the order of sockets; ids that stand in none
    are cores of their own. Ids above those of the machine are virtual: the node declares more than it has.
    """

    cpus: tuple[int, ...]
    memory_mb: int
    gpus: tuple[Device, ...] = ()
    cores: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a claim was not granted.

    `against`: the runs that hold what is missing. `never`: it would not fit an empty node either.
    """

    reason: str
    against: tuple[RunId, ...] = ()
    never: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """Two accounts of one thing that do not agree. `drains`: the node must not get new work until it is looked at."""

    run: RunId | None
    resource: str
    text: str
    drains: bool = False

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class ReleaseProof:
    """That nothing of a run is left. It can only be made of facts that prove it; ValueError otherwise.

    `supervisor_gone`: it answered the release, or its lock was found free and no successor is coming.
    `processes_gone`: its cgroup is empty or removed; without a cgroup, no process of its tree is left.
    `epilog`: where the epilog stands in the ledger; for a launch that was undone before it began, NONE.
    """

    run: RunId
    supervisor_gone: bool
    processes_gone: bool
    epilog: Progress

    def __post_init__(self) -> None:
        missing = []
        if not self.supervisor_gone:
            missing.append("its supervisor may still live")
        if not self.processes_gone:
            missing.append("processes of it are left")
        if not self.epilog.settled:
            missing.append(f"its epilog is {self.epilog.value}")
        if missing:
            raise ValueError(f"the claim of run {self.run} cannot be released: {', '.join(missing)}")


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of a node. Every change gives a new value; see the module for what the fields mean."""

    inventory: Inventory
    held: Mapping[RunId, Grant] = field(default_factory=lambda: MappingProxyType({}))
    lapsing: Mapping[RunId, Grant] = field(default_factory=lambda: MappingProxyType({}))
    obscure: frozenset[RunId] = frozenset()

    def claimed(self, run: RunId, wanted: Request) -> Claims | Refusal:
        """These claims with one more for `run`; its grant is then `held[run]`."""
        if run in self.held or run in self.lapsing:
            return Refusal(f"run {run} has a claim on this node already", (run,))
        if self.obscure:
            runs = tuple(sorted(self.obscure))
            return Refusal(f"it is not known what {names(runs)} may hold of this node", runs)
        decision = decide(self.inventory, [*self.held.items(), *self.lapsing.items()], wanted)
        if isinstance(decision, Refusal):
            return decision
        return replace(self, held=MappingProxyType({**self.held, run: decision}))

    def released(self, proof: ReleaseProof) -> Claims:
        """These claims without any of the run that is proven gone. Idempotent."""
        return replace(
            self,
            held=_without(self.held, proof.run),
            lapsing=_without(self.lapsing, proof.run),
            obscure=self.obscure - {proof.run},
        )

    def on(self, inventory: Inventory) -> Claims:
        """These claims on a machine that has changed. What runs hold stays theirs; see `missing`."""
        return replace(self, inventory=inventory)

    def missing(self) -> list[Difference]:
        """What runs hold and the node no longer has. Each drains it."""
        return missing(self.inventory, self.held)


def _without(claims: Mapping[RunId, Grant], run: RunId) -> Mapping[RunId, Grant]:
    return MappingProxyType({other: grant for other, grant in claims.items() if other != run})


def decide(inventory: Inventory, taken: Collection[tuple[RunId, Grant]], wanted: Request | Grant) -> Grant | Refusal:
    """What `wanted` gets where `taken` is not to be had: all of it, or a refusal.

    A Request gets ids of our choice, the same ones for the same arguments; a Grant gets exactly the ids it names.
    """
    decision = _decide(inventory, taken, wanted)
    if isinstance(decision, Refusal) and taken:
        alone = _decide(inventory, (), wanted)
        return alone if isinstance(alone, Refusal) else decision
    return decision


def _decide(inventory: Inventory, taken: Collection[tuple[RunId, Grant]], wanted: Request | Grant) -> Grant | Refusal:
    if isinstance(wanted, Request):
        placed = _place(inventory, taken, wanted)
        if isinstance(placed, Refusal):
            return placed
        wanted = placed
    return flaw(wanted) or _absent(inventory, wanted) or _collision(inventory, taken, wanted) or wanted


def _place(inventory: Inventory, taken: Collection[tuple[RunId, Grant]], wanted: Request) -> Grant | Refusal:
    if wanted.cpus < 0 or wanted.memory_mb < 0 or any(one.count < 0 for one in wanted.gres):
        return Refusal("less than nothing was asked for", never=True)
    used = {cpu for _, grant in taken for cpu in grant.cpus}
    cpus = place_cpus(inventory.cpus, inventory.cores, used, wanted.cpus)
    if cpus is None:
        free = len(set(inventory.cpus) - used)
        return _short("CPUs", wanted.cpus, free, len(inventory.cpus), [run for run, grant in taken if grant.cpus])
    devices = _pick_devices(inventory.gpus, taken, wanted.gres)
    if isinstance(devices, Refusal):
        return devices
    return Grant(cpus, wanted.memory_mb, devices)


def _pick_devices(
    devices: Sequence[Device], taken: Collection[tuple[RunId, Grant]], wanted: Iterable[Gres]
) -> tuple[Device, ...] | Refusal:
    """The lowest indices that fit. Those that name a type choose first: the others take any."""
    used = {key(device) for _, grant in taken for device in grant.gpus}
    ordered = sorted(devices, key=lambda device: (device.name, device.index, device.file))
    free = [device for device in ordered if key(device) not in used]
    chosen: list[Device] = []
    for one in sorted(wanted, key=lambda one: not one.type):
        fitting = [device for device in free if covers(one, device)]
        if len(fitting) < one.count:
            total = sum(covers(one, device) for device in devices)
            holders = [run for run, grant in taken if any(covers(one, device) for device in grant.gpus)]
            return _short(f"gres/{_kind(one)}", one.count, len(fitting), total, holders)
        chosen += fitting[: one.count]
        free = [device for device in free if device not in chosen]
    return tuple(sorted(chosen, key=lambda device: (device.name, device.index, device.file)))


def _short(what: str, wanted: int, free: int, total: int, holders: Iterable[RunId]) -> Refusal:
    if wanted > total:
        return Refusal(f"{what}: {wanted} wanted, the node has {total}", never=True)
    runs = tuple(sorted(set(holders)))
    return Refusal(f"{what}: {wanted} wanted, {free} of {total} free, the rest held by {names(runs)}", runs)


def flaw(grant: Grant) -> Refusal | None:
    """A record that contradicts itself; a placement of ours never does."""
    if len(set(grant.cpus)) < len(grant.cpus):
        return Refusal("CPUs: the same one is named twice", never=True)
    if len({key(device) for device in grant.gpus}) < len(grant.gpus):
        return Refusal("devices: the same one is named twice", never=True)
    if grant.memory_mb < 0:
        return Refusal(f"memory: {grant.memory_mb} MB is less than nothing", never=True)
    return None


def _absent(inventory: Inventory, grant: Grant) -> Refusal | None:
    differences = _gone(inventory, None, grant)
    return Refusal("; ".join(str(one) for one in differences), never=True) if differences else None


def _collision(inventory: Inventory, taken: Collection[tuple[RunId, Grant]], wanted: Grant) -> Refusal | None:
    cpus, gpus = set(wanted.cpus), {key(device): device for device in wanted.gpus}
    shared: list[str] = []
    against: set[RunId] = set()
    for run, grant in taken:
        if cpus.isdisjoint(grant.cpus) and gpus.keys().isdisjoint(map(key, grant.gpus)):
            continue
        both = [f"CPU {cpu}" for cpu in sorted(cpus.intersection(grant.cpus))]
        both += [describe(device) for device in grant.gpus if key(device) in gpus]
        against.add(run)
        shared.append(f"{', '.join(both)} held by {run}")
    if shared:
        return Refusal("; ".join(shared), tuple(sorted(against)))
    return _memory_short(inventory, taken, wanted.memory_mb)


def _memory_short(inventory: Inventory, taken: Collection[tuple[RunId, Grant]], wanted_mb: int) -> Refusal | None:
    """Whether that much is not to be had. A run that asked for none counts for none, on either side."""
    free = inventory.memory_mb - sum(grant.memory_mb for _, grant in taken)
    if wanted_mb == 0 or wanted_mb <= free:
        return None
    holders = [run for run, grant in taken if grant.memory_mb]
    return _short("MB of memory", wanted_mb, free, inventory.memory_mb, holders)


def _kind(asked: Gres) -> str:
    return f"{asked.name}:{asked.type}" if asked.type else asked.name


def describe(device: Device) -> str:
    """A device as messages name it."""
    return f"gres/{device.name} {device.index}" + (f" ({device.file})" if device.file else "")


def names(runs: Iterable[RunId]) -> str:
    return ", ".join(str(run) for run in runs) or "nobody"


def missing(inventory: Inventory, held: Mapping[RunId, Grant]) -> list[Difference]:
    """What runs hold and the node does not have. Each drains it."""
    found = [one for run, grant in held.items() for one in _gone(inventory, run, grant)]
    total = sum(grant.memory_mb for grant in held.values())
    if total > inventory.memory_mb:
        runs = names(run for run, grant in held.items() if grant.memory_mb)
        text = f"memory: {runs} hold {total} MB, the node has {inventory.memory_mb} MB"
        found.append(Difference(None, "memory", text, drains=True))
    return found


def _gone(inventory: Inventory, run: RunId | None, grant: Grant) -> list[Difference]:
    holder = "" if run is None else f", held by {run}"
    here = {key(device) for device in inventory.gpus}
    cpus = sorted(set(grant.cpus).difference(inventory.cpus))
    found = [Difference(run, "cpu", f"CPU {cpu} is not on this node{holder}", drains=True) for cpu in cpus]
    for device in grant.gpus:
        if key(device) not in here:
            text = f"{describe(device)} is not on this node{holder}"
            found.append(Difference(run, f"gres/{device.name}", text, drains=True))
    if run is None and grant.memory_mb > inventory.memory_mb:
        text = f"{grant.memory_mb} MB of memory wanted, the node has {inventory.memory_mb} MB"
        found.append(Difference(run, "memory", text, drains=True))
    return found


def shrinkage(before: Inventory, now: Inventory) -> list[Difference]:
    """What a machine had and has no longer, both times as measured rather than declared. A loss drains the node.

    Memory that is missing by less than a 64th is named and does not drain: another kernel keeps more for itself,
    and the smallest memory module is more.
    """
    found = []
    if lost := sorted(set(before.cpus).difference(now.cpus)):
        ids = ", ".join(map(str, lost))
        text = f"CPUs: the node had {len(before.cpus)}, it has {len(now.cpus)} (gone: {ids})"
        found.append(Difference(None, "cpu", text, drains=True))
    here = {key(device) for device in now.gpus}
    for device in before.gpus:
        if key(device) not in here:
            found.append(Difference(None, f"gres/{device.name}", f"{describe(device)} has vanished", drains=True))
    if (lost_mb := before.memory_mb - now.memory_mb) > 0:
        text = f"memory: the node had {before.memory_mb} MB, it has {now.memory_mb} MB"
        found.append(Difference(None, "memory", text, drains=lost_mb * 64 > before.memory_mb))
    return found


def counts(grant: Grant) -> Request:
    """How much a grant is, without its ids."""
    kinds = sorted({(device.name, device.type) for device in grant.gpus})
    gres = [
        Gres(name, kind, sum((device.name, device.type) == (name, kind) for device in grant.gpus))
        for name, kind in kinds
    ]
    return Request(len(grant.cpus), grant.memory_mb, tuple(gres))


def differences(believed: Mapping[RunId, Request], held: Mapping[RunId, Grant]) -> list[Difference]:
    """Where what the controller believes of this node and what the node holds do not agree, named one by one."""
    found = []
    for run in sorted({*believed, *held}):
        if run not in held:
            text = f"run {run}: the controller believes {_amount(believed[run])}, the node holds nothing"
            found.append(Difference(run, "run", text))
        elif run not in believed:
            text = f"run {run}: the controller believes nothing, the node holds {_amount(counts(held[run]))}"
            found.append(Difference(run, "run", text))
        else:
            found += _compare(run, believed[run], held[run])
    return found


def _compare(run: RunId, believed: Request, grant: Grant) -> list[Difference]:
    pairs = [("CPUs", believed.cpus, len(grant.cpus)), ("MB of memory", believed.memory_mb, grant.memory_mb)]
    for name in sorted({one.name for one in believed.gres} | {device.name for device in grant.gpus}):
        theirs = sum(one.count for one in believed.gres if one.name == name)
        pairs.append((f"gres/{name}", theirs, sum(device.name == name for device in grant.gpus)))
    for one in believed.gres:
        # Of a type there may be more than was asked for by its name: who asked for any type got some of it.
        ours = sum(covers(one, device) for device in grant.gpus)
        if one.type and ours < one.count:
            pairs.append((f"gres/{_kind(one)}", one.count, ours))
    return [
        Difference(run, what, f"run {run}: {what}: the controller believes {theirs}, the node holds {ours}")
        for what, theirs, ours in pairs
        if theirs != ours
    ]


def _amount(request: Request) -> str:
    parts = [f"{request.cpus} CPUs", f"{request.memory_mb} MB"]
    return ", ".join([*parts, *(f"{one.count} gres/{_kind(one)}" for one in request.gres)])


def real_affinity(grant: Grant, real_cpus: Collection[int]) -> tuple[int, ...] | None:
    """The CPUs to bind the run to; None where it holds a virtual one, or none: it may run anywhere then."""
    real = frozenset(real_cpus)
    return tuple(sorted(grant.cpus)) if grant.cpus and real.issuperset(grant.cpus) else None
