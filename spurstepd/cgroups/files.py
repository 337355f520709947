"""Reading and writing the one-value files of cgroup hierarchies."""

from __future__ import annotations

import errno
import os

from spurstepd.cgroups.container import ContainmentError

GONE = (errno.ENOENT, errno.ENODEV, errno.ESRCH)
"""What the kernel says of a cgroup that has been removed, by path and by a file that is still open."""


def read(path: str) -> str:
    """The whole file. OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, 65536):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts).decode(errors="surrogateescape")


def read_if_there(path: str) -> str | None:
    """The whole file, None where there is none or its cgroup is gone. OSError for everything else."""
    try:
        return read(path)
    except OSError as error:
        if error.errno in (*GONE, errno.EOPNOTSUPP):
            return None
        raise


def write(path: str, text: str) -> None:
    """One write, as the kernel takes these files. OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def refusal(path: str, error: OSError) -> ContainmentError:
    """`error` at `path` as a sentence."""
    return ContainmentError(f"{path}: {os.strerror(error.errno or 0)}")


def keyed(text: str) -> dict[str, int]:
    """The numbers of a flat keyed file ("oom_kill 1" on each line); other values are left out."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if value.isdecimal():
            found[name] = int(value)
    return found


def number(path: str) -> int | None:
    """The number in the file; None where there is no such file or no number ("max") in it."""
    text = read_if_there(path)
    if text is None or not text.strip().isdecimal():
        return None
    return int(text)
