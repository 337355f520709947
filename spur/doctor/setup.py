"""Configuration, key, clock, ports and spool of a node."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from spur import addresses
from spur.auth import KeyFileError, read_key
from spur.config import AuthPlugin, Config
from spur.doctor.finding import Finding, broken, lacking, ok

LEAST_SPOOL_BYTES = 256 * 2**20
LEAST_SPOOL_FILES = 10_000
LONGEST_SOCKET = 107  # sockaddr_un, unix(7)
_LONGEST_NAME = "runs/4294967295.4294967295.sock"
_UNSYNCHRONIZED = 0x40  # STA_UNSYNC, adjtimex(2)
_STATUS_AT = 5 * 8  # struct timex: modes, offset, freq, maxerror, esterror, status
_TIMEX_BYTES = 208
_CONNECT_S = 3.0


def key_file(config: Config) -> Finding:
    if config.auth.plugin is AuthPlugin.NONE:
        return lacking("key file", 'auth.plugin is "none": everybody is believed')
    try:
        read_key(config.auth.key_file)
    except KeyFileError as error:
        return broken("key file", f"{error}; without it no daemon starts")
    return ok("key file", f"{config.auth.key_file} is for the daemons alone")


def clock() -> Finding:
    """Whether the kernel believes that its clock is kept, adjtimex(2)."""
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    if state < 0:
        return lacking("clock", f"it cannot be asked: {os.strerror(ctypes.get_errno())}")
    return judge_clock(int.from_bytes(timex.raw[_STATUS_AT : _STATUS_AT + 4], "little"))


def judge_clock(status: int) -> Finding:
    if status & _UNSYNCHRONIZED:
        return lacking("clock", "nothing keeps it: once it is a minute off, calls are refused and times are wrong")
    return ok("clock", "it is kept by NTP or the like")


def port(config: Config) -> Finding:
    """Whether spurd can listen, or something listens already."""
    host, number = addresses.split(config.agent.listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, number))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return ok("port", f"{config.agent.listen} is in use: by spurd, if it runs here")
            return broken("port", f"{config.agent.listen}: {os.strerror(error.errno or 0)}: spurd cannot listen there")
    return ok("port", f"{config.agent.listen} is free for spurd")


def controller(config: Config) -> Finding:
    """Whether one of the controllers is reached."""
    failures = []
    for address in config.agent.controller:
        try:
            socket.create_connection(addresses.split(address), _CONNECT_S).close()
            return ok("controller", f"{address} answers")
        except OSError as error:
            failures.append(f"{address}: {error.strerror or error}")
    return lacking("controller", f"{'; '.join(failures)}: jobs run on, and nobody is told until it is back")


def spool(config: Config) -> Iterator[Finding]:
    """Where the ledger lies."""
    directory = config.agent.state_dir
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    yield judge_owner(directory, existing, existing.stat())
    usage, files = shutil.disk_usage(existing), os.statvfs(existing)
    if usage.free < LEAST_SPOOL_BYTES:
        yield lacking("spool", f"{existing} has {usage.free >> 20} MiB left: no job is taken once there is no room")
    if files.f_files > 0 and files.f_favail < LEAST_SPOOL_FILES:
        yield lacking("spool", f"{existing} has {files.f_favail} inodes left, a job needs a dozen")
    if _file_system(existing) in ("tmpfs", "ramfs", "overlay"):
        kind = _file_system(existing)
        yield lacking("spool", f"{existing} is on {kind}: after a reboot nothing is known of what ran before")


def judge_owner(directory: Path, existing: Path, status: os.stat_result) -> Finding:
    """`existing` is `directory` or the nearest thing above it that is there."""
    if status.st_uid != 0:
        return broken("spool", f"{existing} belongs to uid {status.st_uid}, who could plant records: make it root's")
    if stat.S_IMODE(status.st_mode) & 0o022 and not status.st_mode & stat.S_ISVTX:
        mode = stat.S_IMODE(status.st_mode)
        return broken("spool", f"{existing} has mode {mode:04o}: others could plant records; chmod go-w")
    if existing == directory:
        return ok("spool", f"{directory} is root's")
    return ok("spool", f"{directory} will be made in {existing}")


def socket_paths(config: Config) -> Finding:
    longest = config.agent.runtime_dir / _LONGEST_NAME
    length = len(os.fsencode(longest))
    if length > LONGEST_SOCKET:
        return lacking("sockets", f"a path of {length} bytes like {longest}: clients of ours alone reach it")
    return ok("sockets", f"in {config.agent.runtime_dir}")


def _file_system(path: Path) -> str:
    """The type of the file system that `path` is on, by the longest mount point above it."""
    best, kind = -1, ""
    real = path.resolve()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        where = Path(before.split(" ")[4])
        if real.is_relative_to(where) and len(where.parts) >= best:
            best, kind = len(where.parts), after.split(" ")[0]
    return kind
