"""Where the processes of a run live, so that every one of them can be found, limited, counted and ended.

Which kind of place a machine offers is found out by trying (`probe`), never from its distribution or versions:

    tree + v2 controllers   one cgroup v2 hierarchy does all
    tree + v1 controllers   cgroup v2 tracks, kills and freezes, the v1 hierarchies limit ("hybrid")
    bare                    no cgroup of ours: the process tree below the supervisor, and a cookie in the environment

    BASE/                          where the launcher was found, or its parent
    └── spur-KEY/                  one per agent: KEY keeps several agents on a machine apart
        ├── supervisors/           launcher and supervisors, outside every limit
        └── 42.1/                  one run: limits and counters
            ├── batch/  prolog/    leaves, one for everything that is started in the run
            └── step_0/

    V1-CONTROLLER/BASE/spur-KEY/42.1/     the same run where a v1 controller limits it; no leaves

The launcher calls `probe.find` once. A supervisor calls `create` and records what `RunCgroup.recorded` says before it
starts anything; a successor calls `rejoin` with it. Everything here is imported with this package: a supervisor must
not import anything later.
"""

from __future__ import annotations

from spurstepd.cgroups import bare, contained, probe
from spurstepd.cgroups.container import (
    ContainmentError,
    Counters,
    DeviceNumber,
    Leaf,
    Leftover,
    Limits,
    RunCgroup,
    device_number,
)
from spurstepd.cgroups.hierarchy import Hierarchy, Kind
from spurstepd.ids import RunId

__all__ = [
    "ContainmentError",
    "Counters",
    "DeviceNumber",
    "Hierarchy",
    "Kind",
    "Leaf",
    "Leftover",
    "Limits",
    "RunCgroup",
    "create",
    "device_number",
    "probe",
    "rejoin",
    "reopen",
    "standing",
]


def create(hierarchy: Hierarchy, run: RunId, limits: Limits) -> RunCgroup:
    """A fresh place for `run`, limited. What could not be limited stands in its `unmet`.

    Leftovers of an attempt to create it that nobody recorded are killed and removed first.
    ContainmentError: the machine refused what it had granted to the probe.
    """
    if hierarchy.kind is Kind.BARE:
        return bare.create(hierarchy.key, run, limits)
    return contained.create(hierarchy, run, limits)


def standing(hierarchy: Hierarchy) -> dict[RunId, RunCgroup]:
    """The places of this agent's runs that exist now, recorded by anybody or not; none are known of a bare kind.

    One without a run directory belongs to nobody: its agent has lost its records.
    """
    return dict(contained.standing(hierarchy)) if hierarchy.kind is not Kind.BARE else {}


def reopen(recorded: str) -> RunCgroup:
    """The place whose `recorded` stands in a manifest. It may be gone: then it is empty, and removing it succeeds.

    ContainmentError: `recorded` is not what any kind of place records.
    """
    if recorded.startswith(bare.PREFIX):
        return bare.reopen(recorded)
    return contained.reopen(recorded)


def rejoin(recorded: str) -> RunCgroup | None:
    """`reopen` for a successor, which from now on keeps the place alive; None: it is gone, with all that was in it.

    systemd removes a scope, and every cgroup below it, with the last process in it. A successor whose launcher lives in
    another scope has to move, or the run's counters go with the job, and there is no place for the epilog.
    """
    if recorded.startswith(bare.PREFIX):
        return bare.reopen(recorded)
    return contained.rejoin(recorded)
