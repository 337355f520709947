"""Which GPUs there are, which a run sees, and what is said when one is gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spur.gres import DeviceFile, Gres
from spurd import gpus
from spurd.gpus import resolve, visibility
from spurstepd.ids import RunId
from spurstepd.ledger import Device, Grant

RUN = RunId(42, 1)


def nvidia(index: int, type: str = "") -> Device:
    return Device("gpu", type, index, f"/dev/nvidia{index}")


def amd(index: int, minor: int | None = None) -> Device:
    return Device("gpu", "", index, f"/dev/dri/renderD{128 + (index if minor is None else minor)}")


def stand_in(index: int) -> Device:
    return Device("gpu", "", index, f"/srv/stand-in/{index}")


def grant(*devices: Device) -> Grant:
    return Grant((), 0, devices)


FOUR = tuple(map(nvidia, range(4)))
NONE = {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "", "GPU_DEVICE_ORDINAL": ""}


def test_an_nvidia_gpu_is_counted_on_the_machine_where_all_can_be_opened() -> None:
    assert visibility(grant(FOUR[3], FOUR[1]), FOUR, constrained=False) == {
        "SLURM_JOB_GPUS": "1,3",
        "SLURM_GPUS_ON_NODE": "2",
        "CUDA_VISIBLE_DEVICES": "1,3",
    }


def test_an_nvidia_gpu_is_counted_within_the_cgroup_where_there_is_one() -> None:
    assert visibility(grant(FOUR[1], FOUR[3]), FOUR, constrained=True) == {
        "SLURM_JOB_GPUS": "1,3",
        "SLURM_GPUS_ON_NODE": "2",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }


def test_an_amd_gpu_is_made_visible_to_rocm_alone() -> None:
    """HIP obeys CUDA_VISIBLE_DEVICES too, and would count a second time what ROCR has left."""
    devices = (amd(0), amd(1))
    found = visibility(grant(devices[1]), devices, constrained=False)
    assert found == {"SLURM_JOB_GPUS": "1", "SLURM_GPUS_ON_NODE": "1", "ROCR_VISIBLE_DEVICES": "1"}


def test_a_stand_in_is_made_visible_to_all_runtimes() -> None:
    devices = (stand_in(0), stand_in(1))
    found = visibility(grant(devices[1]), devices, constrained=False)
    assert {found[name] for name in NONE} == {"1"}


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("devices", [FOUR, (amd(0),), (stand_in(0),), (nvidia(0), amd(1, 0))])
def test_a_run_that_asked_for_none_sees_none(devices: tuple[Device, ...], constrained: bool) -> None:
    """Empty is documented as none by both vendors; unset would be all."""
    assert visibility(Grant((0, 1), 100), devices, constrained) == NONE


def test_a_node_without_gpus_sets_nothing() -> None:
    assert visibility(Grant(), (Device("fpga", "", 0, ""),), constrained=False) == {}


def test_with_both_vendors_on_a_node_a_run_sees_its_own_of_each_and_no_other() -> None:
    devices = (nvidia(0), nvidia(1), amd(2, 0), amd(3, 1))
    assert visibility(grant(devices[1]), devices, constrained=False) == {
        "SLURM_JOB_GPUS": "1",
        "SLURM_GPUS_ON_NODE": "1",
        "CUDA_VISIBLE_DEVICES": "1",
        "ROCR_VISIBLE_DEVICES": "",
    }
    assert visibility(grant(devices[3]), devices, constrained=False) == {
        "SLURM_JOB_GPUS": "3",
        "SLURM_GPUS_ON_NODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "ROCR_VISIBLE_DEVICES": "1",
        "HIP_VISIBLE_DEVICES": "0",
    }
    both = visibility(grant(devices[1], devices[3]), devices, constrained=True)
    assert (both["CUDA_VISIBLE_DEVICES"], both["ROCR_VISIBLE_DEVICES"]) == ("0", "0")


def test_every_variable_that_may_be_set_is_known_to_whoever_drops_what_a_job_brings_along() -> None:
    devices = (nvidia(0), amd(1))
    for one in (grant(), grant(*devices), grant(devices[1])):
        assert visibility(one, devices, constrained=False).keys() <= gpus.VARIABLES


def test_listed_files_are_the_gpus_by_the_numbers_of_their_runtime() -> None:
    files = (DeviceFile("a100", "/dev/nvidia2"), DeviceFile("a100", "/dev/nvidia3"))
    assert resolve(None, files, ()).devices == (nvidia(2, "a100"), nvidia(3, "a100"))
    found = (amd(0, 5), amd(1, 6))
    assert resolve(None, (DeviceFile("", found[1].file),), found).devices == (found[1],)


def test_listed_files_without_numbers_are_counted_in_their_order() -> None:
    files = tuple(DeviceFile("", f"/srv/stand-in/{index}") for index in range(2))
    assert resolve((Gres("gpu", "", 2),), files, ()).devices == (stand_in(0), stand_in(1))


def test_found_gpus_are_taken_where_nothing_is_declared() -> None:
    assert resolve(None, (), FOUR).devices == FOUR
    assert resolve((), (), FOUR).devices == ()


def test_declared_types_are_matched_to_what_the_library_calls_them() -> None:
    found = (nvidia(0, "nvidia_a100-sxm4-40gb"), nvidia(1, "nvidia_h100_pcie"), nvidia(2, "nvidia_a100-sxm4-40gb"))
    chosen = resolve((Gres("gpu", "", 1), Gres("gpu", "H100", 1)), (), found)
    assert chosen.devices == (nvidia(0), nvidia(1, "H100")) and chosen.reasons == ()


def test_more_declared_than_found_is_a_reason_to_drain() -> None:
    chosen = resolve((Gres("gpu", "a100", 3),), (), (nvidia(0),))
    assert chosen.devices == (nvidia(0, "a100"),) and chosen.reasons == ("gres/gpu:a100: 3 configured, 1 found",)


def test_a_driver_that_shows_none_of_the_gpus_on_the_bus_is_a_reason_to_drain() -> None:
    assert resolve((Gres("gpu", "", 2),), (), (), hardware=2).reasons == ("gres/gpu: 2 configured, 0 found",)


def test_declared_gpus_on_a_machine_without_any_are_counted() -> None:
    """As are resources of other names."""
    chosen = resolve((Gres("gpu", "a", 1), Gres("gpu", "b", 1), Gres("fpga", "", 1)), (), ())
    assert chosen.devices == (Device("gpu", "a", 0, ""), Device("gpu", "b", 1, ""), Device("fpga", "", 0, ""))
    assert chosen.reasons == ()


def test_a_file_that_vanishes_under_a_run_names_device_and_run(tmp_path: Path) -> None:
    """Field report 54."""
    devices = tuple(Device("gpu", "", index, str(tmp_path / f"gpu{index}")) for index in range(2))
    for device in devices:
        Path(device.file).touch()
    held = {RUN: grant(devices[0])}
    assert gpus.vanished(gpus.absent_files(devices), held) == []
    for device in devices:
        os.unlink(device.file)
    found = gpus.vanished(gpus.absent_files(devices), held)
    assert list(map(str, found)) == [
        f"gres/gpu 0 ({devices[0].file}) vanished under run 42.1",
        f"gres/gpu 1 ({devices[1].file}) vanished",
    ]
    assert [one.run for one in found] == [RUN, None] and all(one.drains for one in found)


def test_what_is_only_counted_cannot_vanish() -> None:
    assert gpus.absent_files([Device("gpu", "", 0, "")]) == ()


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_device_files_tell_of_nvidia_gpus_where_the_library_cannot_be_asked(tmp_path: Path) -> None:
    names = ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia-caps")
    root = tree(tmp_path, {f"dev/{name}": "" for name in names})
    assert gpus.discover(root, library=False) == (nvidia(2), nvidia(10))


def amd_node(number: int, simds: int, minor: int, name: str) -> dict[str, str]:
    directory = f"sys/class/kfd/kfd/topology/nodes/{number}"
    return {
        f"{directory}/properties": f"cpu_cores_count 0\nsimd_count {simds}\ndrm_render_minor {minor}\nunique_id 7\n",
        f"{directory}/name": f"{name}\n",
    }


def test_amd_gpus_are_found_in_the_kernels_topology_among_the_cpus(tmp_path: Path) -> None:
    product = "sys/class/drm/renderD130/device/product_name"
    nodes = {**amd_node(0, 0, 0, ""), **amd_node(2, 440, 128, "aldebaran"), **amd_node(10, 440, 130, "aldebaran")}
    root = tree(tmp_path, {**nodes, product: "AMD Instinct MI210\n"})
    assert gpus.discover(root, library=False) == (
        Device("gpu", "aldebaran", 0, "/dev/dri/renderD128"),
        Device("gpu", "amd_instinct_mi210", 1, "/dev/dri/renderD130"),
    )


def test_a_node_of_the_topology_that_may_not_be_read_is_left_out(tmp_path: Path) -> None:
    """A device cgroup forbids it by an error at reading; a directory in the place of the file gives one too."""
    root = tree(tmp_path, amd_node(1, 440, 129, "aldebaran"))
    (root / "sys/class/kfd/kfd/topology/nodes/0/properties").mkdir(parents=True)
    assert gpus.discover(root, library=False) == (Device("gpu", "aldebaran", 0, "/dev/dri/renderD129"),)


def test_amd_gpus_are_counted_on_from_nvidias(tmp_path: Path) -> None:
    root = tree(tmp_path, {"dev/nvidia0": "", **amd_node(1, 440, 129, "aldebaran")})
    assert [device.index for device in gpus.discover(root, library=False)] == [0, 1]


def test_a_machine_without_any_has_none(tmp_path: Path) -> None:
    assert gpus.discover(tmp_path, library=False) == () and gpus.hardware(tmp_path) == 0


def test_accelerators_on_the_bus_are_counted_whether_or_not_a_driver_has_them(tmp_path: Path) -> None:
    def device(address: str, kind: str, vendor: str) -> dict[str, str]:
        return {f"sys/bus/pci/devices/{address}/class": kind, f"sys/bus/pci/devices/{address}/vendor": vendor}

    root = tree(
        tmp_path,
        {
            **device("0000:00:02.0", "0x030000\n", "0x1a03\n"),  # the console of a server
            **device("0000:3b:00.0", "0x030200\n", "0x10de\n"),
            **device("0000:af:00.0", "0x120000\n", "0x1002\n"),
            **device("0000:b0:00.0", "0x020000\n", "0x10de\n"),  # a network card
        },
    )
    assert gpus.hardware(root) == 2


LIBRARY = """
#include <string.h>
static const unsigned minors[] = {1, 0, 7};
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, const void **handle)
{
    if (number == 2) return 15; /* NVML_ERROR_GPU_IS_LOST */
    *handle = &minors[number];
    return 0;
}
int nvmlDeviceGetMinorNumber(const unsigned *handle, unsigned *minor) { *minor = *handle; return 0; }
int nvmlDeviceGetName(const unsigned *handle, char *name, unsigned size)
{
    strncpy(name, "NVIDIA A100-SXM4-40GB", size);
    return 0;
}
"""

PROBE = "from spurd import gpus; [print(one) for one in gpus.discover()]"


def probe(**environment: str) -> list[str]:
    """What discovery says in a process of its own: the library is loaded once for its life."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler for a library that answers as NVIDIA's does")
def test_nvidias_library_is_asked_and_a_lost_gpu_is_left_out(tmp_path: Path) -> None:
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    source = tmp_path / "nvml.c"
    source.write_text(LIBRARY)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1", source], check=True)
    assert probe(LD_LIBRARY_PATH=str(tmp_path)) == [
        repr(nvidia(0, "nvidia_a100-sxm4-40gb")),
        repr(nvidia(1, "nvidia_a100-sxm4-40gb")),
    ]


def test_a_library_that_is_not_there_or_is_broken_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    assert probe(LD_LIBRARY_PATH=str(tmp_path)) == list(map(repr, gpus.discover(library=False)))
