"""A node without an agent to measure on: directories, a launcher, and the calls that an agent would make."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from spurd import rundirs
from spurstepd import manifest
from spurstepd.ids import RunId
from spurstepd.launchplan import Hooks, LaunchPlan
from spurstepd.ledger import Grant, Manifest, owed
from spurstepd.rundir import NodeDirs
from tests.spurstepd.conftest import Peer

SLEEPER = b"#!/bin/sh\nexec sleep 3600\n"
NOTHING = b"#!/bin/sh\nexit 0\n"
_PATIENCE_S = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Version:
    """What is measured: a name for the table, and the checkout it is run from (None: what is installed)."""

    name: str
    checkout: Path | None = None

    def program(self) -> list[str]:
        return [sys.executable, "-P", "-m", "spurstepd"]

    def environment(self) -> Mapping[str, str]:
        path = {} if self.checkout is None else {"PYTHONPATH": str(self.checkout)}
        return {"PATH": os.environ["PATH"], **path}


@dataclass(frozen=True, slots=True)
class Memory:
    """KiB of one process. `pss`: shared pages by share; `uss`: what its end would give back."""

    rss: int
    pss: int
    uss: int


def memory_of(pid: int) -> Memory:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kib = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB", text, re.M)}
    return Memory(kib["Rss"], kib["Pss"], kib["Private_Clean"] + kib["Private_Dirty"])


class Node:
    """A launcher on directories of its own below `path`. Close it in the end."""

    def __init__(self, version: Version, path: Path, cgroup: str) -> None:
        self.dirs = NodeDirs(path / "state", path / "run")
        path.mkdir(mode=0o711)
        rundirs.prepare(self.dirs)
        self._next_job = 1
        command = [*version.program(), "--state-dir", str(self.dirs.state), "--runtime-dir", str(self.dirs.runtime)]
        self._process = subprocess.Popen(
            [*command, "--node", "bench", "--cgroup", cgroup],
            env=version.environment(), cwd="/", start_new_session=True,
        )  # fmt: skip
        socket = self.dirs.launchers / f"{self._process.pid}.sock"
        until = time.monotonic() + _PATIENCE_S
        while not socket.exists():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{version.name}: the launcher did not start, see {self.dirs.log}")
            time.sleep(0.005)
        self._launcher = self.connect()
        self._launcher.call("org.spur.Launcher.Attach")

    @property
    def launcher_pid(self) -> int:
        return self._process.pid

    def connect(self) -> Peer:
        """A connection of one's own to the launcher; one carries one call at a time."""
        return Peer(self.dirs.launchers / f"{self._process.pid}.sock")

    def make(self, script: bytes) -> RunId:
        """A directory as the agent makes it, durable."""
        run = RunId(self._next_job, 1)
        self._next_job += 1
        plan = replace(_PLAN, argv=(str(self.dirs.run(run).script),))
        duties = owed(prolog=False, epilog=False, at=time.time())
        rundirs.make(self.dirs, Manifest(run, manifest.boot_id(), "bench", 0, duties, Grant((0,))), plan, script)
        return run

    def supervise(self, peer: Peer, run: RunId) -> int:
        """Have it supervised: the pid, once the supervisor holds the lock."""
        pid: int = peer.call("org.spur.Launcher.Supervise", job=run.job, attempt=run.attempt)["pid"]
        return pid

    def wait_phase(self, run: RunId, *phases: str) -> None:
        """Until the run is in one of `phases`."""
        peer = Peer(self.dirs.socket(run))
        try:
            peer.send("org.spur.Run.Subscribe", more=True)
            while peer.receive()["parameters"]["state"]["phase"] not in phases:
                pass
        finally:
            peer.close()

    def terminate(self, run: RunId) -> None:
        self._call(run, "Terminate", kind="cancelled")

    def finish(self, run: RunId, pid: int) -> None:
        """What the agent does at the end: wait for it, acknowledge, release, see the supervisor leave."""
        fd = os.pidfd_open(pid)
        try:
            self.wait_phase(run, "finished", "answered")
            self._call(run, "Acknowledge", answer="recorded")
            self._call(run, "Release")
            if not select.select([fd], [], [], _PATIENCE_S)[0]:
                raise RuntimeError(f"the supervisor of {run} did not leave within {_PATIENCE_S:.0f} s")
        finally:
            os.close(fd)

    def _call(self, run: RunId, method: str, **parameters: str) -> None:
        peer = Peer(self.dirs.socket(run))
        try:
            peer.call(f"org.spur.Run.{method}", **parameters)
        finally:
            peer.close()

    def cpu_s(self) -> float:
        """CPU time of the launcher and of all supervisors, tasks included, that it has reaped."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS  # utime, stime, cutime, cstime: proc(5)

    def close(self) -> None:
        """Let the launcher go. RuntimeError where it does not, or has left a run behind."""
        self._launcher.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise RuntimeError(f"the launcher did not leave, see {self.dirs.log}") from None
        if left := os.listdir(self.dirs.runs):
            raise RuntimeError(f"runs were left behind: {', '.join(left)}")


_PLAN = LaunchPlan(
    argv=(), environment=(f"PATH={os.environ['PATH']}",), cwd="/", uid=0, gid=0, groups=(), umask=0o022,
    stdin="/dev/null", stdout="/dev/null", stderr="/dev/null", append=True, limits=(), kill_wait_s=2.0,
    unkillable_s=20.0, time_limit_s=None, overrun_s=0.0, may_start=True, hooks=Hooks(),
)  # fmt: skip
