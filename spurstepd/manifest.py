"""The ledger on disk: reading it with distrust, replacing it whole, and the lock that says who may.

One writer at a time: the holder of the flock on `lock`, a living supervisor. The lock is the proof of life as well:
the kernel frees it with the process, so there is no pid to be mistaken.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

from spurstepd import ledger
from spurstepd.launchplan import LaunchPlan
from spurstepd.launchplan import decode as decode_plan
from spurstepd.ledger import LedgerError, Manifest
from spurstepd.rundir import RunDir

MANIFEST_BYTES = 1 << 20
PLAN_BYTES = 64 << 20  # an environment can be large


class ManifestUnreadable(Exception):
    """A record that cannot be trusted or understood: one line, naming the file. Nothing was changed."""


def load(run_dir: RunDir) -> Manifest:
    """The ledger of `run_dir`, from manifest.json.

    ManifestUnreadable: it is missing, no regular file, too large, not ours, no manifest, another run's, or of a newer
    schema. What cannot be a record is never opened in a way that blocks.
    """
    manifest = parse(run_dir.manifest, read_file(run_dir.manifest, MANIFEST_BYTES))
    if str(manifest.run) != run_dir.path.name:
        raise ManifestUnreadable(f"{run_dir.manifest} is the record of run {manifest.run}")
    return manifest


def parse(path: Path, data: bytes) -> Manifest:
    """The ledger in `data`, which was read from `path`. ManifestUnreadable names path and field."""
    try:
        return ledger.decode(json.loads(data))
    except (LedgerError, ValueError, RecursionError) as error:
        raise ManifestUnreadable(f"{path} is no manifest: {error}") from None


def load_plan(run_dir: RunDir) -> LaunchPlan:
    """The launch plan of `run_dir`. ManifestUnreadable as for `load`."""
    data = read_file(run_dir.plan, PLAN_BYTES)
    try:
        return decode_plan(json.loads(data))
    except (LedgerError, ValueError, RecursionError) as error:
        raise ManifestUnreadable(f"{run_dir.plan} is no launch plan: {error}") from None


def read_file(path: Path, most_bytes: int) -> bytes:
    """The content of a record of ours: a regular file of our own, not writable by others, of at most `most_bytes`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ManifestUnreadable(f"{path} cannot be opened: {error.strerror}") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ManifestUnreadable(f"{path} is not a regular file")
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise ManifestUnreadable(f"{path} could have been written by others (owner {found.st_uid})")
        if found.st_size > most_bytes:
            raise ManifestUnreadable(f"{path} has {found.st_size} bytes, at most {most_bytes} are a record")
        return _read_all(fd, found.st_size)
    finally:
        os.close(fd)


def _read_all(fd: int, size: int) -> bytes:
    parts = []
    while size > 0 and (part := os.read(fd, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def store(run_dir: RunDir, manifest: Manifest) -> None:
    """Replace manifest.json, durably: a reader finds the old one or the new one, whole. OSError: nothing changed."""
    replace_file(run_dir.manifest, dump(ledger.encode(manifest)))


def dump(values: dict[str, Any]) -> bytes:
    """JSON in as few bytes as it takes."""
    return json.dumps(values, separators=(",", ":")).encode()


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` beside `path`, sync, rename over it, sync the directory: rename(2) is atomic, not durable."""
    beside = path.with_name(f".{path.name}.new")
    try:
        write_file(beside, data, 0o600)
        os.rename(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_file(path: Path, data: bytes, mode: int) -> None:
    """A new file at `path` (an old one there is removed) with exactly `mode`, synced."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, mode)
    except FileExistsError:
        os.unlink(path)
        fd = os.open(path, flags, mode)
    try:
        os.fchmod(fd, mode)  # whatever the umask is
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def take_lock(run_dir: RunDir, patience_s: float = 2.0) -> int | None:
    """The lock of `run_dir` as a descriptor that holds it until it is closed; None where somebody else has it.

    `is_locked` of another process takes the lock for an instant to look, hence the patience.
    """
    fd = os.open(run_dir.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() >= until:
                os.close(fd)
                return None
            time.sleep(0.01)


def is_locked(run_dir: RunDir) -> bool:
    """Whether a supervisor lives for `run_dir`. A directory without a lock file has none."""
    try:
        fd = os.open(run_dir.lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def boot_id() -> str:
    """The kernel's name for this boot, random(4): it changes with every one."""
    fd = os.open("/proc/sys/kernel/random/boot_id", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 64).decode().strip()
    finally:
        os.close(fd)
