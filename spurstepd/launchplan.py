"""The plan of a launch: all that a supervisor needs beyond its ledger, decided by spurd, never changed.

It stands in launch.json, so that a successor needs nothing from the agent or the controller, and a launch that was
in flight when the agent died can be completed. Bytes that are no UTF-8 travel as surrogate escapes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from spurstepd.ledger import Record


@dataclass(frozen=True, slots=True)
class Hooks:
    """The site's programs around a run. Paths, None where the site has none. Times in seconds."""

    prolog: str | None = None
    epilog: str | None = None
    task_prolog: tuple[str, ...] = ()
    task_epilog: tuple[str, ...] = ()
    prolog_timeout_s: float = 300.0
    epilog_timeout_s: float = 300.0
    environment: tuple[str, ...] = ()  # NAME=VALUE, complete: the hooks inherit nothing
    plugins: tuple[str, ...] = ()  # names of entry points in the group spur.plugins


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    argv: tuple[str, ...]  # of the task; argv[0] is a path
    environment: tuple[str, ...]  # NAME=VALUE, complete
    cwd: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    umask: int
    stdin: str  # absolute paths, patterns expanded
    stdout: str
    stderr: str  # the same as stdout: one open file for both
    append: bool
    limits: tuple[tuple[str, int, int], ...]  # ("NOFILE", soft, hard); -1 is infinity
    kill_wait_s: float  # between TERM and KILL
    unkillable_s: float  # after KILL, until the node is drained for what is left
    time_limit_s: float | None  # None: UNLIMITED
    overrun_s: float  # how long after the limit the supervisor waits for the controller to decide it first
    may_start: bool  # user code may start as soon as the run is ready
    hooks: Hooks
    constrain_cpus: bool = False
    constrain_memory: bool = False
    constrain_devices: bool = False
    cgroup_required: bool = False
    denied_devices: tuple[str, ...] = ()  # files of the node's devices that others hold or may get
    pids_max: int | None = None  # processes and threads; None: not limited
    unclaimed_s: float = 600.0  # not started and nobody has asked for it: the launch is undone


def encode(plan: LaunchPlan) -> dict[str, Any]:
    """`plan` as JSON values."""
    values: dict[str, Any] = {f.name: getattr(plan, f.name) for f in fields(plan)}
    values["hooks"] = {f.name: getattr(plan.hooks, f.name) for f in fields(plan.hooks)}
    values["limits"] = [{"name": name, "soft": soft, "hard": hard} for name, soft, hard in plan.limits]
    return values


def decode(values: object) -> LaunchPlan:
    """The plan in JSON values. ledger.LedgerError names the field that is wrong."""
    top = Record(values, "launch")
    hooks = top.record("hooks")
    return LaunchPlan(
        argv=tuple(top.texts("argv")),
        environment=tuple(top.texts("environment")),
        cwd=top.text("cwd"),
        uid=top.integer("uid"),
        gid=top.integer("gid"),
        groups=tuple(top.integers("groups")),
        umask=top.integer("umask"),
        stdin=top.text("stdin"),
        stdout=top.text("stdout"),
        stderr=top.text("stderr"),
        append=top.flag("append"),
        limits=tuple(
            (one.text("name"), one.integer("soft", least=-1), one.integer("hard", least=-1))
            for one in top.records("limits")
        ),
        kill_wait_s=top.number("kill_wait_s"),
        unkillable_s=top.number("unkillable_s"),
        time_limit_s=top.optional("time_limit_s", Record.number),
        overrun_s=top.number("overrun_s"),
        may_start=top.flag("may_start"),
        hooks=Hooks(
            prolog=hooks.optional("prolog", Record.text),
            epilog=hooks.optional("epilog", Record.text),
            task_prolog=tuple(hooks.texts("task_prolog")),
            task_epilog=tuple(hooks.texts("task_epilog")),
            prolog_timeout_s=hooks.number("prolog_timeout_s"),
            epilog_timeout_s=hooks.number("epilog_timeout_s"),
            environment=tuple(hooks.texts("environment")),
            plugins=tuple(hooks.texts("plugins")),
        ),
        constrain_cpus=top.flag("constrain_cpus"),
        constrain_memory=top.flag("constrain_memory"),
        constrain_devices=top.flag("constrain_devices"),
        cgroup_required=top.flag("cgroup_required"),
        denied_devices=tuple(top.texts("denied_devices")),
        pids_max=top.optional("pids_max", Record.integer),
        unclaimed_s=top.number("unclaimed_s"),
    )
