"""The records as JSON values, for the store, and back. What is volatile is left out and derived again.

Reading is by hand: a field that a later version adds has a default here, and one that is missing or of another kind
is refused by its name rather than guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, TypeVar

from spurctld.core.records import Job, Node, Part, Run
from spurctld.core.states import ExitSource, JobState, NodeState, Phase, Progress, VerdictKind
from spurctld.core.values import (
    Device,
    Exit,
    Grant,
    Gres,
    JobSpec,
    Machine,
    NodeSpec,
    Request,
    Resources,
    RunKey,
    Share,
    Usage,
    Verdict,
)

Values = dict[str, Any]
T = TypeVar("T")


class RowError(ValueError):
    """A row that cannot be what it stands for; the text names the field."""


# Out


def encode_spec(spec: JobSpec) -> Values:
    """What never changes about a job once it was taken."""
    request = spec.request
    values = {name: getattr(spec, name) for name in _SPEC}
    values["request"] = {
        **{name: getattr(request, name) for name in _REQUEST},
        "gres_per_node": _encode_gres(request.gres_per_node),
        "gres_per_task": _encode_gres(request.gres_per_task),
        "gres_per_job": _encode_gres(request.gres_per_job),
        "required": list(request.required),
        "excluded": sorted(request.excluded),
    }
    return values


_SPEC = ("name", "uid", "gid", "user", "group", "partition", "time_limit_s", "requeue", "hold", "nice", "account")
_REQUEST = ("nodes", "tasks", "tasks_per_node", "cpus_per_task", "memory_mb", "memory_per_cpu_mb")
_JOB = (
    "submitted_at", "eligible_at", "attempt", "priority", "held", "reason", "state_desc", "exit_raw", "started_at",
    "ended_at", "decided_at", "suspended_at", "suspended_s", "restarts", "launch_failures", "failed_node",
    "stimulus",
)  # fmt: skip


def encode_job(job: Job) -> Values:
    """What changes about a job."""
    values = {name: getattr(job, name) for name in _JOB}
    values["state"] = job.state.value
    values["runs"] = [_encode_run(run) for run in job.runs.values()]
    return values


def _encode_run(run: Run) -> Values:
    return {
        "attempt": run.key.attempt,
        "started_at": run.started_at,
        "verdict": _encode_verdict(run.verdict),
        "exit": _encode_exit(run.exit),
        "prolog": run.prolog.value,
        "epilog": run.epilog.value,
        "parts": [_encode_part(part) for part in run.parts.values()],
    }


def _encode_part(part: Part) -> Values:
    return {
        "node": part.node,
        "cpus": part.share.resources.cpus,
        "memory_mb": part.share.resources.memory_mb,
        "gres": _encode_gres(part.share.resources.gres),
        "tasks": part.share.tasks,
        "phase": part.phase.word,
        "boot_id": part.boot_id,
        "lost": part.lost,
        "grant": _encode_grant(part.grant),
    }


def _encode_grant(grant: Grant | None) -> Values | None:
    if grant is None:
        return None
    gpus = [{"name": d.name, "type": d.type, "index": d.index, "file": d.file} for d in grant.gpus]
    return {"cpus": list(grant.cpus), "memory_mb": grant.memory_mb, "gpus": gpus}


def _encode_verdict(verdict: Verdict | None) -> Values | None:
    if verdict is None:
        return None
    return {"kind": verdict.kind.value, "by_uid": verdict.by_uid, "at": verdict.at, "reason": verdict.reason}


def _encode_exit(exit: Exit | None) -> Values | None:
    if exit is None:
        return None
    usage = None if exit.usage is None else {f.name: getattr(exit.usage, f.name) for f in fields(Usage)}
    return {
        "source": exit.source.value,
        "status": exit.status,
        "at": exit.at,
        "oom_kills": exit.oom_kills,
        "detail": exit.detail,
        "usage": usage,
    }


def _encode_gres(amounts: tuple[Gres, ...]) -> list[list[str | int]]:
    return [[one.name, one.type, one.count] for one in amounts]


def encode_node(node: Node) -> Values:
    machine = node.machine
    return {
        "state": node.state.value,
        "down_reason": node.down_reason,
        "drained": node.drained,
        "drain_reason": node.drain_reason,
        "hook_drains": node.hook_drains,
        "agent_drains": node.agent_drains,
        "reason_uid": node.reason_uid,
        "reason_at": node.reason_at,
        "machine": None
        if machine is None
        else {**{f.name: getattr(machine, f.name) for f in fields(Machine)}, "gres": _encode_gres(machine.gres)},
    }


# In


class _Row:
    """JSON values, read field by field."""

    def __init__(self, values: object, where: str) -> None:
        if not isinstance(values, dict):
            raise RowError(f"{where} is not an object")
        self._values: Mapping[str, Any] = values
        self.where = where

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        value = self._values.get(key, default)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise RowError(f"{self.where}.{key} is {value!r:.60}, not of type {kind.__name__}")
        return value

    def maybe(self, key: str, kind: type[T]) -> T | None:
        return None if self._values.get(key) is None else self.get(key, kind)

    def enum(self, key: str, kind: type[_E]) -> _E:
        value = self.get(key, str)
        try:
            return kind(value)
        except ValueError:
            raise RowError(f"{self.where}.{key} is {value!r:.60}, no {kind.__name__}") from None

    def row(self, key: str) -> _Row:
        return _Row(self._values.get(key), f"{self.where}.{key}")

    def maybe_row(self, key: str, read: Callable[[_Row], T]) -> T | None:
        return None if self._values.get(key) is None else read(self.row(key))

    def rows(self, key: str) -> list[_Row]:
        return [_Row(one, f"{self.where}.{key}[{at}]") for at, one in enumerate(self.get(key, list))]

    def gres(self, key: str) -> tuple[Gres, ...]:
        try:
            return tuple(Gres(str(name), str(type), int(count)) for name, type, count in self.get(key, list, []))
        except (TypeError, ValueError):
            raise RowError(f"{self.where}.{key} is no list of name, type and count") from None

    def times(self, key: str) -> dict[str, float]:
        return {str(name): float(at) for name, at in self.get(key, dict, {}).items()}


_E = TypeVar("_E", bound=Enum)


def decode_spec(values: object, where: str) -> JobSpec:
    """RowError: the row names what is wrong in it."""
    row = _Row(values, where)
    request = row.row("request")
    return JobSpec(
        name=row.get("name", str),
        uid=row.get("uid", int),
        gid=row.get("gid", int),
        user=row.get("user", str),
        group=row.get("group", str),
        partition=row.get("partition", str),
        time_limit_s=row.maybe("time_limit_s", int),
        requeue=row.maybe("requeue", bool),
        hold=row.get("hold", bool),
        nice=row.get("nice", int),
        account=row.get("account", str, ""),
        request=Request(
            nodes=request.get("nodes", int),
            tasks=request.get("tasks", int),
            tasks_per_node=request.maybe("tasks_per_node", int),
            cpus_per_task=request.get("cpus_per_task", int),
            memory_mb=request.maybe("memory_mb", int),
            memory_per_cpu_mb=request.maybe("memory_per_cpu_mb", int),
            gres_per_node=request.gres("gres_per_node"),
            gres_per_task=request.gres("gres_per_task"),
            gres_per_job=request.gres("gres_per_job"),
            required=tuple(str(one) for one in request.get("required", list)),
            excluded=frozenset(str(one) for one in request.get("excluded", list)),
        ),
    )


def decode_job(number: int, spec: JobSpec, values: object) -> Job:
    row = _Row(values, f"job {number}")
    job = Job(number, spec, row.get("submitted_at", float), row.get("eligible_at", float))
    job.state = row.enum("state", JobState)
    for name in _JOB:
        setattr(job, name, row.get(name, type(getattr(job, name))))
    for one in row.rows("runs"):
        run = _decode_run(number, one)
        job.runs[run.key.attempt] = run
    return job


def _decode_run(number: int, row: _Row) -> Run:
    parts = [_decode_part(one) for one in row.rows("parts")]
    if not parts:
        raise RowError(f"{row.where}.parts is empty")
    return Run(
        key=RunKey(number, row.get("attempt", int)),
        parts={part.node: part for part in parts},
        started_at=row.get("started_at", float),
        verdict=row.maybe_row("verdict", _decode_verdict),
        exit=row.maybe_row("exit", _decode_exit),
        prolog=row.enum("prolog", Progress),
        epilog=row.enum("epilog", Progress),
    )


_PHASES = {phase.word: phase for phase in Phase}


def _decode_part(row: _Row) -> Part:
    word = row.get("phase", str)
    if word not in _PHASES:
        raise RowError(f"{row.where}.phase is {word!r:.60}, no phase of a run")
    resources = Resources(row.get("cpus", int), row.get("memory_mb", int), row.gres("gres"))
    return Part(
        Share(row.get("node", str), resources, row.get("tasks", int)),
        phase=_PHASES[word],
        grant=row.maybe_row("grant", _decode_grant),
        boot_id=row.get("boot_id", str),
        lost=row.get("lost", bool),
    )


def _decode_grant(row: _Row) -> Grant:
    gpus = tuple(
        Device(one.get("name", str), one.get("type", str), one.get("index", int), one.get("file", str))
        for one in row.rows("gpus")
    )
    return Grant(tuple(int(cpu) for cpu in row.get("cpus", list)), row.get("memory_mb", int), gpus)


def _decode_verdict(row: _Row) -> Verdict:
    return Verdict(row.enum("kind", VerdictKind), row.get("by_uid", int), row.get("at", float), row.get("reason", str))


def _decode_exit(row: _Row) -> Exit:
    return Exit(
        source=row.enum("source", ExitSource),
        status=row.maybe("status", int),
        at=row.get("at", float),
        oom_kills=row.get("oom_kills", int),
        detail=row.get("detail", str),
        usage=row.maybe_row("usage", _decode_usage),
    )


def _decode_usage(row: _Row) -> Usage:
    return Usage(**{f.name: row.get(f.name, type(f.default), f.default) for f in fields(Usage)})


def decode_node(spec: NodeSpec, order: int, values: object) -> Node:
    row = _Row(values, f"node {spec.name}")
    node = Node(spec, order)
    node.state = row.enum("state", NodeState)
    node.down_reason = row.get("down_reason", str)
    node.drained, node.drain_reason = row.get("drained", bool), row.get("drain_reason", str)
    node.hook_drains, node.agent_drains = row.times("hook_drains"), row.times("agent_drains")
    node.reason_uid, node.reason_at = row.get("reason_uid", int), row.get("reason_at", float)
    node.machine = row.maybe_row("machine", _decode_machine)
    return node


def _decode_machine(row: _Row) -> Machine:
    kinds: dict[str, type] = {"str": str, "int": int, "float": float}
    values: dict[str, Any] = {f.name: row.get(f.name, kinds[str(f.type)]) for f in fields(Machine) if f.name != "gres"}
    return Machine(**values, gres=row.gres("gres"))
