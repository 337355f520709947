"""An agent with a controller of the test's: spurd, its launcher and its supervisors are real processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from spur.pb import common_pb2, spurctld_pb2, spurd_pb2
from tests.cluster import Agent
from tests.leftovers import MARKER, cgroups_named, processes_of, sockets_below
from tests.patience import wait_for
from tests.spurd.registry import Phase, Registry, launch_request

CONFIG = """
cluster_name = "test"

[controller]
listen = "127.0.0.1:0"

[agent]
listen = "127.0.0.1:0"
controller = ["{controller}"]
heartbeat_interval_secs = 0.2
supervisor_timeout_secs = {patience}
{agent}

[auth]
plugin = "none"

[job]
kill_wait_secs = 2

[hooks]
{hooks}

[[nodes]]
names = "n1"
cpus = 8
memory_mb = 8000
{node}
"""


class Stand:
    """A controller that writes down what it is told, and the agent of node n1."""

    def __init__(self, root: Path, **more: str) -> None:
        self.root = root
        self.registry = Registry()
        self.registry.start()
        values = {"agent": "", "hooks": "", "node": "", "patience": "30", **more}
        self.conf = root / "spur.toml"
        self.conf.write_text(CONFIG.format(controller=self.registry.address, **values))
        self.mark = f"agent-{root.name}"
        self.faults = root / "faults"
        self.faults.mkdir()
        (root / "work").mkdir(mode=0o777)
        (root / "work").chmod(0o777)
        env = {
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            MARKER: self.mark,
            "SPUR_FAULTS_DIR": str(self.faults),
        }
        self.agent = Agent("n1", root / "n1", self._command, env)

    def _command(self) -> list[str]:
        spurd = Path(sys.executable).with_name("spurd")
        command = [str(spurd), "-f", str(self.conf), "--hostname", "n1"]
        return [*command, "--state-dir", str(self.agent.state_dir), "--log-level", "debug"]

    @property
    def address(self) -> str:
        return str(self.agent.wait_event("listening")["address"])

    def call(self, method: str, request: Any, timeout_s: float = 30.0) -> Any:
        return self.registry.call(self.address, method, request, timeout_s)

    def launch(self, job: int, script: str = "exit 0", attempt: int = 1, **fields: Any) -> spurd_pb2.LaunchRunReply:
        fields.setdefault("work_dir", str(self.root / "work"))
        return self.call("LaunchRun", launch_request(job, script, attempt, **fields))

    def terminate(self, job: int, attempt: int = 1, kind: int = common_pb2.VERDICT_CANCELLED) -> Any:
        verdict = common_pb2.Verdict(kind=kind, by_uid=0, reason="by the test")
        run = common_pb2.RunId(job_id=job, attempt=attempt)
        return self.call("TerminateRun", spurd_pb2.TerminateRunRequest(run=run, verdict=verdict))

    def ended(self, job: int, attempt: int = 1) -> common_pb2.Exit:
        """The exit in the report that is owed."""
        return self.registry.wait_report(job, Phase.FINISHED, attempt).status.exit

    def wait_released(self, job: int, attempt: int = 1) -> spurctld_pb2.ReportRunRequest:
        report = self.registry.wait_report(job, Phase.RELEASED, attempt)
        assert not self.agent.run_dir(job, attempt).exists()
        return report

    def wait_running(self, job: int, attempt: int = 1) -> None:
        self.registry.wait_report(job, Phase.STARTED, attempt)

    def wait_heartbeat(self, condition: Callable[[spurctld_pb2.HeartbeatRequest], Any], what: str) -> Any:
        """What `condition` gives for a heartbeat that is still to come."""
        seen = len(self.registry.heartbeats)
        return wait_for(
            lambda: next((found for one in self.registry.heartbeats[seen:] if (found := condition(one))), None),
            what,
            explain=self.agent.tail,
        )

    def output(self, job: int) -> str:
        return (self.root / "work" / f"slurm-{job}.out").read_text()

    def close(self) -> None:
        problems = []
        try:
            self._end_everything()
        finally:
            self.registry.close()
            self.agent.discard()
            left = [*processes_of(self.mark, self.root), *sockets_below(self.root)]
            left += [*self.agent.runs, *cgroups_named({self.agent.cgroup_name})]
            problems += [f"left behind: {one}" for one in left]
            for process in processes_of(self.mark, self.root):
                try:
                    os.kill(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            shutil.rmtree(self.root, ignore_errors=True)
        assert not problems, "\n".join([*problems, self.agent.tail()])

    def _end_everything(self) -> None:
        self.registry.start()
        if self.agent.running:
            self.agent.send(signal.SIGCONT)
        elif self.agent.runs:
            self.agent.start()
        if self.agent.running:
            for run in self.agent.runs:
                job, attempt = map(int, run.split("."))
                try:
                    self.terminate(job, attempt)
                except grpc.aio.AioRpcError:
                    pass
            log = self.agent.state_dir / "spurstepd.log"
            wait_for(lambda: not self.agent.runs, "all runs are released",
                     explain=lambda: self.agent.tail() + (log.read_text() if log.exists() else ""))  # fmt: skip
            self.agent.stop()
        wait_for(lambda: not processes_of(self.mark, self.root), "all processes have gone",
                 explain=lambda: str(processes_of(self.mark, self.root)))  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def grpc_ready() -> None:
    """The sockets by which grpc wakes its loops are there once for all tests."""

    async def prepare() -> None:  # in a loop: the thread's own may have been ended by an earlier test
        grpc.aio.init_grpc_aio()

    asyncio.run(prepare())


@pytest.fixture
def make_stand() -> Iterator[Callable[..., Stand]]:
    """Makes a stand; `start` False leaves the agent for the test to start."""
    made: list[Stand] = []

    def make(*, start: bool = True, **more: str) -> Stand:
        root = Path(f"/tmp/spurd-{os.urandom(5).hex()}")
        root.mkdir(mode=0o755)
        stand = Stand(root, **more)
        made.append(stand)
        if start:
            stand.agent.start()
        return stand

    yield make
    for stand in made:
        stand.close()


@pytest.fixture
def stand(make_stand: Callable[..., Stand]) -> Stand:
    """One that runs, without hooks."""
    return make_stand()
