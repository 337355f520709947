"""Drives the core as the shell would, with a clock that stands still unless told; validates after every event."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from spurctld.core import events as e
from spurctld.core.cluster import Cluster
from spurctld.core.instructions import (
    Instruction,
    LaunchRun,
    NodeInstruction,
    PurgeJob,
    Reply,
    SaveJob,
    SaveNode,
    TerminateRun,
)
from spurctld.core.machine import Core
from spurctld.core.records import Job, Node
from spurctld.core.restoring import restore
from spurctld.core.rows import encode_job, encode_node, encode_spec
from spurctld.core.states import Answer, ExitSource, Fault, Phase
from spurctld.core.values import (
    BeatNoted,
    Exit,
    Grant,
    JobSpec,
    Machine,
    NodeSpec,
    PartitionSpec,
    Policy,
    Refusal,
    Request,
    RunKey,
    RunState,
    Submitted,
    Verdict,
)

T = TypeVar("T")


@dataclass(slots=True)
class Disk:
    """What a store would hold: JSON texts, so that nothing is shared with the records."""

    specs: dict[int, str] = field(default_factory=dict)
    jobs: dict[int, str] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    next_job: int | None = None


class Driver:
    """A controller without a shell."""

    def __init__(
        self,
        nodes: Iterable[NodeSpec] = (NodeSpec("n1", cpus=4, memory_mb=1000),),
        partitions: Iterable[PartitionSpec] = (PartitionSpec("main", default=True),),
        policy: Policy | None = None,
    ) -> None:
        self.nodes, self.partitions, self.policy = list(nodes), list(partitions), policy or Policy()
        self.at, self.mono = 1_000_000.0, 50.0
        self.disk = Disk()
        self.told: list[Instruction] = []
        self.core = self._new_core()
        self.beats: dict[str, str] = {}

    def _new_core(self) -> Core:
        return Core(Cluster(self.policy, self.nodes, self.partitions))

    @property
    def cluster(self) -> Cluster:
        return self.core.cluster

    def job(self, number: int) -> Job:
        return self.cluster.jobs[number]

    def node(self, name: str = "n1") -> Node:
        return self.cluster.nodes[name]

    # The shell's part

    def apply(self, kind: type[Any], /, **facts: Any) -> list[Instruction]:
        return self._take(self.core.apply(kind(at=self.at, mono=self.mono, stimulus=f"t{self.mono:g}", **facts)))

    def _take(self, instructions: list[Instruction]) -> list[Instruction]:
        for one in instructions:
            match one:
                case SaveJob(number, new):
                    job = self.job(number)
                    if new:
                        self.disk.specs[number] = json.dumps(encode_spec(job.spec))
                    self.disk.jobs[number] = json.dumps(encode_job(job))
                case PurgeJob(number):
                    del self.disk.jobs[number], self.disk.specs[number]
                case SaveNode(name):
                    self.disk.nodes[name] = json.dumps(encode_node(self.node(name)))
        self.disk.next_job = self.cluster.next_job
        self.told = instructions
        self.core.validate()
        return instructions

    def reply(self) -> Any:
        return next(one.value for one in self.told if isinstance(one, Reply))

    def of(self, kind: type[T]) -> list[T]:
        return [one for one in self.told if isinstance(one, kind)]

    def to_nodes(self) -> list[NodeInstruction]:
        return self.of(NodeInstruction)  # type: ignore[arg-type]

    def restart(self, *, away_s: float = 0.0, **changes: Any) -> list[Instruction]:
        """The controller dies and comes back, with another monotonic clock."""
        self.at += away_s
        self.mono = self.mono + 1000.0
        for name, value in changes.items():
            setattr(self, name, list(value) if name != "policy" else value)
        before = {number: json.loads(text) for number, text in self.disk.jobs.items()}
        self.core = self._new_core()
        told = restore(
            self.cluster,
            at=self.at,
            mono=self.mono,
            next_job=self.disk.next_job,
            jobs=[(number, json.loads(self.disk.specs[number]), row) for number, row in before.items()],
            nodes={name: json.loads(text) for name, text in self.disk.nodes.items()},
        )
        return self._take(told)

    def wait(self, seconds: float, away_s: float = 0.0) -> list[Instruction]:
        """Time passes at once, then a tick. For `away_s` of it the controller stood still."""
        self.at += seconds
        self.mono += seconds
        return self.apply(e.Tick, away_s=away_s)

    def schedule(self, backfill: bool = True) -> list[Instruction]:
        return self.apply(e.SchedulePass, backfill=backfill)

    # Users

    def submit(self, **facts: Any) -> int:
        reply = self.try_submit(**facts)
        assert isinstance(reply, Submitted), reply
        return reply.job

    def try_submit(self, **facts: Any) -> Submitted | Refusal:
        names = Request.__dataclass_fields__
        request = Request(**{name: facts.pop(name) for name in list(facts) if name in names})
        spec = replace(JobSpec("job", 1000, 1000, "ann", "staff", "", request), **facts)
        self.apply(e.JobSubmitted, spec=spec)
        return self.reply()

    def start(self, **facts: Any) -> int:
        """Submits a job and has it started; it must fit."""
        number = self.submit(**facts)
        self.schedule()
        assert self.job(number).state.active, self.job(number).wait_reason
        return number

    def run(self, **facts: Any) -> tuple[int, RunKey]:
        """A job whose user code runs."""
        number = self.start(**facts)
        key = self.key(number)
        for name in self.job(number).runs[key.attempt].parts:
            self.apply(e.LaunchTaken, run=key, node=name)
        self.report(key, Phase.RUNNING)
        return number, key

    def key(self, number: int) -> RunKey:
        return RunKey(number, self.job(number).attempt)

    def cancel(self, number: int, uid: int = 0, **facts: Any) -> Refusal | None:
        self.apply(e.CancelAsked, jobs=(number,), by_uid=uid, **facts)
        return self.reply().results[0][1]

    # Nodes

    def register(self, name: str = "n1", runs: Iterable[RunState] = (), **facts: Any) -> Any:
        fields = {"boot_id": "boot1", "incarnation": "inc1", "cpus": 4, "memory_mb": 1000, **facts}
        drains = fields.pop("drain_reasons", ())
        machine = Machine(address=f"{name}:1", hostname=name, version="1", arch="x", os="Linux", **fields)
        self.beats[name] = machine.incarnation
        self.apply(e.NodeRegistered, node=name, machine=machine, runs=tuple(runs), drain_reasons=tuple(drains))
        return self.reply()

    def beat(self, name: str = "n1", runs: Iterable[RunState] = (), **facts: Any) -> BeatNoted:
        self.apply(e.NodeBeat, node=name, incarnation=self.beats[name], runs=tuple(runs), **facts)
        return self.reply()

    def report(
        self,
        key: RunKey,
        phase: Phase,
        node: str | None = None,
        exit: Exit | None = None,
        verdict: Verdict | None = None,
        **facts: Any,
    ) -> Answer:
        if node is None:
            job = self.cluster.jobs.get(key.job)
            run = job.runs.get(key.attempt) if job else None
            node = run.batch.node if run else "n1"
        state = RunState(key, phase.word, exit=exit, verdict=verdict)
        self.apply(e.RunReported, node=node, phase=phase, state=state, **facts)
        return self.reply()

    def end(self, key: RunKey, status: int | None = 0, **facts: Any) -> Answer:
        source = facts.pop("source", ExitSource.WAITID)
        oom_kills = facts.pop("oom_kills", 0)
        detail = facts.pop("detail", "")
        exit = Exit(source, status, self.at, oom_kills, detail)
        return self.report(key, Phase.ENDED, exit=exit, **facts)

    def finish(self, key: RunKey, status: int | None = 0, **facts: Any) -> None:
        """The run ends, is cleaned up and let go."""
        self.end(key, status, **facts)
        self.report(key, Phase.FINISHED)
        self.report(key, Phase.RELEASED)

    def refuse(self, key: RunKey, fault: Fault = Fault.NODE, node: str = "n1", text: str = "no") -> list[Instruction]:
        return self.apply(e.LaunchRefused, run=key, node=node, fault=fault, text=text)

    def launches(self) -> list[RunKey]:
        return [one.run for one in self.of(LaunchRun)]

    def terminations(self) -> list[tuple[RunKey, str]]:
        return [(one.run, one.verdict.kind.value) for one in self.of(TerminateRun)]


def state_of(key: RunKey, phase: str = "running", **facts: Any) -> RunState:
    return RunState(key, phase, **facts)


def grant(cpus: int, memory_mb: int = 0) -> Grant:
    return Grant(tuple(range(cpus)), memory_mb)
