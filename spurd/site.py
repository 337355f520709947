"""What holds for every launch on this node: hooks, limits and switches, from the configuration and from the system."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

from spur.config import CgroupUse, Config
from spurd.launches import Site
from spurstepd.launchplan import Hooks
from spurstepd.ledger import Device

OVERRUN_S = 10.0  # between the time limit, which the controller enforces, and the supervisor doing it by itself


def of_node(config: Config, devices: tuple[Device, ...]) -> Site:
    """What `config` says, with the node's `devices` and the limits that this process was started with."""
    hooks, agent = config.hooks, config.agent
    return Site(
        hooks=Hooks(
            prolog=_text(hooks.prolog),
            epilog=_text(hooks.epilog),
            task_prolog=(str(hooks.task_prolog),) if hooks.task_prolog else (),
            task_epilog=(str(hooks.task_epilog),) if hooks.task_epilog else (),
            prolog_timeout_s=hooks.prolog_timeout_secs,
            epilog_timeout_s=hooks.epilog_timeout_secs,
            plugins=hooks.plugins,
        ),
        unkillable_s=config.job.unkillable_secs,
        overrun_s=OVERRUN_S,
        constrain_cpus=agent.constrain_cpus,
        constrain_memory=agent.constrain_memory,
        constrain_devices=agent.constrain_devices,
        cgroup_required=agent.cgroup is CgroupUse.REQUIRED,
        limits=_own_limits(),
        devices=devices,
        real_cpus=frozenset(os.sched_getaffinity(0)),
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _own_limits() -> dict[str, tuple[int, int]]:
    """Soft and hard limits that this process was started with, by name without RLIMIT_."""
    # OFILE is an old name of NOFILE.
    names = (name for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE")
    return {name.removeprefix("RLIMIT_"): resource.getrlimit(getattr(resource, name)) for name in names}


def lift_descriptor_limit() -> None:
    """Have as many descriptors as we may: a run takes three here and some more in the launcher, which inherits this."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
