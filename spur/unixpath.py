"""Paths of unix sockets that are longer than the 107 bytes that the kernel takes (unix(7))."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_BYTES = 107


@contextmanager
def short(path: Path) -> Iterator[str]:
    """A name under which `path` can be bound or connected to while the context lasts."""
    if len(os.fsencode(path)) <= MAX_BYTES:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
