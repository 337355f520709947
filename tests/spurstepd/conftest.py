"""A node without an agent: run directories, a launcher and its supervisors as real processes, and who calls them."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spurstepd import ledger, manifest
from spurstepd.ids import RunId
from spurstepd.launchplan import Hooks, LaunchPlan
from spurstepd.launchplan import encode as encode_plan
from spurstepd.ledger import Exit, ExitSource, Grant, Manifest
from spurstepd.rundir import SLOT_BYTES, NodeDirs, RunDir, agent_key
from tests.faults import Faults
from tests.leftovers import cgroups_named
from tests.patience import PATIENCE_S, wait_for

DEADLINE_S = PATIENCE_S


class Peer:
    """A varlink connection, byte by byte."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(DEADLINE_S)
        directory = os.open(path.parent, os.O_PATH)
        try:
            self.socket.connect(f"/proc/self/fd/{directory}/{path.name}")
        except OSError:
            self.socket.close()
            raise
        finally:
            os.close(directory)
        self._data = b""

    def send(self, method: str, more: bool = False, fds: tuple[int, ...] = (), **parameters: Any) -> None:
        message = json.dumps({"method": method, "parameters": parameters, "more": more}).encode() + b"\0"
        socket.send_fds(self.socket, [message], list(fds))

    def receive(self) -> dict[str, Any]:
        while b"\0" not in self._data:
            part = self.socket.recv(65536)
            if not part:
                raise ConnectionError("the peer closed")
            self._data += part
        message, _, self._data = self._data.partition(b"\0")
        return json.loads(message)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.send(method, **parameters)
        reply = self.receive()
        assert "error" not in reply, reply
        return reply["parameters"]

    def close(self) -> None:
        self.socket.close()


class RunHandle:
    """One run of the bench."""

    def __init__(self, bench: Bench, run: RunId) -> None:
        self.bench = bench
        self.run = run
        self.dir: RunDir = bench.dirs.run(run)

    def peer(self) -> Peer:
        return Peer(self.bench.dirs.socket(self.run))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        peer = self.peer()
        try:
            return peer.call(f"org.spur.Run.{method}", **parameters)
        finally:
            peer.close()

    def state(self) -> dict[str, Any]:
        return self.call("GetState")["state"]

    def manifest(self) -> Manifest:
        return manifest.load(self.dir)

    def wait_phase(self, *phases: str) -> dict[str, Any]:
        """Follow the run, over the deaths of its supervisors, until it is in one of `phases`."""
        until = time.monotonic() + DEADLINE_S
        state: dict[str, Any] = {}
        while time.monotonic() < until:
            try:
                state = self._follow(phases)
                return state
            except (ConnectionError, FileNotFoundError):
                time.sleep(0.01)  # between two supervisors
        raise AssertionError(f"run {self.run} is {state.get('phase')}, not in {phases}; {self.bench.log_text()}")

    def _follow(self, phases: tuple[str, ...]) -> dict[str, Any]:
        peer = self.peer()
        try:
            peer.send("org.spur.Run.Subscribe", more=True)
            while True:
                state = peer.receive()["parameters"]["state"]
                if state["phase"] in phases:
                    return state
        finally:
            peer.close()

    def finish(self) -> dict[str, Any]:
        """What spurd does at the end, over the deaths of supervisors; gives the last state before it."""
        state = self.wait_phase("finished", "answered")
        until = time.monotonic() + DEADLINE_S
        while self.dir.path.exists():
            assert time.monotonic() < until, f"run {self.run} was not released; {self.bench.log_text()}"
            try:
                self.call("Acknowledge", answer="recorded")
                self._release()
            except (ConnectionError, FileNotFoundError, ProcessLookupError):
                time.sleep(0.01)  # between two supervisors, or after the last
        return state

    def _release(self) -> None:
        fd = os.pidfd_open(self.call("Hello")["pid"])
        try:
            self.call("Release")
            assert select.select([fd], [], [], DEADLINE_S)[0], "the supervisor did not leave"
        finally:
            os.close(fd)


