"""The exit that the launcher reaped for a dead supervisor, and its file witness.json.

The launcher is a subreaper: when a supervisor dies, the leader of its run becomes the launcher's child, and the status
that wait4(2) gives there is as true as the supervisor's would have been.
"""

from __future__ import annotations

import json
import resource
from dataclasses import dataclass

from spurstepd import ledger
from spurstepd.ledger import Exit, ExitSource, LedgerError, Process, Record, Usage
from spurstepd.manifest import ManifestUnreadable, dump, read_file, replace_file
from spurstepd.rundir import RunDir

_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Witness:
    """`exit` of the process `leader`, as it was reaped."""

    leader: Process
    exit: Exit


def reaped(leader: Process, status: int, used: resource.struct_rusage, at: float) -> Witness:
    """What wait4 gave for `leader` at the wall-clock time `at`."""
    return Witness(leader, Exit(ExitSource.WITNESS, status, at, usage=usage_of(used)))


def usage_of(used: resource.struct_rusage) -> Usage:
    """Times and memory of a reaped child and its reaped descendants, getrusage(2). Blocks are of 512 bytes."""
    return Usage(
        user_cpu_s=used.ru_utime,
        system_cpu_s=used.ru_stime,
        max_rss_kib=used.ru_maxrss,
        read_bytes=used.ru_inblock * 512,
        written_bytes=used.ru_oublock * 512,
    )


def encode(witness: Witness) -> dict[str, object]:
    process = witness.leader
    return {
        "leader": {"pid": process.pid, "inode": process.inode, "start_ticks": process.start_ticks},
        "exit": ledger.encode_exit(witness.exit),
    }


def decode(values: object) -> Witness:
    """LedgerError names the field that is wrong."""
    record = Record(values, "witness")
    exit = ledger.decode_exit(record.record("exit"))
    if exit is None or exit.status is None:
        raise LedgerError("witness.exit has no status")
    return Witness(ledger.decode_process(record.record("leader")), exit)


def write(run_dir: RunDir, witness: Witness) -> None:
    """Durably. OSError: it could not be written."""
    replace_file(run_dir.witness, dump(encode(witness)))


def read(run_dir: RunDir) -> Witness | None:
    """The witness on disk; None where there is none that can be read."""
    try:
        return decode(json.loads(read_file(run_dir.witness, _BYTES)))
    except (ManifestUnreadable, LedgerError, ValueError):
        return None
