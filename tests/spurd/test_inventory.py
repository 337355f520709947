"""What the machine says of itself."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from spurd import inventory
from spurd.inventory import Cpu, InventoryError, Machine, Shape
from spurstepd.ledger import Device, Record

TWO_SOCKETS = tuple(Cpu(id, socket=id // 2 % 2, core=id % 2) for id in range(8))  # two threads a core


def machine(cpus: tuple[Cpu, ...], first_virtual: int) -> Machine:
    return Machine(cpus, first_virtual, 1000, 10, "x86_64", "Linux", 0.0)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_this_machine_is_measured() -> None:
    found = inventory.measure()
    assert {cpu.id for cpu in found.cpus} == os.sched_getaffinity(0)
    assert found.first_virtual_cpu > max(os.sched_getaffinity(0))
    assert found.memory_mb == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    assert found.tmp_disk_mb > 0
    assert found.os == " ".join((os.uname().sysname, os.uname().release, os.uname().version))
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert abs(found.boot_at - (time.time() - uptime)) < 2


def test_the_pulse_of_this_machine_is_taken() -> None:
    found = inventory.pulse()
    assert found.load >= 0 and 0 < found.free_memory_mb <= inventory.measure().memory_mb


def test_load_is_the_five_minute_average_and_free_memory_what_nobody_uses(tmp_path: Path) -> None:
    proc = write(tmp_path, {"loadavg": "9.00 1.25 7.00 1/2 3\n", "meminfo": "MemTotal: 4096 kB\nMemFree: 2048 kB\n"})
    assert inventory.pulse(proc) == inventory.Pulse(1.25, 2)


def test_a_proc_that_is_not_as_it_should_be_is_named(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match=r"loadavg: No such file"):
        inventory.pulse(tmp_path)
    write(tmp_path, {"loadavg": "1\n", "meminfo": "MemTotal: x kB\n"})
    with pytest.raises(InventoryError, match=r"loadavg has no second number"):
        inventory.pulse(tmp_path)
    with pytest.raises(InventoryError, match=r"meminfo has no line MemTotal:"):
        inventory.measure(tmp_path)


def test_the_topology_is_read_from_sysfs(tmp_path: Path) -> None:
    for cpu in TWO_SOCKETS:
        directory = f"devices/system/cpu/cpu{cpu.id}/topology"
        write(
            tmp_path, {f"{directory}/physical_package_id": f"{cpu.socket}\n", f"{directory}/core_id": f"{cpu.core}\n"}
        )
    assert inventory.topology(tmp_path, range(8)) == TWO_SOCKETS
    assert inventory.topology(tmp_path, {5, 0}) == (TWO_SOCKETS[0], TWO_SOCKETS[5])


def test_cpus_of_which_the_kernel_tells_nothing_are_cores_of_their_own(tmp_path: Path) -> None:
    found = inventory.topology(tmp_path, range(3))
    assert inventory.cores(found) == ((0,), (1,), (2,)) and inventory.shape(found) == Shape(1, 3, 1)


def test_threads_of_a_core_stand_together_socket_by_socket() -> None:
    assert inventory.cores(TWO_SOCKETS) == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_a_node_is_counted_as_slurm_counts_it() -> None:
    assert inventory.shape(TWO_SOCKETS) == Shape(2, 2, 2)
    assert inventory.shape(TWO_SOCKETS, 8) == Shape(2, 2, 2)
    assert inventory.shape(TWO_SOCKETS, 512) == Shape(512, 1, 1)
    assert inventory.shape(TWO_SOCKETS[:3]) == Shape(3, 1, 1)


def test_a_declared_node_may_have_fewer_and_more_cpus_than_the_machine() -> None:
    """Virtual ids are none that a CPU of the machine may ever have."""
    small = machine((Cpu(0, 0, 0), Cpu(1, 0, 1)), first_virtual=4)
    assert inventory.inventory(small, (), cpus=1).cpus == (0,)
    assert inventory.inventory(small, (), cpus=4).cpus == (0, 1, 4, 5)
    assert inventory.inventory(small, ()).cpus == (0, 1)
    assert inventory.inventory(small, (), cpus=1).cores == ((0,),)


def test_declared_memory_stands_and_measured_memory_fills_in() -> None:
    small = machine((Cpu(0, 0, 0),), 1)
    assert inventory.inventory(small, (), memory_mb=20000).memory_mb == 20000
    assert inventory.inventory(small, ()).memory_mb == 1000


def test_what_the_node_had_can_be_kept_and_read_again() -> None:
    had = inventory.inventory(machine(TWO_SOCKETS, 8), (Device("gpu", "a100", 3, "/dev/nvidia3"),), cpus=9)
    again = inventory.decode(Record(inventory.encode(had), "node"))
    assert (again.cpus, again.memory_mb, again.gpus) == (had.cpus, had.memory_mb, had.gpus)
