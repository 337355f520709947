"""The systemd scope in which a launcher and its supervisors live, outside spurd's own unit.

A unit whose cgroup has children with controllers cannot be restarted (systemd ends it with 219/CGROUP), so
nothing of a run may live below spurd.service. A scope is a unit without a process of its own: it is made for
a process that exists, its cgroup is delegated, and it is forgotten when the last process has left.

`systemd-run --scope` makes one for itself and then becomes the program it was given: same pid, same open
files, and the program cannot run a line before it is where it shall live. It comes with systemd, and as root
it speaks to PID 1 directly, so that neither a D-Bus library nor a working bus is needed for a node to start.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SLICE = "spur.slice"
STOP_TIMEOUT_S = 30  # at a shutdown of the machine, from TERM to KILL
_BOOTED = Path("/run/systemd/system")  # sd_booted(3)


@dataclass(frozen=True, slots=True)
class Origin:
    """What a process knows of how it was started."""

    booted: bool  # systemd is the init of this machine
    cgroup: str  # the text of its /proc/PID/cgroup
    notified: bool  # somebody wants to hear from it, sd_notify(3)
    executed: bool  # systemd itself executed it, systemd.exec(5) SYSTEMD_EXEC_PID


def look(environment: Mapping[str, str]) -> Origin:
    """What this process knows; before NOTIFY_SOCKET is taken out of `environment`."""
    return Origin(
        booted=_BOOTED.is_dir(),
        cgroup=Path("/proc/self/cgroup").read_text(),
        notified="NOTIFY_SOCKET" in environment,
        executed=environment.get("SYSTEMD_EXEC_PID") == str(os.getpid()),
    )


def needed(origin: Origin) -> bool:
    """Whether a launcher has to move: systemd runs this process as a service.

    Not so for a process that merely runs somewhere below one, such as a test in a CI service.
    """
    return origin.booted and unit_of(origin.cgroup).endswith(".service") and (origin.notified or origin.executed)


def unit_of(cgroup: str) -> str:
    """The innermost systemd unit in the text of a /proc/PID/cgroup, or nothing.

    On a hybrid host systemd's own tree is the named one, cgroups(7).
    """
    for line in cgroup.splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if controllers == "name=systemd" or (hierarchy == "0" and "name=systemd" not in cgroup):
            units = [part for part in path.split("/") if re.search(r"\.(service|scope|slice)$", part)]
            return units[-1] if units else ""
    return ""


def scope_name(node: str, number: int) -> str:
    """The unit's name: the node's, escaped as systemd.unit(5) says, and what tells it from earlier ones."""
    escaped = re.sub(r"[^A-Za-z0-9:_.]", lambda match: f"\\x{ord(match[0]):02x}", node)
    return f"spur-runs-{escaped}-{number}.scope"


def number_now() -> int:
    """Milliseconds since boot: scopes of one boot, the only ones that can meet, never share it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def scoped(program: tuple[str, ...], node: str, number: int) -> tuple[str, ...]:
    """The command line that runs `program` in a fresh scope. It ends with a line on stderr where there is none."""
    properties = ("Delegate=yes", "TasksMax=infinity", f"TimeoutStopSec={STOP_TIMEOUT_S}")
    return (
        "systemd-run",
        "--scope",
        "--quiet",
        "--collect",
        f"--unit={scope_name(node, number)}",
        f"--slice={SLICE}",
        f"--description=Runs of Spur on {node}",
        *(f"--property={one}" for one in properties),
        "--",
        *program,
    )
