"""What there is to contain jobs with: cgroup v2, v1 controllers beside it ("hybrid"), or nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from spur.config import Config
from spur.doctor.finding import Finding, broken, lacking, ok

WANTED = {
    "memory": "memory of jobs is not limited, and OUT_OF_MEMORY is not known",
    "cpuset": "jobs are not confined to their CPUs",
    "pids": "processes of a job are neither limited nor counted",
    "cpu": "CPU time is known from ended processes alone",
}
_EMPTY_S = 5.0


def parse_mounts(mountinfo: str) -> tuple[Path | None, dict[str, Path]]:
    """Where the v2 tree is mounted, and each v1 controller (proc_pid_mountinfo(5))."""
    unified: Path | None = None
    legacy: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        where = Path(before.split(" ")[4])
        if kind == "cgroup2" and unified is None:
            unified = where
        elif kind == "cgroup":
            legacy |= {name: where for name in options.split(",") if name in WANTED}
    return unified, legacy


def tree(config: Config) -> Finding:
    """Tracking and killing: made, joined, killed and removed once."""
    unified, _ = parse_mounts(Path("/proc/self/mountinfo").read_text())
    if unified is None:
        return _without(config, "no cgroup2 file system is mounted")
    try:
        seconds = _try_kill(unified / f"spur-doctor-{os.getpid()}")
    except OSError as error:
        return _without(config, f"{error.filename or unified}: {os.strerror(error.errno or 0)}")
    return ok("cgroup tree", f"a job is killed as a whole, tried below {unified} in {seconds * 1000:.0f} ms")


def _without(config: Config, why: str) -> Finding:
    cost = "a job's processes are found by parentage, and a daemon that hides from it may live on"
    if config.agent.cgroup.value == "required":
        return broken("cgroup tree", f"{why}, and agent.cgroup is required: no job can start here")
    return lacking("cgroup tree", f"{why}: {cost}")


def _try_kill(path: Path) -> float:
    path.mkdir()
    try:
        began = time.monotonic()
        with subprocess.Popen(["sleep", "1000"], start_new_session=True) as child:
            try:
                (path / "cgroup.procs").write_text(str(child.pid))
                (path / "cgroup.kill").write_text("1")  # Linux 5.14
            except OSError:
                child.send_signal(signal.SIGKILL)
                raise
        while "populated 1" in (path / "cgroup.events").read_text():
            if time.monotonic() > began + _EMPTY_S:
                raise TimeoutError(0, "a killed cgroup did not become empty", str(path))
            time.sleep(0.001)
        return time.monotonic() - began
    finally:
        path.rmdir()


def controllers() -> Finding:
    """Limits and counters."""
    unified, legacy = parse_mounts(Path("/proc/self/mountinfo").read_text())
    have = set((unified / "cgroup.controllers").read_text().split()) if unified else set()
    return judge_controllers(have, set(legacy))


def judge_controllers(unified: set[str], legacy: set[str]) -> Finding:
    """What is there of either version, and the cost of what is of neither."""
    missing = [f"{name} ({cost})" for name, cost in WANTED.items() if name not in unified | legacy]
    if missing:
        return lacking("cgroup controllers", f"missing: {', '.join(missing)}")
    if WANTED.keys() <= unified:
        return ok("cgroup controllers", "all of version 2")
    return ok("cgroup controllers", f"of version 1: {', '.join(name for name in WANTED if name not in unified)}")
