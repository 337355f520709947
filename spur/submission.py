"""What sbatch asks for: options, wherever they were given, become one request, and that becomes a message.

Options of the #SBATCH lines come first, then the environment's, then the command line's: the last word wins. The
texts and exit codes of refusals are those of Slurm 22.05's sbatch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spur import gres, jobenvironment, memory, times
from spur.console import Failure
from spur.gres import Gres
from spur.numerals import number
from spur.options import Given

if TYPE_CHECKING:
    from spur.pb.common_pb2 import JobDescription

DEFAULT_NICE = 100  # of --nice without a number
_NICE_LIMIT = 2**31 - 4


@dataclass(frozen=True, slots=True)
class Request:
    """What the job should be. None stands for what was not asked for."""

    account: str = ""
    append: bool = False
    chdir: str | None = None
    comment: str = ""
    cpus_per_task: int | None = None
    exclude: str = ""
    export: str | None = None
    gpus: Gres | None = None
    gpus_per_node: Gres | None = None
    gpus_per_task: int | None = None
    gres: tuple[Gres, ...] = ()
    hold: bool = False
    memory_mb: int | None = None
    memory_per_cpu_mb: int | None = None
    name: str | None = None
    nice: int = 0
    nodes: int | None = None
    node_list: str = ""
    parsable: bool = False
    partition: str = ""
    propagate: str | None = None
    quiet: bool = False
    requeue: bool | None = None
    stderr: str = ""
    stdin: str = ""
    stdout: str = ""
    tasks: int | None = None
    tasks_per_node: int | None = None
    test_only: bool = False
    time_limit_s: int | None = None
    verbose: int = 0
    wait: bool = False
    wrap: str | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where and by whom a job is submitted."""

    directory: str
    host: str
    session_id: int
    umask: int
    limits: dict[str, int]
    line: str


@dataclass(frozen=True, slots=True)
class Script:
    """What runs. `command` is its path as the job's record shows it, empty for one without a file."""

    content: bytes
    arguments: tuple[str, ...]
    command: str
    default_name: str


def read(sources: Iterable[Sequence[Given]]) -> Request:
    """The request of options from several sources, the weakest first. Failure: one of them makes no sense."""
    request = Request()
    for given in sources:
        names = {one.name for one in given}
        if {"mem", "mem-per-cpu"} <= names:
            raise Failure("sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.", plain=True)
        for one in given:
            request = add(request, one)
    return request


def check(request: Request) -> None:
    """Failure: what was asked for in several places does not fit together."""
    if request.gpus_per_task is not None and not (request.tasks or request.tasks_per_node or request.gpus):
        raise Failure(
            "Failed to validate job spec. --gpus-per-task used without either --gpus or -n/--ntasks is not allowed.",
            "Invalid generic resource (gres) specification",
        )


def add(request: Request, one: Given) -> Request:
    """`request` with one more option. Failure: its value makes no sense."""
    text = one.value or ""
    match one.name:
        case "account":
            return replace(request, account=text)
        case "chdir":
            return replace(request, chdir=text)
        case "comment":
            return replace(request, comment=text)
        case "cpus-per-task":
            return replace(request, cpus_per_task=_number(one))
        case "error":
            return replace(request, stderr=_file(text))
        case "exclude":
            return replace(request, exclude=text)
        case "export":
            return replace(request, export="ALL" if one.value is None else text)
        case "gpus":
            return replace(request, gpus=_gpus(text))
        case "gpus-per-node":
            return replace(request, gpus_per_node=_gpus(text))
        case "gpus-per-task":
            return replace(request, gpus_per_task=_untyped(_gpus(text)))
        case "gres":
            return replace(request, gres=_gres(text))
        case "hold":
            return replace(request, hold=True)
        case "input":
            return replace(request, stdin=_file(text))
        case "job-name":
            return replace(request, name=text)
        case "mem":
            return replace(request, memory_mb=_size(one), memory_per_cpu_mb=None)
        case "mem-per-cpu":
            return replace(request, memory_per_cpu_mb=_size(one), memory_mb=None)
        case "nice":
            return replace(request, nice=_nice(one))
        case "no-requeue":
            return replace(request, requeue=False)
        case "nodelist":
            return replace(request, node_list=text)
        case "nodes":
            return replace(request, nodes=_nodes(text))
        case "ntasks":
            return replace(request, tasks=_number(one))
        case "ntasks-per-node":
            return replace(request, tasks_per_node=_number(one))
        case _:
            return _add_manner(request, one, text)


def _add_manner(request: Request, one: Given, text: str) -> Request:
    """What concerns the job's files and limits, and how sbatch itself behaves."""
    match one.name:
        case "open-mode":
            return replace(request, append=_append(text))
        case "output":
            return replace(request, stdout=_file(text))
        case "parsable":
            return replace(request, parsable=True)
        case "partition":
            return replace(request, partition=text)
        case "propagate":
            return replace(request, propagate=_propagate(text))
        case "quiet":
            return replace(request, quiet=True)
        case "requeue":
            return replace(request, requeue=True)
        case "test-only":
            return replace(request, test_only=True)
        case "time":
            return replace(request, time_limit_s=_time(text))
        case "verbose":
            return replace(request, verbose=request.verbose + 1)
        case "wait":
            return replace(request, wait=True)
        case "wrap":
            return replace(request, wrap=text)
        case _:
            return request  # has no effect here, or was answered before


def _invalid(name: str) -> Failure:
    return Failure(f"Invalid --{name} specification", code=255)


