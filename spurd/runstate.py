"""What a supervisor says of its run, as a value of ours.

Decoded by hand and with tolerance for what is not known: an older or a newer supervisor may leave out a field that is
optional or send more than we know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from spurstepd import ledger
from spurstepd.ids import RunId
from spurstepd.ledger import Duty, Exit, Manifest, Obligation, Process, Progress, Record, Usage, Verdict


class Phase(Enum):
    """How far a run is; in the order of its life."""

    ACCEPTED = "accepted"
    PROLOG = "prolog"
    READY = "ready"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"
    FINISHED = "finished"
    ANSWERED = "answered"

    @property
    def rank(self) -> int:
        return _RANK[self]


_RANK = {phase: rank for rank, phase in enumerate(Phase)}


@dataclass(frozen=True, slots=True)
class RunState:
    run: RunId
    phase: Phase
    uid: int
    suspended: bool = False
    supervisor: Process | None = None
    leader: Process | None = None
    verdict: Verdict | None = None
    exit: Exit | None = None
    obligations: Mapping[Duty, Obligation] = field(default_factory=dict)
    drain: str | None = None
    waiting_for: str | None = None
    # None: this supervisor does not tell, its manifest does
    drain_noted: bool | None = None
    requeue_held: bool | None = None


def decode(top: Record) -> RunState:
    """The `State` of org.spur.Run. ledger.LedgerError names the field that is wrong."""
    return RunState(
        run=RunId(top.integer("job", least=1), top.integer("attempt", least=1)),
        phase=top.one_of("phase", Phase),
        uid=top.integer("uid"),
        suspended=top.flag("suspended"),
        supervisor=_process(top, "supervisor"),
        leader=_process(top, "leader"),
        verdict=ledger.decode_verdict(top.optional("verdict", Record.record)),
        exit=_exit(top.optional("exit", Record.record)),
        obligations=dict(_obligation(one) for one in top.records("obligations")),
        drain=top.optional("drain", Record.text),
        waiting_for=top.optional("waiting_for", Record.text),
        drain_noted=top.optional("drain_noted", Record.flag),
        requeue_held=top.optional("requeue_held", Record.flag),
    )


def _process(top: Record, key: str) -> Process | None:
    record = top.optional(key, Record.record)
    return None if record is None else ledger.decode_process(record)


def _exit(record: Record | None) -> Exit | None:
    if record is None:
        return None
    usage = record.optional("usage", Record.record)
    return Exit(
        source=record.one_of("source", ledger.ExitSource),
        status=record.optional("status", Record.integer),
        at=record.number("at"),
        oom_kills=record.integer("oom_kills"),
        usage=None if usage is None else decode_usage(usage),
        detail=record.optional("detail", Record.text) or "",
    )


def decode_usage(record: Record) -> Usage:
    return Usage(
        record.number("user_cpu_s"),
        record.number("system_cpu_s"),
        record.integer("max_rss_kib"),
        record.integer("read_bytes"),
        record.integer("written_bytes"),
        record.integer("peak_memory_bytes"),
    )


def _obligation(record: Record) -> tuple[Duty, Obligation]:
    since = record.optional("since", Record.number)
    return record.one_of("duty", Duty), Obligation(
        record.one_of("progress", Progress), since or 0.0, record.optional("detail", Record.text) or ""
    )


def of_manifest(manifest: Manifest) -> RunState:
    """What the record alone tells of a run whose supervisor does not answer. It never says FINISHED: what is left of
    the run, only a supervisor can tell."""
    return RunState(
        run=manifest.run,
        phase=_phase(manifest),
        uid=manifest.uid,
        suspended=manifest.suspended,
        supervisor=manifest.supervisor,
        leader=manifest.leader,
        verdict=manifest.verdict,
        exit=manifest.exit,
        obligations=manifest.obligations,
        drain=manifest.drain,
        drain_noted=manifest.drain_noted,
        requeue_held=manifest.requeue_held,
    )


def _phase(manifest: Manifest) -> Phase:
    if manifest.answer is not None:
        return Phase.ANSWERED
    if manifest.exit is not None:
        return Phase.ENDED
    return Phase.ACCEPTED if manifest.leader is None else Phase.RUNNING
