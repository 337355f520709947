"""The smallest initial RAM disk that finds a virtio disk and changes over to it.

Debian's own takes a minute to make and seconds to unpack under emulation; this one holds a shell, the
virtio modules and what they depend on.
"""

from __future__ import annotations

import lzma
import re
import stat
from collections.abc import Iterable
from pathlib import Path

INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t devtmpfs dev /dev
for module in /modules/*; do $b insmod $module; done
n=0
while [ ! -b /dev/vda ] && [ $n -lt 100 ]; do $b sleep 0.1; n=$((n + 1)); done
$b mount -t ext4 -o noatime /dev/vda /root || exec $b poweroff -f
$b mount --move /dev /root/dev
exec $b switch_root /root /sbin/init
"""


def modules_for(kernel: Path, wanted: Iterable[str]) -> list[tuple[str, bytes]]:
    """Name and content of each module below `kernel` in `wanted`, dependencies first.

    Modules that the kernel has built in are left out.
    """
    files = {path.name.split(".")[0].replace("-", "_"): path for path in kernel.rglob("*.ko*")}
    order: dict[str, bytes] = {}

    def add(name: str) -> None:
        if name in order or name not in files:
            return
        raw = files[name].read_bytes()
        content = lzma.decompress(raw) if files[name].suffix == ".xz" else raw
        match = re.search(rb"\0depends=([^\0]*)\0", content)
        for needed in match[1].decode().split(",") if match else ():
            add(needed.replace("-", "_"))
        order[name] = content

    for name in wanted:
        add(name)
    return list(order.items())


def _entry(number: int, name: str, mode: int, content: bytes = b"") -> bytes:
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return head + b"\0" * (-len(head) % 4) + content + b"\0" * (-len(content) % 4)


def build(busybox: bytes, modules: list[tuple[str, bytes]]) -> bytes:
    """A cpio archive ("newc", Linux Documentation/driver-api/early-userspace/buffer-format.rst)."""
    entries: list[tuple[str, int, bytes]] = [
        (name, stat.S_IFDIR | 0o755, b"") for name in ("bin", "dev", "modules", "root")
    ]
    entries.append(("bin/busybox", stat.S_IFREG | 0o755, busybox))
    entries.append(("init", stat.S_IFREG | 0o755, INIT.encode()))
    for index, (name, content) in enumerate(modules):
        entries.append((f"modules/{index:02}-{name}.ko", stat.S_IFREG | 0o644, content))
    archive = b"".join(_entry(number, *entry) for number, entry in enumerate(entries, 1))
    return archive + _entry(0, "TRAILER!!!", 0)