def _number(one: Given) -> int:
    text = one.value or ""
    value = number(text, 2**31 - 1)
    if not value:
        raise Failure(f'Invalid numeric value "{text}" for --{one.name}.')
    return value


def _nodes(text: str) -> int:
    """The least of `N` or `N-M`, where a number may end in k or m."""
    first, dash, last = text.partition("-")
    least, most = _count(first), _count(last) if last else -1
    if least is None or most is None:
        raise Failure(f'"{text}" is not a valid node count', code=255)
    if dash and most < least:
        raise Failure(f"Maximum node count {most} is less than minimum node count {least}", code=255)
    if least == 0:
        raise Failure("Batch job submission failed: Node count specification invalid")
    return least


def _count(text: str) -> int | None:
    factor = {"k": 1024, "m": 1024**2}.get(text[-1:].lower(), 1)
    digits = text[:-1] if factor > 1 else text
    value = number(digits, (2**31 - 1) // factor)
    return None if value is None else value * factor


def _size(one: Given) -> int:
    try:
        return memory.parse_size(one.value or "")
    except ValueError:
        raise _invalid(one.name) from None


def _time(text: str) -> int:
    try:
        return times.round_up_to_minutes(times.parse_time_limit(text))
    except ValueError:
        raise _invalid("time") from None


def _nice(one: Given) -> int:
    if one.value is None:
        return DEFAULT_NICE
    nice = number(one.value.lstrip("+-"), _NICE_LIMIT)
    if nice is None or len(one.value) - len(one.value.lstrip("+-")) > 1:
        raise _invalid("nice")
    return -nice if one.value.startswith("-") else nice


def _append(text: str) -> bool:
    if text[:1].lower() not in ("a", "t"):
        raise _invalid("open-mode")
    return text[:1].lower() == "a"


def _propagate(text: str) -> str:
    try:
        jobenvironment.wanted_limits(text)
    except ValueError as error:
        raise Failure(f"Bad rlimit name: {error}", f"--propagate={text} is not valid.") from None
    return text


def _file(text: str) -> str:
    return "/dev/null" if text.lower() == "none" else text


def _gres(text: str) -> tuple[Gres, ...]:
    try:
        return gres.parse_list(",".join(word.removeprefix("gres:") for word in text.split(",")))
    except ValueError:
        raise Failure("Invalid generic resource (gres) specification") from None


def _gpus(text: str) -> Gres:
    """`2`, `a100:2` or `a100`."""
    wanted = _gres(f"gpu:{text}" if text and text.lower() != "none" else text)
    if len(wanted) != 1:
        raise Failure("Invalid generic resource (gres) specification")
    return wanted[0]


def _untyped(wanted: Gres) -> int:
    if wanted.type:
        raise Failure("--gpus-per-task with a type is not supported by Spur: ask for --gpus-per-node=TYPE:NUMBER")
    return wanted.count


def message(request: Request, script: Script, origin: Origin, environment: Sequence[bytes]) -> JobDescription:
    """The request as the controller takes it. Failure: a text is not UTF-8."""
    from spur.pb.common_pb2 import GresCount, JobDescription

    job = JobDescription(
        script=script.content,
        environment=environment,
        umask=origin.umask,
        append=request.append,
        hold=request.hold,
        session_id=origin.session_id,
        nice=request.nice,
        limits=origin.limits,
        gres_per_node=[GresCount(name=one.name, type=one.type, count=one.count) for one in _per_node(request)],
    )
    texts = {
        "name": script.default_name if request.name is None else request.name,
        "work_dir": origin.directory,
        "partition": request.partition,
        "stdin_path": request.stdin,
        "stdout_path": request.stdout,
        "stderr_path": request.stderr,
        "command": script.command,
        "submit_host": origin.host,
        "comment": request.comment,
        "account": request.account,
        "export_spec": jobenvironment.export_spec(request.export),
        "submit_line": origin.line,
        "node_list": request.node_list,
        "exclude": request.exclude,
    }
    for field, text in texts.items():
        setattr(job, field, _utf8(field, text))
    job.arguments.extend(_utf8("script arguments", text) for text in script.arguments)
    for field, value in _optional(request).items():
        if value is not None:
            setattr(job, field, value)
    return job


def _optional(request: Request) -> dict[str, int | bool | None]:
    """Fields of the message that are there only where they were asked for."""
    per_node, gpus = request.tasks_per_node, request.gpus
    return {
        "time_limit_s": request.time_limit_s,
        "tasks": request.tasks or (per_node * (request.nodes or 1) if per_node else None),
        "tasks_per_node": per_node,
        "cpus_per_task": request.cpus_per_task,
        "memory_mb": request.memory_mb,
        "memory_per_cpu_mb": request.memory_per_cpu_mb,
        "gpus": gpus.count if gpus and not gpus.type else None,
        "gpus_per_task": request.gpus_per_task,
        "nodes": request.nodes,
        "requeue": request.requeue,
    }


def _per_node(request: Request) -> list[Gres]:
    """Generic resources of each node. A type of GPU for a whole job is one for its only node."""
    wanted = list(request.gres)
    if request.gpus_per_node is not None:
        wanted.append(request.gpus_per_node)
    if request.gpus is not None and request.gpus.type:
        if (request.nodes or 1) > 1:
            raise Failure("--gpus with a type is not supported by Spur for several nodes: ask for --gpus-per-node")
        wanted.append(request.gpus)
    return wanted


def _utf8(what: str, text: str) -> str:
    try:
        return os.fsencode(text).decode()
    except UnicodeDecodeError:
        raise Failure(f"{what.replace('_', ' ')} of the job is not UTF-8: {text!r}") from None
