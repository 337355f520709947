"""A cluster on this machine for a test: real daemons, real commands, and nothing left when it is over.

    with Cluster(root, nodes={"n1": {"cpus": 4}}) as cluster:
        job = cluster.sbatch("exit 7")
        cluster.agent.restart(signal.SIGKILL)
        assert cluster.wait_job(job, "FAILED")["ExitCode"] == "7:0"

Ports are the kernel's choice and kept over restarts. At the end all jobs are cancelled, all daemons stopped, and the
test fails on whatever is left: processes, sockets, run directories, cgroups.

    root/                   0755, short and below /tmp, so that other users and sockets get along with it
    ├── spur.toml  auth.key
    ├── work/               1777, where jobs run and write
    ├── faults/             orders for the fault points of daemons and supervisors
    ├── spurctld/           state_dir, runtime_dir in run/; log in spurctld.log
    └── n1/                 state_dir of the agent of n1, runtime_dir in run/; log in n1.log
"""

from __future__ import annotations

import json
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from spur.tables import as_toml
from spurstepd.rundir import agent_key
from tests.daemon import Daemon
from tests.faults import Faults
from tests.leftovers import MARKER, Process, cgroups_named, processes_of, sockets_below
from tests.patience import PATIENCE_S, wait_for

BIN = Path(sys.executable).parent
USER = pwd.getpwnam("nobody").pw_uid  # somebody who is not root and is there on every machine
ENDED = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL", "DEADLINE"}
)
Job = dict[str, str]
Result = subprocess.CompletedProcess[str]

_DEFAULTS: dict[str, dict[str, Any]] = {
    "controller": {"listen": "127.0.0.1:0"},
    "agent": {"listen": "127.0.0.1:0", "heartbeat_interval_secs": 0.5},
    "scheduler": {"interval_secs": 0.1},
    "job": {"kill_wait_secs": 2, "unkillable_secs": 10},
}
_NODE: dict[str, Any] = {"cpus": 8, "memory_mb": 8000}


class Agent(Daemon):
    """A node's spurd, and what it and its supervisors keep on disk."""

    def __init__(self, name: str, state_dir: Path, command: Callable[[], list[str]], env: Mapping[str, str]) -> None:
        super().__init__(name, command, state_dir.with_suffix(".log"), env, ("listening", "registered"))
        self.state_dir, self.runtime_dir = state_dir, state_dir / "run"

    @property
    def runs(self) -> list[str]:
        """The directories of runs, such as `42.1`."""
        try:
            return sorted(name for name in os.listdir(self.state_dir / "runs") if not name.startswith("."))
        except FileNotFoundError:
            return []

    def run_dir(self, job: int, attempt: int = 1) -> Path:
        return self.state_dir / "runs" / f"{job}.{attempt}"

    def socket(self, job: int, attempt: int = 1) -> Path:
        """The supervisor's."""
        return self.runtime_dir / "runs" / f"{job}.{attempt}.sock"

    def manifest(self, job: int, attempt: int = 1) -> dict[str, Any]:
        """The ledger of a run as it stands on disk."""
        manifest: dict[str, Any] = json.loads((self.run_dir(job, attempt) / "manifest.json").read_text())
        return manifest

    def supervisor_pid(self, job: int, attempt: int = 1) -> int:
        return int(self.manifest(job, attempt)["supervisor"]["pid"])

    def leader_pid(self, job: int, attempt: int = 1) -> int:
        """The pid of the batch script, once it has started."""

        def look() -> int | None:
            try:
                leader = self.manifest(job, attempt)["leader"]
            except FileNotFoundError:  # the launch is still on its way
                return None
            return int(leader["pid"]) if leader else None

        return wait_for(look, f"job {job} has a leader", explain=self.tail)

    def launcher_pids(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.runtime_dir / "launchers").glob("*.sock"))

    @property
    def cgroup_name(self) -> str:
        """What spurstepd calls the cgroup of this agent."""
        return f"spur-{agent_key(self.state_dir, self.name)}"


