"""What is owed for a run, what it holds, and how it ended: the values of its manifest.

Values alone, nothing here opens a file (see `manifest`). Decoding is by hand and names the field that is wrong,
because a manifest is read by a root process and may have been written by another version, torn or planted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeVar

from spurstepd.ids import RunId

SCHEMA = 1
"""Version of the manifest. A reader takes every version up to its own."""


class LedgerError(ValueError):
    """A record that cannot be a manifest; the text names the field."""


class NewerSchema(LedgerError):
    """A manifest of a later version than this program knows."""


class Duty(Enum):
    """What is owed for every run, in the order in which it falls due."""

    PROLOG = "prolog"
    RUN = "run"
    EPILOG = "epilog"
    REPORT = "report"
    RELEASE = "release"


class Progress(Enum):
    """How far a duty is. RUNNING is durable before the act, so that finding it later means "was interrupted"."""

    NONE = "none"  # not owed: nothing to do for this run
    OWED = "owed"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"  # interrupted; never repeated

    @property
    def settled(self) -> bool:
        return self not in (Progress.OWED, Progress.RUNNING)


class ExitSource(Enum):
    """Who saw the exit."""

    WAITID = "waitid"
    WITNESS = "witness"
    KERNEL = "kernel"
    UNKNOWN = "unknown"  # nobody did
    NEVER_STARTED = "never_started"  # no user code ran


class VerdictKind(Enum):
    """Why a run is being ended."""

    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    NODE_LOST = "node_lost"
    STALE = "stale"
    LAUNCH_FAILED = "launch_failed"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class Process:
    """A process that a later reader can tell from every other one.

    `inode` is that of its pidfd on pidfs, never reused within a boot (Linux 6.9); where the kernel has none,
    `start_ticks` (field 22 of /proc/PID/stat) stands in. Both unknown: the identity is unknown, not refuted.
    """

    pid: int
    inode: int | None
    start_ticks: int | None


@dataclass(frozen=True, slots=True)
class Obligation:
    progress: Progress
    since: float = 0.0  # wall clock, for humans
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision to end the run. The first one stands."""

    kind: VerdictKind
    by_uid: int
    at: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    user_cpu_s: float = 0.0
    system_cpu_s: float = 0.0
    max_rss_kib: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    peak_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Exit:
    """How the leader of the run ended. `status` is the raw wait status; None for UNKNOWN and NEVER_STARTED."""

    source: ExitSource
    status: int | None
    at: float
    oom_kills: int = 0
    usage: Usage | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """A generic resource that has been granted, by its index among those of its name on the node."""

    name: str
    type: str
    index: int
    file: str


@dataclass(frozen=True, slots=True)
class Grant:
    """What the run holds on this node. `memory_mb` 0: it asked for no limit."""

    cpus: tuple[int, ...] = ()
    memory_mb: int = 0
    gpus: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """The ledger of one run on one node."""

    run: RunId
    boot_id: str
    nonce: str
    uid: int
    obligations: Mapping[Duty, Obligation]
    granted: Grant = Grant()
    cgroup: str | None = None
    supervisor: Process | None = None
    leader: Process | None = None
    verdict: Verdict | None = None
    exit: Exit | None = None
    drain: str | None = None  # this node must be drained for this reason ...
    drain_noted: bool = False  # ... and the controller has it
    requeue_held: bool = False  # the prolog failed: the job goes back, held
    deadline_boottime: float | None = None  # CLOCK_BOOTTIME of boot_id, in seconds
    suspended: bool = False
    suspended_boottime: float | None = None  # since when, on the same clock
    answer: str | None = None  # the controller's answer to the report
    revision: int = 0  # one more at each store: of two copies the later counts
    schema: int = SCHEMA
    extra: Mapping[str, Any] = field(default_factory=dict)  # fields of a later minor version, kept as they are

    def progress(self, duty: Duty) -> Progress:
        return self.obligations[duty].progress

    def marked(self, duty: Duty, progress: Progress, at: float, detail: str = "") -> Manifest:
        """This ledger with `duty` at `progress` since the wall-clock time `at`."""
        return replace(self, obligations={**self.obligations, duty: Obligation(progress, at, detail)})


