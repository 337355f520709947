"""Whether systemd lets jobs live through what it does to spurd's unit."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from spur.doctor.finding import Finding, broken, lacking, ok

UNIT = "spurd.service"
_ASKED = (
    "LoadState",
    "NeedDaemonReload",
    "KillMode",
    "Type",
    "Restart",
    "FileDescriptorStoreMax",
    "TasksMax",
    "WatchdogUSec",
    "Delegate",
)
_BOOTED = Path("/run/systemd/system")  # sd_booted(3)
_NEEDRESTART = Path("/etc/needrestart")


def examine() -> Iterator[Finding]:
    """All that concerns systemd; one line where it does not run this machine."""
    if not _BOOTED.is_dir():
        yield ok("unit", "systemd does not run this machine; whatever starts spurd must kill that process alone")
        return
    yield from judge(_shown(), shutil.which("systemd-run") is not None)
    yield from needrestart(_NEEDRESTART)


def _shown() -> dict[str, str]:
    command = ["systemctl", "show", UNIT, *(f"--property={name}" for name in _ASKED)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def judge(unit: Mapping[str, str], has_systemd_run: bool) -> Iterator[Finding]:
    """The findings about a unit of which systemctl shows `unit`."""
    if unit.get("LoadState") != "loaded":
        state = unit.get("LoadState", "unknown to systemctl")
        yield lacking("unit", f"{UNIT} is {state}: spurd is not started with the machine, nor again after a crash")
        return
    if unit.get("NeedDaemonReload") == "yes":
        yield lacking("unit", f"{UNIT} has changed on disk: systemd goes by the old text until systemctl daemon-reload")
    yield _kill_mode(unit.get("KillMode", ""), has_systemd_run)
    yield from _weaknesses(unit)


def _kill_mode(mode: str, has_systemd_run: bool) -> Finding:
    if not has_systemd_run:
        return broken("unit", "systemd-run is missing: no scope for the jobs, so spurd does not take any")
    if mode == "process":
        return ok("unit", "KillMode=process, jobs in scopes of their own: a restart of spurd leaves them alone")
    return lacking(
        "unit", f"KillMode={mode}: systemd kills whatever else it finds in the unit; spurd.service ships with process"
    )


def _weaknesses(unit: Mapping[str, str]) -> Iterator[Finding]:
    if not unit.get("Type", "").startswith("notify"):
        yield lacking("unit", f"Type={unit.get('Type')}: a restart is taken for done before jobs are taken back")
    if unit.get("Restart", "no") == "no":
        yield lacking("unit", "Restart=no: after a crash of spurd the node stays away until somebody starts it")
    if unit.get("FileDescriptorStoreMax", "0") == "0":
        yield lacking("unit", "FileDescriptorStoreMax=0: an exit is unknown where everything died at once")
    if unit.get("TasksMax", "infinity") not in ("infinity", str(2**64 - 1)):
        yield lacking("unit", f"TasksMax={unit['TasksMax']}: spurd fails when it has that many threads")
    if unit.get("WatchdogUSec", "0") in ("0", "infinity"):
        yield lacking("unit", "no WatchdogSec=: a spurd that hangs is not restarted")


def needrestart(directory: Path) -> Iterator[Finding]:
    """needrestart(1) would restart supervisors with a library."""
    if directory.is_dir() and not any("spur" in path.name for path in (directory / "conf.d").glob("*.conf")):
        yield lacking(
            "needrestart", f"{directory}/conf.d has nothing about spur: it may restart spurd whenever a library changes"
        )
