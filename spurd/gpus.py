"""Graphics processors: which there are, which of them a run sees, and whether they are still there.

Found by asking NVIDIA's library and AMD's part of /sys, or taken from the configuration. What a run sees is told by
the variables that the vendors' runtimes read. These are no fence, a program may change them: that is device access
in the cgroup (constrain_devices).
"""

from __future__ import annotations

import importlib
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from spur.gres import DeviceFile, Gres
from spurd.claims import Difference, describe, key
from spurstepd.ids import RunId
from spurstepd.ledger import Device, Grant

GPU = "gpu"
_NVIDIA_FILE = re.compile(r"nvidia([0-9]+)")
_RENDER_FILE = re.compile(r"renderD([0-9]+)")


class Vendor(Enum):
    """By which variables a device is made visible. OTHER: by all, as a stand-in may be either."""

    NVIDIA = "nvidia"
    AMD = "amd"
    OTHER = "other"


def vendor_of(device: Device) -> Vendor:
    name = os.path.basename(device.file)
    if _NVIDIA_FILE.fullmatch(name):
        return Vendor.NVIDIA
    return Vendor.AMD if _RENDER_FILE.fullmatch(name) else Vendor.OTHER


_CUDA, _ROCR, _HIP, _OPENCL = (
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
)

VARIABLES = frozenset({_CUDA, _ROCR, _HIP, _OPENCL, "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE"})
"""All that `visibility` may set. What a job brings along of them holds for another machine and has to be dropped."""


def visibility(grant: Grant, devices: Iterable[Device], constrained: bool) -> dict[str, str]:
    """The variables by which a run with `grant` sees its GPUs and, on a node with `devices`, no other one.

    SLURM_JOB_GPUS counts as the node does. The runtimes count what they can open: where the run is `constrained` to
    its devices these are the run's own, from 0; otherwise all that the machine has. Slurm's rules, but for one: where
    a run got none, Slurm leaves the variables unset and relies on the cgroup; here they are empty, which means none
    to the runtimes of both vendors, so that a run that asked for none sees none without a cgroup too.
    """
    mine = _ordered(device for device in grant.gpus if device.name == GPU)
    there = _ordered({key(device): device for device in [*devices, *mine] if device.name == GPU}.values())
    if not there:
        return {}
    if not mine:
        return {_CUDA: "", _ROCR: "", _OPENCL: ""}
    slurm = {"SLURM_JOB_GPUS": _list(device.index for device in mine), "SLURM_GPUS_ON_NODE": str(len(mine))}
    vendors = {vendor_of(device) for device in there}
    if vendors == {Vendor.NVIDIA, Vendor.AMD}:
        return slurm | _of_both_vendors(mine, there, constrained)
    numbers = _list(range(len(mine)) if constrained else (device.index for device in mine))
    return slurm | dict.fromkeys(_READ_BY[vendors.pop() if len(vendors) == 1 else Vendor.OTHER], numbers)


_READ_BY = {Vendor.NVIDIA: (_CUDA,), Vendor.AMD: (_ROCR,), Vendor.OTHER: (_CUDA, _ROCR, _OPENCL)}


def _of_both_vendors(mine: Sequence[Device], there: Sequence[Device], constrained: bool) -> dict[str, str]:
    """Each runtime counts its own vendor's devices alone."""
    variables = {}
    for vendor, name in ((Vendor.NVIDIA, _CUDA), (Vendor.AMD, _ROCR)):
        own = [device for device in mine if vendor_of(device) is vendor]
        line = own if constrained else [device for device in there if vendor_of(device) is vendor]
        variables[name] = _list(line.index(device) for device in own)
    if variables[_ROCR]:
        # AMD's HIP obeys CUDA_VISIBLE_DEVICES too, unless it has a variable of its own; it counts what ROCR left.
        variables[_HIP] = _list(range(variables[_ROCR].count(",") + 1))
    return variables


