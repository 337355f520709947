"""The systemd scope in which a launcher and its supervisors live, outside spurd's own unit.

A unit whose cgroup has children with controllers cannot be restarted (systemd ends it with 219/CGROUP), so
nothing of a run may live below spurd.service. A scope is a unit without a process of its own: systemd
moves an existing pid there, delegates the cgroup below, and forgets the unit when the last process left.

`busctl` asks for it. It comes with systemd itself, so it is there wherever this is needed, its syntax has
been stable since 2015, and the one request per start of spurd is not worth a D-Bus library in every node.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SLICE = "spur.slice"
BOOTED = Path("/run/systemd/system")  # sd_booted(3)
DEADLINE_S = 30.0
STOP_TIMEOUT_S = 30  # at a shutdown, from TERM to KILL
INFINITY = 2**64 - 1
_POLL_S = 0.02
_ATTEMPTS = 8
_MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")


class ScopeError(Exception):
    """systemd did not make the scope; one line that says why and what follows."""


@dataclass(frozen=True, slots=True)
class Caller:
    """What a process knows of how it was started."""

    booted: bool
    cgroup: str
    notified: bool
    executed: bool


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


def look(environment: Mapping[str, str]) -> Caller:
    """What this process knows; before NOTIFY_SOCKET is taken out of `environment`."""
    return Caller(
        booted=BOOTED.is_dir(),
        cgroup=Path("/proc/self/cgroup").read_text(),
        notified="NOTIFY_SOCKET" in environment,
        executed=environment.get("SYSTEMD_EXEC_PID") == str(os.getpid()),
    )


def needed(caller: Caller) -> bool:
    """Whether the launcher has to move: systemd runs this process as a service.

    Not so for a process that merely runs below one, such as a test in a CI service.
    """
    return caller.booted and unit_of(caller.cgroup).endswith(".service") and (caller.notified or caller.executed)


def scope_name(node: str, launcher: int, attempt: int = 1) -> str:
    """The scope of the launcher with pid `launcher`. A later attempt is for a scope that outlived its launcher."""
    escaped = re.sub(r"[^A-Za-z0-9:_.]", lambda match: f"\\x{ord(match[0]):02x}", node)
    return f"spur-runs-{escaped}-{launcher}{'' if attempt == 1 else f'-{attempt}'}.scope"


def request(unit: str, node: str, launcher: int) -> list[str]:
    """The command that has systemd make `unit` and move the process `launcher` into it."""
    properties = [
        ("Description", "s", f"Spur's runs on {node}"),
        ("Slice", "s", SLICE),
        ("Delegate", "b", "true"),
        ("PIDs", "au", "1", str(launcher)),
        ("TasksMax", "t", str(INFINITY)),
        ("TimeoutStopUSec", "t", str(STOP_TIMEOUT_S * 1_000_000)),
        ("CollectMode", "s", "inactive-or-failed"),
    ]
    words = [word for entry in properties for word in entry]
    command = ["busctl", "--system", "--quiet", "call", *_MANAGER, "StartTransientUnit", "ssa(sv)a(sa(sv))"]
    return [*command, unit, "fail", str(len(properties)), *words, "0"]


def place(node: str, launcher: int, deadline_s: float = DEADLINE_S) -> str:
    """Move `launcher`, a child of the caller, into a scope of its own; the scope's name once it is there.

    Before it has forked anything: only the process itself moves. Blocks, for some milliseconds as a rule.
    ScopeError: it is not there within `deadline_s` seconds.
    """
    deadline = time.monotonic() + deadline_s
    for attempt in range(1, _ATTEMPTS + 1):
        unit = scope_name(node, launcher, attempt)
        refusal = _ask(request(unit, node, launcher), deadline)
        if refusal is None:
            _await_move(launcher, unit, deadline)
            return unit
        # The scope of an earlier launcher with the same pid, whose supervisors still live.
        if "already exists" not in refusal and "already loaded" not in refusal:
            raise ScopeError(f"systemd refused {unit}: {refusal}; runs would not survive a restart of spurd")
    raise ScopeError(f"systemd has {_ATTEMPTS} scopes called {scope_name(node, launcher)} or similar; remove one")


def _ask(command: list[str], deadline: float) -> str | None:
    """What systemd has against it, in one line."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=max(0.0, deadline - time.monotonic()),
        )
    except FileNotFoundError:
        return "there is no busctl, which systemd's package brings"
    except subprocess.TimeoutExpired:
        return "the bus did not answer in time"
    if done.returncode == 0:
        return None
    return " ".join(done.stderr.split()) or f"busctl ended with {done.returncode}"


def _await_move(launcher: int, unit: str, deadline: float) -> None:
    """The request is answered when its job is queued; the move is proven by the kernel alone."""
    cgroup = Path(f"/proc/{launcher}/cgroup")
    while True:
        try:
            current = unit_of(cgroup.read_text())
        except FileNotFoundError:
            raise ScopeError(f"the launcher {launcher} died on its way into {unit}") from None
        if current == unit:
            return
        if time.monotonic() > deadline:
            raise ScopeError(f"systemd has not moved the launcher {launcher} into {unit}: it is in {current or '/'}")
        time.sleep(_POLL_S)
