"""A small cluster with users, nodes that keep an agent's rules, and trouble; driven by whatever chooses.

Every action takes its decisions from `choose`, so that hypothesis and a plain random walk can play the same world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from spurctld.core import events as e
from spurctld.core.instructions import LaunchRun, RunHook, StartRun, SuspendRun, TerminateRun
from spurctld.core.states import ExitSource, Fault, JobState, NodeOrder, Phase
from spurctld.core.values import Exit, Gres, NodeSpec, PartitionSpec, Policy, RunKey, RunState
from tests.spurctld.core.driver import Driver

T = TypeVar("T")
GPUS = (Gres("gpu", "a", 1), Gres("gpu", "b", 1))
NODES = (
    NodeSpec("n1", cpus=4, memory_mb=1000, gres=GPUS),
    NodeSpec("n2", cpus=2, memory_mb=500, gres=()),
    NodeSpec("n3", cpus=4, memory_mb=1000, gres=()),
)
PARTITIONS = (PartitionSpec("main", default=True), PartitionSpec("small", nodes=("n2", "n3"), max_time_s=100))


@dataclass
class FakeRun:
    """What a manifest would say."""

    key: RunKey
    may_start: bool
    phase: Phase = Phase.ACCEPTED
    exit: Exit | None = None
    suspended: bool = False

    def end(self, status: int | None, oom: int = 0) -> None:
        source = ExitSource.WAITID if status is not None else ExitSource.UNKNOWN
        if self.phase < Phase.RUNNING:
            source, status = ExitSource.NEVER_STARTED, None
        self.exit, self.phase = Exit(source, status, 5.0, oom), Phase.ENDED


@dataclass
class FakeNode:
    """An agent: launches are idempotent, an older attempt or a buried one is refused, what is listed is complete."""

    name: str
    alive: bool = False
    starts: int = 0
    boots: int = 0
    runs: dict[RunKey, FakeRun] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)  # job: attempt
    inbox: list[object] = field(default_factory=list)

    def listed(self) -> tuple[RunState, ...]:
        return tuple(RunState(run.key, run.phase.word, suspended=run.suspended) for run in self.runs.values())


class World:
    def __init__(self, policy: Policy, choose: Callable[[Sequence[T]], T]) -> None:
        self.choose = choose
        self.driver = Driver(NODES, PARTITIONS, policy)
        self.nodes = {spec.name: FakeNode(spec.name) for spec in NODES}
        self.hooks: list[RunHook] = []
        self.begun_hooks: set[RunHook] = set()
        self.exits: dict[RunKey, Exit] = {}
        for node in self.nodes.values():
            self.register(node)

    def node(self) -> FakeNode:
        return self.nodes[self.choose(sorted(self.nodes))]

    # The shell

    def deliver(self) -> None:
        """What the last event decided reaches the nodes' inboxes; and what always holds is looked at."""
        for one in self.driver.told:
            if isinstance(one, RunHook):
                assert one not in self.begun_hooks, f"{one} begun twice"
                self.begun_hooks.add(one)
                self.hooks.append(one)
            elif isinstance(one, LaunchRun | StartRun | TerminateRun | SuspendRun):
                self.nodes[one.node].inbox.append(one)
        self.driver.told = []
        self.check()

    def check(self) -> None:
        """An exit that was recorded never changes, and user code of one job runs once at a time where we can reach."""
        for job in self.driver.cluster.jobs.values():
            for run in job.runs.values():
                if run.exit is not None:
                    assert self.exits.setdefault(run.key, run.exit) == run.exit
            if job.state.active:
                others = [one for one in job.runs.values() if one is not job.run and one.booked]
                assert all(part.lost or one.verdict for one in others for part in one.parts.values())

    def apply(self, kind: type[e.Event], /, **facts: object) -> None:
        self.driver.apply(kind, **facts)
        self.deliver()

    # Users

    def submit(self) -> None:
        choose = self.choose
        nodes = choose([1, 1, 1, 1, 2])
        self.driver.try_submit(
            nodes=nodes,
            tasks=nodes,
            cpus_per_task=choose([1, 2, 3, 4]),
            memory_mb=choose([None, 0, 200, 500]),
            gres_per_node=choose([(), (), (), (Gres("gpu", "", 1),), (Gres("gpu", "a", 1),), (Gres("gpu", "", 2),)]),
            time_limit_s=choose([None, 60, 0xFFFFFFFF]),
            requeue=choose([None, None, True, False]),
            hold=choose([False] * 5 + [True]),
            partition=choose(["", "", "small"]),
        )
        self.deliver()
        self.schedule()

    def ask(self) -> None:
        jobs = sorted(self.driver.cluster.jobs)
        if not jobs:
            return
        number = self.choose(jobs)
        match wish := self.choose(["cancel", "signal", "requeue", "hold", "release", "release", "suspend", "resume"]):
            case "cancel" | "signal":
                self.driver.cancel(number, signal=10 if wish == "signal" else 0)
                self.deliver()
            case "requeue":
                self.apply(e.RequeueAsked, job=number, by_uid=0, hold=self.choose([False, False, True]))
            case "hold" | "release":
                self.apply(e.HoldAsked, job=number, by_uid=0, release=wish == "release")
            case _:
                self.apply(e.SuspendAsked, job=number, by_uid=0, resume=wish == "resume")

    def schedule(self) -> None:
        self.driver.schedule(self.choose([True, False]))
        self.deliver()

    def wait(self) -> None:
        self.driver.wait(self.choose([0.5, 5.0, 21.0]))
        self.deliver()

    # Nodes without trouble

    def register(self, node: FakeNode) -> None:
        node.alive, node.starts = True, node.starts + 1
        self.driver.register(
            node.name,
            node.listed(),
            boot_id=f"boot{node.boots}",
            incarnation=f"{node.name}-{node.starts}",
            gres=GPUS if node.name == "n1" else (),
        )
        self.deliver()

    def work(self) -> None:
        """A node takes all its calls and brings its runs some way on."""
        node = self.node()
        if node.alive:
            self.take_calls(node)
            until = self.choose(
                [Phase.READY, Phase.RUNNING, Phase.RUNNING, Phase.ENDED, Phase.RELEASED, Phase.RELEASED]
            )
            for run in list(node.runs.values()):
                self._advance(node, run, until)

    def _advance(self, node: FakeNode, run: FakeRun, until: Phase) -> None:
        while run.phase < min(until, Phase.FINISHED) and (run.phase is not Phase.READY or run.may_start):
            if run.phase is Phase.RUNNING:
                run.end(self.choose([0, 0, 256, 9, None]), self.choose([0, 0, 0, 1]))
            else:
                run.phase = Phase(run.phase + 1)
            self.report(node, run, run.phase)
        if until is Phase.RELEASED and run.phase is Phase.FINISHED:
            self.report(node, run, Phase.FINISHED)
            self.release(node, run)

    def take_calls(self, node: FakeNode) -> None:
        while node.inbox:
            self.take_call(node, 0, answered=True)

    def take_call(self, node: FakeNode, at: int, *, answered: bool, refuse: Fault | None = None) -> None:
        call = node.inbox.pop(at)
        match call:
            case LaunchRun(run=key):
                self._launch(node, key, answered, refuse)
            case StartRun(run=key) if key in node.runs:
                node.runs[key].may_start = True
            case SuspendRun(run=key) if key in node.runs:
                node.runs[key].suspended = not call.resume
            case TerminateRun(run=key):
                self._terminate(node, key, answered)
        self.deliver()

    def _launch(self, node: FakeNode, key: RunKey, answered: bool, refuse: Fault | None) -> None:
        newest = node.newest.get(key.job, 0)
        if key.attempt < newest or (key.attempt == newest and key not in node.runs):
            self.driver.refuse(key, Fault.NODE, node.name, "stale attempt")
            return
        if key not in node.runs:
            node.newest[key.job] = key.attempt
            if refuse is not None:
                self.driver.refuse(key, refuse, node.name)
                return
            job = self.driver.cluster.jobs.get(key.job)
            run = job.runs.get(key.attempt) if job else None
            node.runs[key] = FakeRun(key, may_start=run is None or len(run.parts) == 1)
        if answered:
            self.driver.apply(e.LaunchTaken, run=key, node=node.name)

    def _terminate(self, node: FakeNode, key: RunKey, answered: bool) -> None:
        run = node.runs.get(key)
        if run is None:
            node.newest[key.job] = max(node.newest.get(key.job, 0), key.attempt)
        elif run.exit is None:
            run.end(15)
        if answered:
            self.driver.apply(e.RunAbsent if run is None else e.TerminateTaken, run=key, node=node.name)

    def report(self, node: FakeNode, run: FakeRun, phase: Phase, held: bool = False) -> None:
        never = phase >= Phase.ENDED and run.exit is not None and run.exit.source is ExitSource.NEVER_STARTED
        self.apply(
            e.RunReported,
            node=node.name,
            phase=phase,
            state=RunState(run.key, phase.word, exit=run.exit if phase >= Phase.ENDED else None),
            requeue_held=held and never,
            drain_reason="prolog failed" if held and never else "",
        )

    def release(self, node: FakeNode, run: FakeRun) -> None:
        node.runs.pop(run.key, None)
        self.report(node, run, Phase.RELEASED)

    def beat(self) -> None:
        node = self.node()
        if node.alive:
            reasons = self.choose([(), (), (), (), ("unkillable",)])
            if self.driver.beat(node.name, node.listed(), drain_reasons=reasons).register_again:
                self.deliver()
                self.register(node)
            self.deliver()

    def end_hook(self) -> None:
        if self.hooks:
            hook = self.hooks.pop(self.choose(range(len(self.hooks))))
            self.apply(e.HookEnded, run=hook.run, kind=hook.kind, ok=self.choose([True, True, True, False]))

    # Trouble

    def muddle(self) -> None:
        """Calls come out of order, answers get lost, launches are refused, old reports come again."""
        node = self.node()
        if node.alive and node.inbox:
            refuse = self.choose([None, None, None, *Fault])
            self.take_call(
                node, self.choose(range(len(node.inbox))), answered=self.choose([True, False]), refuse=refuse
            )
        if node.alive and node.runs:
            run = node.runs[self.choose(sorted(node.runs))]
            told = [phase for phase in Phase if Phase.READY <= phase <= run.phase]
            if told:
                self.report(node, run, self.choose(told), held=self.choose([True, False]))

    def end_early(self) -> None:
        """A run ends before its user code started, as when its prolog fails."""
        node = self.node()
        for run in node.runs.values():
            if run.phase < Phase.RUNNING:
                run.end(None)
                self.report(node, run, Phase.ENDED, held=self.choose([True, False]))
                return

    def lose_node(self) -> None:
        """The agent dies, or the whole node; later it is back, with its records or without."""
        node = self.node()
        match self.choose(["die", "die", "return", "return", "reboot", "disk lost"]):
            case "die":
                node.alive = False
            case "return":
                if not node.alive:
                    self.register(node)
            case kind:
                node.boots += 1
                if kind == "disk lost":
                    node.runs.clear()
                    node.newest.clear()
                for run in node.runs.values():
                    if run.exit is None:
                        run.end(None)
                self.register(node)

    def leave(self) -> None:
        node = self.node()
        if node.alive and not node.runs:
            self.apply(e.NodeLeft, node=node.name, incarnation=self.driver.beats[node.name])
            node.alive = False

    def order_node(self) -> None:
        order = self.choose([*NodeOrder, NodeOrder.RESUME, NodeOrder.RESUME])
        self.apply(e.NodesOrdered, nodes=(self.node().name,), order=order, reason="test", by_uid=0)

    def wait_long(self) -> None:
        """Whoever does not beat meanwhile is silent."""
        for _ in range(self.choose([3, 8])):
            self.driver.wait(40.0)
            self.deliver()
            for node in self.nodes.values():
                if node.alive and not self.driver.beat(node.name, node.listed()).register_again:
                    self.deliver()

    def restart(self) -> None:
        """kill -9 of the controller: what was in flight to nodes and hooks is gone."""
        self.hooks.clear()
        for node in self.nodes.values():
            node.inbox.clear()
        self.driver.restart(away_s=self.choose([0.0, 10.0, 1000.0]))
        self.deliver()

    # The end

    def wind_down(self) -> None:
        """Left alone by users and trouble, with all nodes back, every job ends and every resource comes free."""
        for name in self.nodes:
            self.apply(e.NodesOrdered, nodes=(name,), order=NodeOrder.RESUME, reason="", by_uid=0)
        for number in list(self.driver.cluster.jobs):
            self.driver.cancel(number)
            self.deliver()
        for _ in range(40):
            self._settle()
        cluster = self.driver.cluster
        for job in cluster.jobs.values():
            story = "\n".join(map(str, job.story))
            assert job.state.finished and not job.completing, story
            assert not any(run.booked for run in job.runs.values()), story
        for one in cluster.nodes.values():
            assert not one.runs
            assert not one.strays
            assert one.cpus_allocated == 0
        self.driver.wait(1000.0)
        assert not cluster.jobs

    def _settle(self) -> None:
        self.driver.wait(11.0)
        self.deliver()
        while self.hooks:
            hook = self.hooks.pop()
            self.apply(e.HookEnded, run=hook.run, kind=hook.kind, ok=True)
        for node in self.nodes.values():
            if not node.alive or self.driver.beat(node.name, node.listed()).register_again:
                self.register(node)
            self.deliver()
            self.take_calls(node)
            for run in list(node.runs.values()):
                if run.exit is not None:
                    run.phase = Phase.FINISHED
                    self.report(node, run, Phase.FINISHED)
                    self.release(node, run)

    @property
    def states(self) -> set[JobState]:
        return {job.state for job in self.driver.cluster.jobs.values()}
