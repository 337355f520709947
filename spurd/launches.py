"""From what the controller asks to what the supervisor is given.

Pure: values in, the launch plan and the first ledger out. Where the values come from (the wire, the name service, the
claims) is decided by `service`; what becomes of them on disk by `rundirs`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from spur import patterns
from spurd import environment
from spurd.claims import Request, real_affinity
from spurd.environment import UNLIMITED_S, Account, Allocation, Asked
from spurstepd.ids import RunId
from spurstepd.launchplan import Hooks, LaunchPlan
from spurstepd.ledger import Device, Grant, Manifest, owed
from spurstepd.rundir import RunDir

INFINITE = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch as the controller asked for it."""

    run: RunId
    uid: int
    gid: int
    user: str
    wanted: Request
    allocation: Allocation
    asked: Asked
    script: bytes  # empty: the run holds its allocation and starts nothing
    arguments: tuple[str, ...]
    environment: tuple[bytes, ...]
    umask: int
    stdin: str  # patterns, empty: the default
    stdout: str
    stderr: str
    append: bool
    limits: Mapping[str, int]  # soft values
    task_prolog: str
    task_epilog: str
    kill_wait_s: float
    may_start: bool
    stimulus: str


@dataclass(frozen=True, slots=True)
class Site:
    """What holds for every launch on this node."""

    hooks: Hooks  # without environment
    unkillable_s: float
    overrun_s: float
    constrain_cpus: bool
    constrain_memory: bool
    constrain_devices: bool
    cgroup_required: bool
    limits: Mapping[str, tuple[int, int]]  # soft and hard as a process of this node starts with; -1: infinity
    devices: tuple[Device, ...] = ()  # all that the node has
    real_cpus: frozenset[int] = frozenset()  # those that this machine has, of all that were declared


def plan(
    launch: Launch, account: Account, grant: Grant, gpus: Mapping[str, str], site: Site, run_dir: RunDir
) -> LaunchPlan:
    """All that the supervisor needs beyond its ledger. `gpus`: the variables that make granted devices visible."""
    names = environment.names_of(launch.allocation, launch.asked, account)
    cwd = launch.asked.work_dir or account.home
    stdout = output_path(launch.stdout or patterns.DEFAULT_STDOUT, cwd, names)
    stderr = output_path(launch.stderr, cwd, names) if launch.stderr else stdout
    hooks = environment.of_hooks(launch.allocation, launch.asked, account, stdout, stderr, gpus)
    return LaunchPlan(
        argv=(str(run_dir.script), *launch.arguments) if launch.script else (),
        environment=environment.of_batch_script(
            launch.environment, launch.allocation, launch.asked, account, grant, gpus
        ),
        cwd=cwd,
        uid=account.uid,
        gid=account.gid,
        groups=account.groups,
        umask=launch.umask,
        stdin=output_path(launch.stdin, cwd, names) if launch.stdin else os.devnull,
        stdout=stdout,
        stderr=stderr,
        append=launch.append,
        limits=limits(launch.limits, site.limits),
        kill_wait_s=launch.kill_wait_s,
        unkillable_s=site.unkillable_s,
        time_limit_s=None if launch.allocation.time_limit_s == UNLIMITED_S else float(launch.allocation.time_limit_s),
        overrun_s=site.overrun_s,
        may_start=launch.may_start,
        hooks=_hooks(site.hooks, hooks, launch),
        constrain_cpus=site.constrain_cpus and real_affinity(grant, site.real_cpus) is not None,
        constrain_memory=site.constrain_memory,
        constrain_devices=site.constrain_devices,
        cgroup_required=site.cgroup_required,
        denied_devices=tuple(one.file for one in site.devices if one.file and one not in grant.gpus),
    )


def output_path(pattern: str, cwd: str, names: patterns.Names) -> str:
    """Where an output goes: patterns expanded, relative to the working directory; `none` is /dev/null."""
    if pattern.lower() == "none":
        return os.devnull
    return os.path.join(cwd, patterns.expand(pattern, names))


def _hooks(site: Hooks, variables: tuple[str, ...], launch: Launch) -> Hooks:
    return Hooks(
        prolog=site.prolog,
        epilog=site.epilog,
        task_prolog=site.task_prolog + ((launch.task_prolog,) if launch.task_prolog else ()),
        task_epilog=((launch.task_epilog,) if launch.task_epilog else ()) + site.task_epilog,
        prolog_timeout_s=site.prolog_timeout_s,
        epilog_timeout_s=site.epilog_timeout_s,
        environment=variables,
        plugins=site.plugins,
    )


def limits(asked: Mapping[str, int], node: Mapping[str, tuple[int, int]]) -> tuple[tuple[str, int, int], ...]:
    """Soft and hard limits of the script: the submitter's soft values, never above what a process may have here.

    A limit that was not propagated is the node's own, so that what the agent set for itself does not leak.
    """
    found = []
    for name, (soft, hard) in sorted(node.items()):
        wanted = asked.get(name, soft if soft >= 0 else INFINITE)
        soft_here = -1 if wanted >= INFINITE else wanted
        if hard >= 0 and (soft_here < 0 or soft_here > hard):
            soft_here = hard
        found.append((name, soft_here, hard))
    return tuple(found)


def first_ledger(launch: Launch, grant: Grant, site: Site, boot_id: str, nonce: str, at: float) -> Manifest:
    """What is owed for the run before anything was done for it. `at`: wall clock, for humans."""
    plugins = bool(site.hooks.plugins)
    return Manifest(
        run=launch.run,
        boot_id=boot_id,
        nonce=nonce,
        uid=launch.uid,
        obligations=owed(
            prolog=site.hooks.prolog is not None or plugins, epilog=site.hooks.epilog is not None or plugins, at=at
        ),
        granted=grant,
    )