def _list(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def _ordered(devices: Iterable[Device]) -> list[Device]:
    return sorted(devices, key=lambda device: (device.index, device.file))


@dataclass(frozen=True, slots=True)
class Resolution:
    """The devices of the node. `reasons`: what the configuration promises and the machine does not have; it drains."""

    devices: tuple[Device, ...]
    reasons: tuple[str, ...]


def resolve(
    declared: Sequence[Gres] | None, files: Sequence[DeviceFile], found: Sequence[Device], hardware: int = 0
) -> Resolution:
    """What the configuration and the machine together say that there is.

    Listed `files` are the node's GPUs. Without them the GPUs that were `found` are, or as many of them as are
    `declared`; a declared type matches a found one that contains it (`a100` is in `nvidia_a100-sxm4-40gb`) or that
    is not known. Where none was found, and none is seen on the bus either (`hardware`), a declared number is only
    counted: a stand-in, as is every other kind of resource.
    """
    gpus = [one for one in declared or () if one.name == GPU]
    others = _counted(one for one in declared or () if one.name != GPU)
    if files:
        return Resolution((*_listed(files, found), *others), ())
    if declared is None:
        return Resolution(tuple(found), ())
    if not found and not hardware:
        return Resolution((*_counted(gpus), *others), ())
    chosen, reasons = _match(gpus, found)
    return Resolution((*chosen, *others), tuple(reasons))


def _listed(files: Sequence[DeviceFile], found: Sequence[Device]) -> list[Device]:
    """The devices by the numbers that the runtimes know them by; by their places in the list where one has none."""
    known = {device.file: device.index for device in found}
    numbers = [known.get(one.file, _number(one.file)) for one in files]
    if len(set(numbers) - {None}) < len(files):
        return [Device(GPU, one.type, place, one.file) for place, one in enumerate(files)]
    return [Device(GPU, one.type, number or 0, one.file) for one, number in zip(files, numbers, strict=True)]


def _number(file: str) -> int | None:
    match = _NVIDIA_FILE.fullmatch(os.path.basename(file))
    return int(match[1]) if match else None


def _counted(amounts: Iterable[Gres]) -> list[Device]:
    """A piece for each that is declared, numbered within its name."""
    numbers: Counter[str] = Counter()
    pieces = []
    for one in amounts:
        for _ in range(one.count):
            pieces.append(Device(one.name, one.type, numbers[one.name], ""))
            numbers[one.name] += 1
    return pieces


def _match(declared: Sequence[Gres], found: Sequence[Device]) -> tuple[list[Device], list[str]]:
    left = list(_ordered(found))
    chosen: list[Device] = []
    reasons = []
    for one in sorted(declared, key=lambda one: not one.type):
        fitting = [device for device in left if not device.type or one.type.lower() in device.type]
        fitting = fitting[: one.count]
        left = [device for device in left if device not in fitting]
        chosen += [Device(GPU, one.type, device.index, device.file) for device in fitting]
        if len(fitting) < one.count:
            what = f"gres/{one.name}:{one.type}" if one.type else f"gres/{one.name}"
            reasons.append(f"{what}: {one.count} configured, {len(fitting)} found")
    return _ordered(chosen), reasons


def absent_files(devices: Iterable[Device]) -> tuple[Device, ...]:
    """Those whose file is not there (any more). A device that is only counted has none to look for."""
    return tuple(device for device in devices if device.file and not os.path.exists(device.file))


def vanished(absent: Collection[Device], held: Mapping[RunId, Grant]) -> list[Difference]:
    """What to drain the node for, one for each device that is gone, with the runs that hold it."""
    found = []
    for device in _ordered(absent):
        holders = sorted(run for run, grant in held.items() if key(device) in map(key, grant.gpus))
        under = f" under run {', '.join(map(str, holders))}" if holders else ""
        text = f"{describe(device)} vanished{under}"
        found += [Difference(run, f"gres/{device.name}", text, drains=True) for run in holders or (None,)]
    return found


def discover(root: Path = Path("/"), library: bool = True) -> tuple[Device, ...]:
    """The GPUs of this machine, ordered by index. `library` False: NVIDIA's is not asked, only its device files.

    The index is the number that the vendor's runtime knows the device by; where there are devices of both vendors,
    AMD's are counted on from NVIDIA's.
    """
    nvidia = _ask_nvidia() if library else None
    if nvidia is None:
        nvidia = _nvidia_files(root / "dev")
    first = max((device.index + 1 for device in nvidia), default=0)
    amd = [replace(device, index=first + rank) for rank, device in enumerate(_amd(root))]
    return tuple(_ordered([*nvidia, *amd]))


def _ask_nvidia() -> list[Device] | None:
    """What NVIDIA's library knows; None where there is no library, no driver or no binding for them.

    A device that the driver has lost is left out: it cannot be used. The index is the number in the file's name.
    """
    try:
        nvml: Any = importlib.import_module("pynvml")  # of nvidia-ml-py, an optional dependency
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        return [one for number in range(nvml.nvmlDeviceGetCount()) if (one := _ask_for_one(nvml, number))]
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _ask_for_one(nvml: Any, number: int) -> Device | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        minor, name = nvml.nvmlDeviceGetMinorNumber(handle), nvml.nvmlDeviceGetName(handle)
    except nvml.NVMLError:
        return None
    return Device(GPU, type_name(name), minor, f"/dev/nvidia{minor}")


def type_name(product: str) -> str:
    """A product's name as a type of generic resource, by Slurm's rule: lower case, underscores for blanks."""
    return re.sub(r"[^a-z0-9_.-]+", "_", product.strip().lower())


def _nvidia_files(dev: Path) -> list[Device]:
    """What the driver has made device files for, where its library cannot be asked."""
    names = (_NVIDIA_FILE.fullmatch(name) for name in _names(dev))
    return [Device(GPU, "", int(match[1]), f"/dev/{match[0]}") for match in names if match]


def _amd(root: Path) -> list[Device]:
    """AMD's GPUs in the order of the kernel's topology of what can compute, in which CPUs stand too."""
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    found: list[Device] = []
    for node in sorted((name for name in _names(nodes) if name.isdigit()), key=int):
        properties = _properties(nodes / node / "properties")
        minor = properties.get("drm_render_minor", 0)
        if properties.get("simd_count", 0) > 0 and minor > 0:
            product = _text(root / f"sys/class/drm/renderD{minor}/device/product_name") or _text(nodes / node / "name")
            found.append(Device(GPU, type_name(product), len(found), f"/dev/dri/renderD{minor}"))
    return found


def _properties(path: Path) -> dict[str, int]:
    words = (line.split() for line in _text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}


def hardware(root: Path = Path("/")) -> int:
    """How many NVIDIA and AMD accelerators are on the PCI bus, whether or not a driver has taken them."""
    devices = root / "sys/bus/pci/devices"
    found = 0
    for device in (devices / name for name in _names(devices)):
        # Class 0302: 3D controller, 1200: processing accelerator; a plain display, 0300, may be a server's console.
        wanted = _text(device / "class")[:6] in ("0x0302", "0x1200")
        found += wanted and _text(device / "vendor") in ("0x10de", "0x1002")
    return found


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _text(path: Path) -> str:
    """A short file of /sys; empty where it is not there, or where a cgroup forbids to read of that device."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
