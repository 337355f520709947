"""What this machine is: CPUs and how they are wired, memory, disk, operating system; and how busy it is.

Read from /proc and /sys in a few bounded reads, at the start and (`pulse`) at each heartbeat. Numbers are those that
slurmd reports of the same machine, so that a node definition can be carried over.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spurd.claims import Inventory
from spurstepd.ledger import Device, Record

_MIB = 1 << 20


class InventoryError(Exception):
    """This machine cannot be measured; the text names the file and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """A hardware thread. `core` counts within its socket; both are the kernel's numbers."""

    id: int
    socket: int
    core: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A node's CPUs as Slurm counts them."""

    sockets: int
    cores_per_socket: int
    threads_per_core: int


@dataclass(frozen=True, slots=True)
class Machine:
    """What does not change while the machine is up. `cpus`: those this process may use, by id."""

    cpus: tuple[Cpu, ...]
    first_virtual_cpu: int  # every id from here on is certain to be none of this machine
    memory_mb: int
    tmp_disk_mb: int
    arch: str
    os: str
    boot_at: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Pulse:
    """`load`: processes that wanted a CPU, averaged over five minutes. `free_memory_mb`: what nobody uses at all."""

    load: float
    free_memory_mb: int


def measure(proc: Path = Path("/proc"), sysfs: Path = Path("/sys"), tmp: Path = Path("/tmp")) -> Machine:
    """This machine. InventoryError where a file that every Linux has is not there or not as it should be."""
    usable = os.sched_getaffinity(0)
    system = os.uname()
    return Machine(
        cpus=topology(sysfs, usable),
        first_virtual_cpu=max([*usable, *_possible_cpus(sysfs)]) + 1,
        memory_mb=_meminfo(proc, "MemTotal") // 1024,
        tmp_disk_mb=_disk_mb(tmp),
        arch=system.machine,
        os=f"{system.sysname} {system.release} {system.version}",
        boot_at=float(_field(proc / "stat", "btime")),
    )


def pulse(proc: Path = Path("/proc")) -> Pulse:
    """How busy the machine is, by the same figures as slurmd's CPULoad and FreeMem."""
    words = _read(proc / "loadavg").split()
    try:
        load = float(words[1])
    except (IndexError, ValueError):
        raise InventoryError(f"{proc / 'loadavg'} has no second number") from None
    return Pulse(load, _meminfo(proc, "MemFree") // 1024)


def topology(sysfs: Path, usable: Iterable[int]) -> tuple[Cpu, ...]:
    """Where each of the `usable` ids sits. A kernel that does not tell (some guests) has each as a core of its own."""
    return tuple(_cpu(sysfs / f"devices/system/cpu/cpu{cpu}/topology", cpu) for cpu in sorted(usable))


def _cpu(directory: Path, cpu: int) -> Cpu:
    try:
        socket = int((directory / "physical_package_id").read_text())
        core = int((directory / "core_id").read_text())
    except (OSError, ValueError):
        return Cpu(cpu, 0, -1 - cpu)
    return Cpu(cpu, max(socket, 0), core)  # arm64 says -1 where the firmware tells nothing of sockets


def cores(cpus: Iterable[Cpu]) -> tuple[tuple[int, ...], ...]:
    """The ids that share a core, core by core in the order of sockets."""
    groups: dict[tuple[int, int], list[int]] = {}
    for cpu in cpus:
        groups.setdefault((cpu.socket, cpu.core), []).append(cpu.id)
    first = {where: min(ids) for where, ids in groups.items()}
    return tuple(tuple(sorted(groups[where])) for where in sorted(groups, key=lambda where: (where[0], first[where])))


def shape(cpus: Sequence[Cpu], declared: int | None = None) -> Shape:
    """How the node is counted. A declared number that is not the machine's is that many sockets, as in Slurm."""
    if declared is not None and declared != len(cpus):
        return Shape(declared, 1, 1)
    sockets = len({cpu.socket for cpu in cpus})
    groups = cores(cpus)
    threads = max(map(len, groups))
    per_socket = -(-len(groups) // sockets)
    # What does not multiply out (a process that may use part of the machine, cores of two kinds) has no other shape.
    return (
        Shape(sockets, per_socket, threads) if sockets * per_socket * threads == len(cpus) else Shape(len(cpus), 1, 1)
    )


def cpu_ids(machine: Machine, declared: int | None) -> tuple[int, ...]:
    """The ids to hand out: the real ones first, then virtual ones up to the number that is declared."""
    real = tuple(cpu.id for cpu in machine.cpus)
    if declared is None:
        return real
    more = max(declared - len(real), 0)
    return real[:declared] + tuple(range(machine.first_virtual_cpu, machine.first_virtual_cpu + more))


def inventory(
    machine: Machine, devices: Sequence[Device], cpus: int | None = None, memory_mb: int | None = None
) -> Inventory:
    """What there is to claim: what the configuration declares, and what was measured where it declares nothing."""
    ids = cpu_ids(machine, cpus)
    known = set(ids)
    groups = (tuple(cpu for cpu in core if cpu in known) for core in cores(machine.cpus))
    return Inventory(
        ids,
        machine.memory_mb if memory_mb is None else memory_mb,
        tuple(devices),
        tuple(group for group in groups if group),
    )


def encode(inventory: Inventory) -> dict[str, Any]:
    """`inventory` as JSON values, for the agent's record of what the node had; without how the CPUs are wired."""
    return {
        "cpus": list(inventory.cpus),
        "memory_mb": inventory.memory_mb,
        "gpus": [{"name": one.name, "type": one.type, "index": one.index, "file": one.file} for one in inventory.gpus],
    }


def decode(record: Record) -> Inventory:
    """The inventory in JSON values. spurstepd.ledger.LedgerError names the field that is wrong."""
    return Inventory(
        tuple(record.integers("cpus")),
        record.integer("memory_mb"),
        tuple(
            Device(one.text("name"), one.text("type"), one.integer("index"), one.text("file"))
            for one in record.records("gpus")
        ),
    )


def _possible_cpus(sysfs: Path) -> list[int]:
    """Ids that may come online one day; none where the kernel does not tell."""
    try:
        text = (sysfs / "devices/system/cpu/possible").read_text().strip()
        return [int(part.rpartition("-")[2]) for part in text.split(",") if part]
    except (OSError, ValueError):
        return []


def _disk_mb(path: Path) -> int:
    try:
        disk = os.statvfs(path)
    except OSError as error:
        raise InventoryError(f"{path}: {error.strerror}") from None
    return disk.f_blocks * disk.f_bsize // _MIB


def _meminfo(proc: Path, name: str) -> int:
    """A line of meminfo, in KiB."""
    return _field(proc / "meminfo", f"{name}:")


def _field(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdigit():
            return int(words[1])
    raise InventoryError(f"{path} has no line {name}")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise InventoryError(f"{path}: {error.strerror}") from None