class Bench:
    """The directories of an agent and a launcher on them."""

    def __init__(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        self.dirs = NodeDirs(path / "state", path / "run")
        for directory in (self.dirs.runs, self.dirs.launchers, self.dirs.sockets):
            directory.mkdir(parents=True)
        for directory in (path, self.dirs.state, self.dirs.runs, self.dirs.runtime):
            directory.chmod(0o711)
        self.output = path / "out"
        self.output.mkdir(mode=0o777)
        self.output.chmod(0o777)
        self.faults = Faults(path / "faults")
        self.faults.directory.mkdir()
        self.faults.directory.chmod(0o1777)
        self.launchers: list[subprocess.Popen[bytes]] = []
        self.launcher: Peer | None = None

    def start_launcher(self, *more: str, python: tuple[str | Path, ...] = ()) -> Peer:
        program = python or (sys.executable, Path(sys.executable).parent / "spurstepd")
        environment = {"PATH": os.environ["PATH"], "SPUR_FAULTS_DIR": str(self.faults.directory)}
        process = subprocess.Popen(
            [*program, "--state-dir", self.dirs.state, "--runtime-dir",
             self.dirs.runtime, "--node", "bench", *more],
            start_new_session=True, env=environment,
        )  # fmt: skip
        self.launchers.append(process)
        path = self.dirs.launchers / f"{process.pid}.sock"
        wait_for(path.exists, f"the launcher's socket; {self.log_text()}")
        self.launcher = Peer(path)
        self.launcher.call("org.spur.Launcher.Attach")
        return self.launcher

    def make_run(
        self, script: str, job: int = 42, attempt: int = 1, hooks: Hooks | None = None, **changes: Any
    ) -> RunHandle:
        """A run directory as spurd makes it."""
        run = RunId(job, attempt)
        run_dir = self.dirs.run(run)
        run_dir.path.mkdir(mode=0o711)
        run_dir.path.chmod(0o711)
        hooks = hooks or Hooks()
        uid, owes_hooks = changes.pop("uid", 0), changes.pop("owes_hooks", False)
        now = time.time()
        manifest.write_file(run_dir.script, script.encode(), 0o500)
        os.chown(run_dir.script, uid, uid)
        output = str(self.output / f"{run}.out")
        plan = LaunchPlan(
            argv=(str(run_dir.script),), environment=(f"PATH={os.environ['PATH']}",), cwd=str(self.output), uid=uid,
            gid=uid, groups=(), umask=0o022, stdin="/dev/null", stdout=output, stderr=output, append=False, limits=(),
            kill_wait_s=5.0, unkillable_s=20.0, time_limit_s=None, overrun_s=0.0, may_start=True, hooks=hooks,
        )  # fmt: skip
        plan = replace(plan, **changes)
        record = Manifest(
            run=run, boot_id=manifest.boot_id(), nonce="abc", uid=uid, granted=Grant(cpus=(0,)),
            obligations=ledger.owed(
                prolog=owes_hooks or hooks.prolog is not None, epilog=owes_hooks or hooks.epilog is not None, at=now
            ),
        )  # fmt: skip
        manifest.write_file(run_dir.slot, bytes(SLOT_BYTES), 0o600)
        manifest.write_file(run_dir.lock, b"", 0o600)
        manifest.write_file(run_dir.plan, manifest.dump(encode_plan(plan)), 0o600)
        manifest.store(run_dir, record)
        return RunHandle(self, run)

    def supervise(self, handle: RunHandle, **more: Any) -> int:
        assert self.launcher is not None
        values = {"job": handle.run.job, "attempt": handle.run.attempt, **more}
        return self.launcher.call("org.spur.Launcher.Supervise", **values)["pid"]

    def start(self, script: str, **changes: Any) -> RunHandle:
        """A run that is being supervised."""
        handle = self.make_run(script, **changes)
        self.supervise(handle)
        return handle

    def order(self, point: str, order: str) -> None:
        self.faults.order(point, order)

    def reached(self, point: str) -> int:
        return self.faults.reached(point)

    def let_go(self, point: str) -> None:
        self.faults.let_go(point)

    def log_text(self) -> str:
        return self.dirs.log.read_text() if self.dirs.log.exists() else "no log"

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, self.log_text().splitlines()) if line["event"] == name]

    def processes(self) -> list[int]:
        """Every process that was started by this bench and lives: found by the environment that only they have."""
        mark, found = f"SPUR_FAULTS_DIR={self.faults.directory}".encode(), []
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and mark in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                    found.append(int(entry))
            except OSError:
                pass
        return found

    def close(self) -> None:
        """Let the launchers go; whatever does not go by itself is killed and fails the test."""
        if self.launcher is not None:
            self.launcher.close()
        stuck = []
        for process in self.launchers:
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                stuck.append(process.pid)
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        for process in self.launchers:
            process.kill()
            process.wait()
        assert not stuck, f"launchers {stuck} did not leave; {self.log_text()}"
        left = [str(p) for p in (*self.dirs.runs.iterdir(), *self.dirs.sockets.iterdir())]
        left += map(str, cgroups_named({f"spur-{agent_key(self.dirs.state, 'bench')}"}))
        assert not left, left


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    for parent in (tmp_path, *tmp_path.parents):
        if parent.is_relative_to(tempfile.gettempdir()) and parent != Path(tempfile.gettempdir()):
            parent.chmod(0o711)  # jobs of other users write below it
    one = Bench(tmp_path / "node")
    yield one
    one.close()


def exit_of(state: dict[str, Any]) -> tuple[str, int | None]:
    return state["exit"]["source"], state["exit"]["status"]


__all__ = ["Bench", "Exit", "ExitSource", "Peer", "RunHandle", "exit_of"]