class Caller:
    """Commands as one user sees them."""

    def __init__(self, cluster: Cluster, uid: int | None) -> None:
        self._cluster, self.uid = cluster, uid

    def run(
        self,
        *command: str | Path,
        check: bool = False,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        within_s: float = PATIENCE_S,
    ) -> Result:
        """Run a command of Spur (or any other) to its end. `env` is added to a clean environment."""
        arguments = [str(word) for word in command]
        program = BIN / arguments[0]
        result = subprocess.run(
            [*_become(self.uid), str(program) if program.exists() else arguments[0], *arguments[1:]],
            input=stdin,
            text=True,
            errors="surrogateescape",
            capture_output=True,
            timeout=within_s,
            cwd=cwd or self._cluster.work,
            env={**self._cluster.command_env(self.uid), **(env or {})},
            check=False,
        )
        if check and result.returncode:
            raise AssertionError(
                f"{' '.join(arguments)}: exit {result.returncode}\n{result.stdout}{result.stderr}{self._cluster.story()}"
            )
        return result

    def sbatch(
        self, script: str | None = None, *options: str | int | Path, env: Mapping[str, str] | None = None, **more: Any
    ) -> int:
        """Submit the lines of `script` (a #! line is put before them where there is none); the job's number.

        With `script` None the options name a file or --wrap.
        """
        if script is not None:
            script = textwrap.dedent(script).lstrip("\n")
            script = script if script.startswith("#!") else f"#!/bin/sh\n{script}\n"
        words = [str(word) for word in options]
        submitted = self.run("sbatch", "--parsable", *words, stdin=script or "", check=True, env=env, **more)
        return int(submitted.stdout.split(";")[0])

    def job(self, job: int) -> Job:
        """What `scontrol show job` says, key by key."""
        shown = self.run("scontrol", "show", "job", "-o", str(job), check=True).stdout
        return parse_record(shown)

    def cancel(self, *jobs: int) -> None:
        self.run("scancel", *map(str, jobs), check=True)


