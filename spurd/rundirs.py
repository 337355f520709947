"""The directories of runs: made whole or not at all, read with distrust, set aside where they cannot be understood.

See `spurstepd.rundir` for what stands in them. spurd writes to one only before it has its name; from then on the
supervisor owns it.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spur.unixpath import short
from spurstepd import launchplan
from spurstepd.ids import RunId
from spurstepd.launchplan import LaunchPlan
from spurstepd.ledger import Manifest
from spurstepd.manifest import ManifestUnreadable, dump, is_locked, load_plan, store, sync_directory, write_file
from spurstepd.rundir import SLOT_BYTES, NodeDirs, RunDir
from spurstepd.slot import load_latest

TRAVERSE = 0o711


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A directory below runs/ whose record cannot be trusted. `run` is what its name says, None where it says none.

    `ledger` is there where the plan of the launch alone is lost.
    """

    name: str
    run: RunId | None
    reason: str
    ledger: Manifest | None = None


def prepare(dirs: NodeDirs) -> None:
    """Make the agent's directories, with the modes that keep others out (R40), and clear unfinished ones away.

    OSError: they cannot be made. PermissionError too where runs/ is not ours alone to write to.
    """
    dirs.state.mkdir(parents=True, exist_ok=True)
    dirs.runtime.mkdir(mode=0o755, parents=True, exist_ok=True)
    for path, mode in (
        (dirs.runs, TRAVERSE),
        (dirs.quarantine, 0o700),
        (dirs.sockets, 0o755),
        (dirs.launchers, 0o700),
    ):
        path.mkdir(mode=mode, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(f"{path} is not a directory of uid {os.geteuid()}")
        path.chmod(mode)
    for name in os.listdir(dirs.runs):
        if name.startswith("."):
            _remove(dirs.runs / name)
    for name in os.listdir(dirs.sockets):
        if not os.path.lexists(dirs.runs / name.removesuffix(".sock")) and _is_deserted(dirs.sockets / name):
            (dirs.sockets / name).unlink(missing_ok=True)


def _is_deserted(path: Path) -> bool:
    """Whether `path` is the socket of somebody who is dead: what its run had is gone, and it alone was left."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as caller, short(path) as name:
        try:
            caller.connect(name)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def make(dirs: NodeDirs, manifest: Manifest, plan: LaunchPlan, script: bytes) -> RunDir:
    """The directory of a new run, durable. Blocks. OSError: there is none, and nothing is left of it."""
    made = build(dirs, manifest, plan, script)
    final = dirs.run(manifest.run)
    try:
        os.rename(made, final.path)
    except OSError:
        _remove(made)
        raise
    sync_directory(dirs.runs)
    return final


def build(dirs: NodeDirs, manifest: Manifest, plan: LaunchPlan, script: bytes) -> Path:
    """All of it, synced, under a name that nobody takes for a run. OSError: nothing is left of it."""
    making = RunDir(dirs.runs / f".{manifest.run}.new")
    _remove(making.path)
    try:
        making.path.mkdir(mode=TRAVERSE)
        making.path.chmod(TRAVERSE)
        store(making, manifest)
        write_file(making.plan, dump(launchplan.encode(plan)), 0o600)
        write_file(making.slot, bytes(SLOT_BYTES), 0o600)
        write_file(making.lock, b"", 0o600)
        if script:
            write_file(making.script, script, 0o500)
            os.chown(making.script, plan.uid, plan.gid)
        sync_directory(making.path)
    except OSError:
        _remove(making.path)
        raise
    return making.path


def read_all(dirs: NodeDirs) -> Iterator[Manifest | Unreadable]:
    """Every record below runs/. Bounded in time and memory whatever stands there (R21)."""
    for name in sorted(os.listdir(dirs.runs)):
        if not name.startswith("."):
            yield _read(dirs, name)


def _read(dirs: NodeDirs, name: str) -> Manifest | Unreadable:
    try:
        run = RunId.parse(name)
    except ValueError as error:
        return Unreadable(name, None, str(error))
    path = dirs.runs / name
    ledger = None
    try:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            return Unreadable(name, run, f"{path} is not a directory")
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return Unreadable(name, run, f"{path} could have been written by others (owner {found.st_uid})")
        ledger = load_latest(RunDir(path))
        load_plan(RunDir(path))  # without it no supervisor can go on
    except (ManifestUnreadable, OSError) as error:
        return Unreadable(name, run, str(error), ledger)
    return ledger


def is_supervised(run_dir: RunDir) -> bool | None:
    """Whether a supervisor holds the lock; None where that cannot be told: unreadable is not dead (R25)."""
    try:
        return is_locked(run_dir)
    except OSError:
        return None


def exists(run_dir: RunDir) -> bool:
    """Whether the run is still on disk. True where that cannot be told."""
    try:
        run_dir.path.lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _remove(path: Path) -> None:
    """Remove what stands there, without following links."""
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path)
        else:
            path.unlink()
    except FileNotFoundError:
        pass
