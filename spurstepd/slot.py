"""The slot: 4 KiB written at launch, so that a full disk cannot lose an exit.

Writing over blocks that a file already has needs no room (checked on ext4, xfs, tmpfs). The first half takes the exit
record, written once; the second is a spare place for the ledger while manifest.json cannot be replaced. Each half is

    8 bytes  magic          4 bytes  length of the JSON          4 bytes  its CRC-32          the JSON

and one that is torn reads as empty. Where the exit half is complete, it is right, whatever the manifest says.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from typing import Any

from spurstepd import ledger
from spurstepd.ledger import Exit, LedgerError, Manifest, Process, Record
from spurstepd.manifest import ManifestUnreadable, dump, load, parse, read_file
from spurstepd.rundir import SLOT_BYTES, RunDir

_HALF = SLOT_BYTES // 2
_HEAD = struct.Struct("<8sII")
_EXIT_MAGIC = b"SPUREXIT"
_SPARE_MAGIC = b"SPURSPAR"


class SlotFull(Exception):
    """The record is larger than its half."""


def write_exit(run_dir: RunDir, leader: Process, exit: Exit) -> None:
    """Make the exit of `leader` durable. OSError where even that cannot be written."""
    record = {"leader": identity(leader), "exit": ledger.encode_exit(exit)}
    _write(run_dir, 0, _EXIT_MAGIC, dump(record))


def read_exit(run_dir: RunDir, leader: Process | None) -> Exit | None:
    """The exit in the slot; None where there is none, it is torn, or it is not that of `leader`."""
    values = _read(run_dir, 0, _EXIT_MAGIC)
    if values is None:
        return None
    try:
        record = Record(values, "exit slot")
        if leader != ledger.decode_process(record.record("leader")):
            return None
        return ledger.decode_exit(record.record("exit"))
    except LedgerError:
        return None


def write_spare(run_dir: RunDir, manifest: Manifest) -> None:
    """Keep `manifest` in the spare half. SlotFull, OSError: it is not kept."""
    _write(run_dir, _HALF, _SPARE_MAGIC, dump(ledger.encode(manifest)))


def read_spare(run_dir: RunDir) -> Manifest | None:
    """The ledger in the spare half, which counts where its revision is later than that of manifest.json."""
    values = _read(run_dir, _HALF, _SPARE_MAGIC)
    if values is None:
        return None
    try:
        return parse(run_dir.slot, dump(values))
    except ManifestUnreadable:
        return None


def identity(process: Process) -> dict[str, int | None]:
    return {"pid": process.pid, "inode": process.inode, "start_ticks": process.start_ticks}


def _write(run_dir: RunDir, at: int, magic: bytes, data: bytes) -> None:
    if len(data) > _HALF - _HEAD.size:
        raise SlotFull(f"{run_dir.slot}: a record of {len(data)} bytes does not fit")
    fd = os.open(run_dir.slot, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.pwrite(fd, _HEAD.pack(magic, len(data), zlib.crc32(data)) + data, at)
        os.fdatasync(fd)
    finally:
        os.close(fd)


def _read(run_dir: RunDir, at: int, magic: bytes) -> dict[str, Any] | None:
    try:
        data = read_file(run_dir.slot, SLOT_BYTES)[at : at + _HALF]
    except ManifestUnreadable:
        return None
    if len(data) < _HEAD.size:
        return None
    found, length, checksum = _HEAD.unpack_from(data)
    body = data[_HEAD.size : _HEAD.size + length]
    if found != magic or not body or len(body) != length or zlib.crc32(body) != checksum:
        return None  # without a body the head could be torn: the checksum of nothing is 0
    values = json.loads(body)
    return values if isinstance(values, dict) else None


def load_latest(run_dir: RunDir) -> Manifest:
    """The ledger as it was last written, in manifest.json or in the spare half. ManifestUnreadable: in neither."""
    spare = read_spare(run_dir)
    try:
        kept = load(run_dir)
    except ManifestUnreadable:
        if spare is None or str(spare.run) != run_dir.path.name:
            raise
        return spare
    return spare if spare is not None and spare.run == kept.run and spare.revision > kept.revision else kept