class Cluster(Caller):
    """The cluster; itself the caller that the test is, root as a rule."""

    def __init__(
        self,
        root: Path | None = None,
        *,
        nodes: Mapping[str, Mapping[str, Any]] | Sequence[str] = ("n1",),
        config: Mapping[str, Any] | None = None,
        start: bool = True,
    ) -> None:
        super().__init__(self, None)
        self.mark = secrets.token_hex(6)
        self.root = root or Path(f"/tmp/spur-{self.mark}")
        self.work, self.conf, self.key = self.root / "work", self.root / "spur.toml", self.root / "auth.key"
        self.faults = Faults(self.root / "faults")
        self._start_at_once = start
        self._addresses: dict[str, str] = {}
        declared = nodes if isinstance(nodes, Mapping) else {name: {} for name in nodes}
        self._lay_out({name: {**_NODE, **about} for name, about in declared.items()}, config or {})
        self.controller = Daemon(
            "spurctld", self._controller_command, self.root / "spurctld.log", self._daemon_env(), ("listening",)
        )
        self.agents = {name: self._agent(name) for name in declared}

    def __enter__(self) -> Self:
        try:
            if self._start_at_once:
                self.start()
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        problems = self.close()
        if problems and error is not None:
            error.add_note("and then: " + problems)
        elif problems:
            raise AssertionError(problems)

    @property
    def agent(self) -> Agent:
        """The only or first one."""
        return next(iter(self.agents.values()))

    def start(self) -> None:
        self.start_controller()
        for agent in self.agents.values():
            agent.start(wait=False)
        for agent in self.agents.values():
            agent.wait_event("registered")

    def start_controller(self, **options: Any) -> None:
        """Start spurctld, at the port that it had the last time."""
        self.controller.start(**options)
        self._addresses.setdefault("spurctld", self.controller.wait_event("listening")["address"])

    def as_user(self, uid: int = USER) -> Caller:
        """The commands as another user."""
        return Caller(self, uid)

    @property
    def address(self) -> str:
        """The controller's."""
        return self._addresses["spurctld"]

    def command_env(self, uid: int | None = None) -> dict[str, str]:
        """A clean environment that leads the commands to this cluster."""
        account = pwd.getpwuid(os.geteuid() if uid is None else uid)
        env = {
            "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self.work),
            "USER": account.pw_name,
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "SPUR_CONF": str(self.conf),
            MARKER: self.mark,
        }
        return env | ({"SPUR_CONTROLLER_ADDR": self.address} if "spurctld" in self._addresses else {})

    def wait_job(self, job: int, *states: str, within_s: float = PATIENCE_S, **fields: str) -> Job:
        """The job, once it is in one of `states` (default: ended) and shows these fields.

        The test fails at once where the job has ended in another state.
        """
        wanted = frozenset(states) or ENDED
        last: Job = {}

        def look() -> Job | None:
            nonlocal last
            last = self.job(job)
            if last["JobState"] in wanted and fields.items() <= last.items():
                return last
            if last["JobState"] in ENDED - wanted:
                raise AssertionError(f"job {job} is {last['JobState']}, not {' or '.join(wanted)}\n{self.story(job)}")
            return None

        explain = lambda: f"{last}\n{self.story(job)}"  # noqa: E731
        return wait_for(look, f"job {job} is {' or '.join(wanted)}", within_s=within_s, explain=explain, pause_s=0.05)

    def wait_released(self, within_s: float = PATIENCE_S) -> None:
        """Wait until no agent has a run left: all is ended, reported and removed."""
        wait_for(
            lambda: not any(agent.runs for agent in self.agents.values()),
            "all runs are released",
            within_s=within_s,
            explain=lambda: "\n".join(f"{agent.name}: {agent.runs}" for agent in self.agents.values()) + self.story(),
        )

    def output(self, job: int) -> str:
        """What the job wrote to its default output file."""
        return (self.work / f"slurm-{job}.out").read_text(errors="surrogateescape")

    def nodes(self) -> dict[str, Job]:
        """What `scontrol show node` says of each node."""
        shown = self.run("scontrol", "show", "node", "-o", check=True).stdout
        records = (parse_record(line) for line in shown.splitlines() if line.strip())
        return {record["NodeName"]: record for record in records}

    def story(self, job: int | None = None) -> str:
        """The ends of all logs, for a failure message."""
        parts = [daemon.tail() for daemon in (self.controller, *self.agents.values())]
        for agent in self.agents.values():
            log = agent.state_dir / "spurstepd.log"
            if log.exists():
                parts.append(f"--- {log} ---\n" + "\n".join(log.read_text(errors="replace").splitlines()[-40:]))
        return "\n".join(["", *parts])

    def processes(self) -> list[Process]:
        """Everything of this cluster that runs."""
        return processes_of(self.mark, self.root)

    def close(self) -> str:
        """End everything. What was left, as text; empty: nothing."""
        try:
            problems = self._wind_down()
        except (AssertionError, OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
            problems = [f"winding down: {error}"]
        problems += self._leftovers()
        self._discard()
        return "\n".join(problems)

    def _wind_down(self) -> list[str]:
        """Cancel all jobs, wait for their release, stop the daemons as an operator does."""
        problems: list[str] = []
        if "spurctld" in self._addresses:
            self._awaken()
            if active := self.run("squeue", "-h", "-o", "%i", check=True).stdout.split():
                self.run("scancel", *active)
            self.wait_released()
        for agent in self.agents.values():
            if agent.running and (code := agent.stop()):
                problems.append(f"{agent.name} ended with {code}\n{agent.tail()}")
        if self.controller.running and (code := self.controller.stop()):
            problems.append(f"spurctld ended with {code}\n{self.controller.tail()}")
        return problems

    def _awaken(self) -> None:
        """Have every daemon run whose work is needed to end the jobs."""
        for daemon in (self.controller, *self.agents.values()):
            if daemon.running:
                daemon.send(signal.SIGCONT)
        if not self.controller.running:
            self.start_controller()
        for agent in self.agents.values():
            if not agent.running and agent.runs:
                agent.start()

    def _leftovers(self) -> list[str]:
        wait_s = 5.0  # a launcher leaves when it sees that its agent has gone
        try:
            wait_for(lambda: not self.processes(), "all processes have gone", within_s=wait_s)
        except AssertionError:
            pass
        left = [f"process {process}" for process in self.processes()]
        left += [f"socket {path}" for path in sockets_below(self.root)]
        left += [f"run {agent.name}/{run}" for agent in self.agents.values() for run in agent.runs]
        left += [f"cgroup {path}" for path in cgroups_named({agent.cgroup_name for agent in self.agents.values()})]
        return [f"left behind: {one}" for one in left]

    def _discard(self) -> None:
        """Remove by force whatever is left, so that other tests are not disturbed."""
        for daemon in (*self.agents.values(), self.controller):
            daemon.discard()
        for _ in range(10):
            for process in self.processes():
                try:
                    os.kill(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            if not self.processes():
                break
        for path in cgroups_named({agent.cgroup_name for agent in self.agents.values()}):
            for directory, _, _ in os.walk(path, topdown=False):
                try:
                    os.rmdir(directory)
                except OSError:  # somebody is still dying in it
                    pass
        shutil.rmtree(self.root, ignore_errors=True)

    def _lay_out(self, nodes: Mapping[str, Mapping[str, Any]], config: Mapping[str, Any]) -> None:
        self.root.mkdir(mode=0o755)
        self.root.chmod(0o755)
        self.work.mkdir()
        self.faults.directory.mkdir()
        self.faults.directory.chmod(0o1777)
        self.work.chmod(0o1777)
        self.key.touch(mode=0o600)
        self.key.write_bytes(secrets.token_bytes(32))
        self.conf.write_text(self._configuration(nodes, config))

    def _configuration(self, nodes: Mapping[str, Mapping[str, Any]], config: Mapping[str, Any]) -> str:
        """The defaults of the tests, with the keys of `config` laid over them."""
        state = self.root / "spurctld"
        tables: dict[str, Any] = {"cluster_name": "test", **{name: dict(keys) for name, keys in _DEFAULTS.items()}}
        tables["controller"] |= {"state_dir": str(state), "runtime_dir": str(state / "run")}
        tables["auth"] = {"key_file": str(self.key)}
        for name, value in config.items():
            tables[name] = {**tables.get(name, {}), **value} if isinstance(value, Mapping) else value
        tables.setdefault("partitions", [{"name": "main", "nodes": "ALL", "default": True}])
        tables.setdefault("nodes", [{"names": name, **about} for name, about in nodes.items()])
        return to_toml(tables)

    def _agent(self, name: str) -> Agent:
        return Agent(name, self.root / name, lambda: self._agent_command(self.agents[name]), self._daemon_env())

    def _agent_command(self, agent: Agent) -> list[str]:
        listen = self._known_address(agent)
        options = ["--controller", self.address, "--hostname", agent.name, "--listen", listen]
        return [str(BIN / "spurd"), "-f", str(self.conf), "--state-dir", str(agent.state_dir), *options, "-D"]

    def _controller_command(self) -> list[str]:
        listen = self._addresses.get("spurctld", "127.0.0.1:0")
        return [str(BIN / "spurctld"), "-f", str(self.conf), "--listen", listen, "-D"]

    def _known_address(self, daemon: Daemon) -> str:
        """Where `daemon` listened the first time; port 0 before."""
        if daemon.name not in self._addresses and daemon.log.exists():
            for event in daemon.events("listening", since_start=False)[:1]:
                self._addresses[daemon.name] = event["address"]
        return self._addresses.get(daemon.name, "127.0.0.1:0")

    def _daemon_env(self) -> dict[str, str]:
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            MARKER: self.mark,
            "SPUR_FAULTS_DIR": str(self.faults.directory),
        }


def parse_record(text: str) -> Job:
    """`Key=Value Key=Value`, as `scontrol show ... -o` prints it; a value may hold blanks, a key begins with a capital."""
    pairs = re.findall(r"(?:^|\s)([A-Z][\w:/]*)=(.*?)(?=\s+[A-Z][\w:/]*=|\s*$)", text.strip(), re.DOTALL)
    return dict(pairs)


def to_toml(tables: Mapping[str, Any]) -> str:
    """`tables` as TOML: plain values first, then tables, then arrays of tables."""
    lines = [f"{key} = {_value(value)}" for key, value in tables.items() if not isinstance(value, Mapping | list)]
    for name, value in tables.items():
        entries = value if isinstance(value, list) else [value] if isinstance(value, Mapping) else []
        for entry in entries:
            lines += ["", f"[[{name}]]" if isinstance(value, list) else f"[{name}]"]
            lines += [f"{key} = {_value(one)}" for key, one in entry.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    return as_toml(tuple(value) if isinstance(value, list) else value)


def _become(uid: int | None) -> list[str]:
    """What makes a command run as `uid`.

    It may read whatever is there, since the interpreter and the checkout may stand where only root looks.
    """
    if uid is None:
        return []
    reads = "+dac_read_search"
    group = pwd.getpwuid(uid).pw_gid
    account = [f"--reuid={uid}", f"--regid={group}", "--init-groups"]
    return ["setpriv", *account, f"--inh-caps={reads}", f"--ambient-caps={reads}", "--"]