def owed(*, prolog: bool, epilog: bool, at: float) -> dict[Duty, Obligation]:
    """The obligations of a new run; a hook that the site does not have is not owed."""
    none, owing = Obligation(Progress.NONE, at), Obligation(Progress.OWED, at)
    return {
        Duty.PROLOG: owing if prolog else none,
        Duty.RUN: owing,
        Duty.EPILOG: owing if epilog else none,
        Duty.REPORT: owing,
        Duty.RELEASE: owing,
    }


def encode(manifest: Manifest) -> dict[str, Any]:
    """`manifest` as JSON values."""
    return {
        **manifest.extra,
        "schema": manifest.schema,
        "job": manifest.run.job,
        "attempt": manifest.run.attempt,
        "boot_id": manifest.boot_id,
        "nonce": manifest.nonce,
        "uid": manifest.uid,
        "cgroup": manifest.cgroup,
        "supervisor": _encode_process(manifest.supervisor),
        "leader": _encode_process(manifest.leader),
        "granted": {
            "cpus": list(manifest.granted.cpus),
            "memory_mb": manifest.granted.memory_mb,
            "gpus": [{"name": d.name, "type": d.type, "index": d.index, "file": d.file} for d in manifest.granted.gpus],
        },
        "obligations": {
            duty.value: {"progress": o.progress.value, "since": o.since, "detail": o.detail}
            for duty, o in manifest.obligations.items()
        },
        "verdict": encode_verdict(manifest.verdict),
        "exit": encode_exit(manifest.exit),
        "drain": manifest.drain,
        "drain_noted": manifest.drain_noted,
        "requeue_held": manifest.requeue_held,
        "deadline_boottime": manifest.deadline_boottime,
        "suspended": manifest.suspended,
        "suspended_boottime": manifest.suspended_boottime,
        "answer": manifest.answer,
        "revision": manifest.revision,
    }


