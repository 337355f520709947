"""Where a run is put, and what it is held to there: from its grant and its plan to a cgroup."""

from __future__ import annotations

from spurstepd import cgroups
from spurstepd.cgroups import Hierarchy, Limits, RunCgroup
from spurstepd.eventlog import EventLog
from spurstepd.launchplan import LaunchPlan
from spurstepd.ledger import Grant, Manifest


def find(hierarchy: Hierarchy, ledger: Manifest, plan: LaunchPlan, log: EventLog) -> tuple[RunCgroup, str]:
    """The place of a run, the one that its ledger names or a new one; and why it must not be used, "" where it may.

    A run that cannot be held to all that it should be runs all the same, unless the site requires containment.
    """
    if ledger.cgroup is not None and (found := cgroups.rejoin(ledger.cgroup)) is not None:
        return found, ""
    place, unmet = _create(hierarchy, ledger, plan)
    if unmet:
        log.event("run_not_contained", unmet=unmet)
    return place, "; ".join(unmet) if plan.cgroup_required else ""


def _create(hierarchy: Hierarchy, ledger: Manifest, plan: LaunchPlan) -> tuple[RunCgroup, tuple[str, ...]]:
    try:
        place = cgroups.create(hierarchy, ledger.run, limits(ledger.granted, plan))
        unmet = place.unmet
    except cgroups.ContainmentError as error:
        place, unmet = cgroups.create(Hierarchy(key=hierarchy.key), ledger.run, Limits()), (str(error),)
    return place, (*unmet, *hierarchy.reasons) if hierarchy.kind is cgroups.Kind.BARE else unmet


def limits(granted: Grant, plan: LaunchPlan) -> Limits:
    """What the run is held to: what it was granted, where the site wants that to be a limit."""
    denied = [cgroups.device_number(path) for path in plan.denied_devices] if plan.constrain_devices else []
    return Limits(
        cpus=granted.cpus if plan.constrain_cpus else None,
        memory_bytes=granted.memory_mb << 20 if plan.constrain_memory and granted.memory_mb else None,
        oom_group=plan.constrain_memory,
        pids_max=plan.pids_max,
        denied_devices=tuple(number for number in denied if number is not None),
    )
