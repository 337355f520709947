"""Denying devices on cgroup v2, where the kernel wants a BPF program for it.

The program is so small that it is assembled here: three loads, then a comparison for each denied device. Once it is
attached it belongs to the cgroup and goes with it; no descriptor is kept. Program type and context: cgroup-v2.rst
("Device controller") and struct bpf_cgroup_dev_ctx in linux/bpf.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from spurstepd.cgroups.container import DeviceNumber

_SYSCALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "loongarch64": 280, "ppc64le": 361, "s390x": 351}
"""Number of bpf(2)."""

_PROG_LOAD, _PROG_ATTACH = 5, 8
_TYPE_CGROUP_DEVICE, _ATTACH_CGROUP_DEVICE = 15, 6
_ALLOW_MULTI = 2  # a service manager's own filter further up stays in force

_KINDS = {"b": 1, "c": 2}  # BPF_DEVCG_DEV_*, the lower half of the context's first word
_LOAD_WORD, _AND_32, _JUMP_IF_NOT, _MOVE, _EXIT = 0x61, 0x54, 0x55, 0xB7, 0x95
_RESULT, _CONTEXT, _KIND, _MAJOR, _MINOR = 0, 1, 2, 3, 4  # registers


def assemble(denied: Sequence[DeviceNumber]) -> bytes:
    """A program that refuses every access to `denied` and allows all else."""
    program = [
        _instruction(_LOAD_WORD, _KIND, _CONTEXT, offset=0),
        _instruction(_LOAD_WORD, _MAJOR, _CONTEXT, offset=4),
        _instruction(_LOAD_WORD, _MINOR, _CONTEXT, offset=8),
        _instruction(_AND_32, _KIND, value=0xFFFF),
    ]
    for device in denied:
        program += [
            _instruction(_JUMP_IF_NOT, _KIND, offset=4, value=_KINDS[device.kind]),
            _instruction(_JUMP_IF_NOT, _MAJOR, offset=3, value=device.major),
            _instruction(_JUMP_IF_NOT, _MINOR, offset=2, value=device.minor),
            _instruction(_MOVE, _RESULT, value=0),
            _instruction(_EXIT),
        ]
    return b"".join([*program, _instruction(_MOVE, _RESULT, value=1), _instruction(_EXIT)])


def _instruction(code: int, target: int = 0, source: int = 0, *, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("=BBhi", code, source << 4 | target, offset, value)


def deny(directory: str, denied: Sequence[DeviceNumber]) -> None:
    """Attach a filter for `denied` to the cgroup `directory`. OSError: the kernel cannot, or will not let us."""
    instructions = ctypes.create_string_buffer(assemble(denied))
    license_text = ctypes.create_string_buffer(b"GPL")
    load = struct.pack(
        "=IIQQIIQII16sII",
        _TYPE_CGROUP_DEVICE, (len(instructions) - 1) // 8, ctypes.addressof(instructions),
        ctypes.addressof(license_text), 0, 0, 0, 0, 0, b"spur_devices", 0, _ATTACH_CGROUP_DEVICE,
    )  # fmt: skip
    program = _bpf(_PROG_LOAD, load)
    try:
        cgroup = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _bpf(_PROG_ATTACH, struct.pack("=IIII", cgroup, program, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI))
        finally:
            os.close(cgroup)
    finally:
        os.close(program)


_libc = ctypes.CDLL(None, use_errno=True)
_number = _SYSCALL.get(os.uname().machine)


def _bpf(command: int, attributes: bytes) -> int:
    if _number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), "bpf")
    buffer = ctypes.create_string_buffer(attributes)
    result = int(_libc.syscall(ctypes.c_long(_number), command, buffer, len(attributes)))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "bpf")
    return result