def encode_verdict(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {"kind": verdict.kind.value, "by_uid": verdict.by_uid, "at": verdict.at, "reason": verdict.reason}


def encode_exit(exit: Exit | None) -> dict[str, Any] | None:
    if exit is None:
        return None
    return {
        "source": exit.source.value,
        "status": exit.status,
        "at": exit.at,
        "oom_kills": exit.oom_kills,
        "usage": encode_usage(exit.usage),
        "detail": exit.detail,
    }


def encode_usage(usage: Usage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    return {name: getattr(usage, name) for name in Usage.__slots__}


def _encode_process(process: Process | None) -> dict[str, Any] | None:
    if process is None:
        return None
    return {"pid": process.pid, "inode": process.inode, "start_ticks": process.start_ticks}


def decode(values: object) -> Manifest:
    """The manifest in JSON values. LedgerError names the field that is wrong; NewerSchema a later version."""
    top = Record(values, "manifest")
    schema = top.integer("schema", least=1)
    if schema > SCHEMA:
        raise NewerSchema(f"manifest.schema is {schema}, this program knows up to {SCHEMA}")
    try:
        run = RunId(top.integer("job", least=1), top.integer("attempt", least=1))
    except ValueError as error:
        raise LedgerError(f"manifest.job: {error}") from None
    granted = top.record("granted")
    return Manifest(
        schema=SCHEMA,
        run=run,
        boot_id=top.text("boot_id"),
        nonce=top.text("nonce"),
        uid=top.integer("uid"),
        cgroup=top.optional("cgroup", Record.text),
        supervisor=_decode_process(top, "supervisor"),
        leader=_decode_process(top, "leader"),
        granted=Grant(
            cpus=tuple(granted.integers("cpus")),
            memory_mb=granted.integer("memory_mb"),
            gpus=tuple(_decode_device(one) for one in granted.records("gpus")),
        ),
        obligations=_decode_obligations(top.record("obligations")),
        verdict=decode_verdict(top.optional("verdict", Record.record)),
        exit=decode_exit(top.optional("exit", Record.record)),
        drain=top.optional("drain", Record.text),
        drain_noted=top.flag("drain_noted"),
        requeue_held=top.flag("requeue_held"),
        deadline_boottime=top.optional("deadline_boottime", Record.number),
        suspended=top.flag("suspended"),
        suspended_boottime=top.optional("suspended_boottime", Record.number),
        answer=top.optional("answer", Record.text),
        revision=top.integer("revision"),
        extra=top.others(_KNOWN),
    )


def _decode_obligations(record: Record) -> dict[Duty, Obligation]:
    found = {}
    for duty in Duty:
        one = record.record(duty.value)
        found[duty] = Obligation(one.one_of("progress", Progress), one.number("since"), one.text("detail"))
    return found


def decode_verdict(record: Record | None) -> Verdict | None:
    if record is None:
        return None
    return Verdict(
        record.one_of("kind", VerdictKind), record.integer("by_uid"), record.number("at"), record.text("reason")
    )


def decode_exit(record: Record | None) -> Exit | None:
    if record is None:
        return None
    return Exit(
        source=record.one_of("source", ExitSource),
        status=record.optional("status", Record.integer),
        at=record.number("at"),
        oom_kills=record.integer("oom_kills"),
        usage=_decode_usage(record.optional("usage", Record.record)),
        detail=record.text("detail"),
    )


def _decode_usage(record: Record | None) -> Usage | None:
    if record is None:
        return None
    return Usage(
        record.number("user_cpu_s"),
        record.number("system_cpu_s"),
        record.integer("max_rss_kib"),
        record.integer("read_bytes"),
        record.integer("written_bytes"),
        record.integer("peak_memory_bytes"),
    )


def _decode_process(top: Record, key: str) -> Process | None:
    record = top.optional(key, Record.record)
    if record is None:
        return None
    return decode_process(record)


def decode_process(record: Record) -> Process:
    return Process(
        record.integer("pid", least=1),
        record.optional("inode", Record.integer),
        record.optional("start_ticks", Record.integer),
    )


def _decode_device(record: Record) -> Device:
    return Device(record.text("name"), record.text("type"), record.integer("index"), record.text("file"))


_KNOWN = frozenset(
    {
        "schema", "job", "attempt", "boot_id", "nonce", "uid", "cgroup", "supervisor", "leader", "granted",
        "obligations", "verdict", "exit", "drain", "drain_noted", "requeue_held", "deadline_boottime", "suspended",
        "suspended_boottime",
        "answer", "revision",
    }
)  # fmt: skip

T = TypeVar("T")
E = TypeVar("E", bound=Enum)


class Record:
    """A JSON object from outside, read field by field; every refusal says which field and what it holds."""

    def __init__(self, values: object, where: str) -> None:
        if not isinstance(values, dict):
            raise LedgerError(f"{where} is {_brief(values)}, not an object")
        self._values: dict[str, Any] = values
        self._where = where

    def _get(self, key: str) -> Any:
        if key not in self._values:
            raise LedgerError(f"{self._where}.{key} is missing")
        return self._values[key]

    def _refuse(self, key: str, wanted: str) -> LedgerError:
        return LedgerError(f"{self._where}.{key} is {_brief(self._values[key])}, not {wanted}")

    def integer(self, key: str, least: int = 0) -> int:
        value = self._get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._refuse(key, f"an integer of at least {least}")
        return value

    def number(self, key: str) -> float:
        value = self._get(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._refuse(key, "a number")
        return float(value)

    def text(self, key: str) -> str:
        value = self._get(key)
        if not isinstance(value, str):
            raise self._refuse(key, "a string")
        return value

    def flag(self, key: str) -> bool:
        value = self._get(key)
        if not isinstance(value, bool):
            raise self._refuse(key, "true or false")
        return value

    def integers(self, key: str) -> list[int]:
        value = self._get(key)
        if not isinstance(value, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            raise self._refuse(key, "a list of integers")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._get(key)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self._refuse(key, "a list of strings")
        return value

    def record(self, key: str) -> Record:
        return Record(self._get(key), f"{self._where}.{key}")

    def records(self, key: str) -> list[Record]:
        value = self._get(key)
        if not isinstance(value, list):
            raise self._refuse(key, "a list")
        return [Record(one, f"{self._where}.{key}[{i}]") for i, one in enumerate(value)]

    def one_of(self, key: str, kind: type[E]) -> E:
        value = self.text(key)
        try:
            return kind(value)
        except ValueError:
            raise self._refuse(key, "one of " + ", ".join(str(one.value) for one in kind)) from None

    def optional(self, key: str, read: Callable[[Record, str], T]) -> T | None:
        """The field by `read`; None where it is null or absent, as a field of a later version is in an older record."""
        if self._values.get(key) is None:
            return None
        return read(self, key)

    def others(self, known: frozenset[str]) -> dict[str, Any]:
        return {key: value for key, value in self._values.items() if key not in known}


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
