"""Random lives of a cluster: whatever users, nodes and restarts do in whatever order, the books stay right."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis import Phase as Phase_
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spurctld.core import events as e
from spurctld.core.instructions import LaunchRun, RunHook, StartRun, TerminateRun
from spurctld.core.states import ExitSource, Fault, NodeOrder, Phase, VerdictKind
from spurctld.core.values import Exit, Gres, NodeSpec, PartitionSpec, Policy, RunKey, RunState
from tests.spurctld.core.driver import Driver

NODES = (
    NodeSpec("n1", cpus=4, memory_mb=1000, gres=(Gres("gpu", "a", 1), Gres("gpu", "b", 1))),
    NodeSpec("n2", cpus=2, memory_mb=500, gres=()),
    NodeSpec("n3", cpus=4, memory_mb=1000, gres=()),
)
PARTITIONS = (PartitionSpec("main", default=True), PartitionSpec("small", nodes=("n2", "n3"), max_time_s=100))
names = st.sampled_from([spec.name for spec in NODES])


@dataclass
class FakeRun:
    """A run on a fake node: what its manifest would say."""

    key: RunKey
    phase: Phase = Phase.ACCEPTED
    exit: Exit | None = None
    batch: bool = True
    may_start: bool = True


@dataclass
class FakeNode:
    """A node that keeps the rules of an agent, but in whatever order and as late as it likes."""

    name: str
    alive: bool = False
    incarnation: int = 0
    boot: int = 0
    runs: dict[RunKey, FakeRun] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)  # job: attempt
    inbox: list[object] = field(default_factory=list)

    def listed(self) -> tuple[RunState, ...]:
        return tuple(RunState(run.key, run.phase.word) for run in self.runs.values())


class ClusterLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.exits: dict[RunKey, Exit] = {}
        self.true_exits: dict[RunKey, int] = {}
        self.hooks: list[RunHook] = []
        self.begun_hooks: set[tuple[RunKey, object]] = set()

    @initialize(hooks=st.booleans(), take_back=st.booleans())
    def begin(self, hooks: bool, take_back: bool) -> None:
        policy = Policy(
            controller_prolog=hooks,
            controller_epilog=hooks,
            take_back_runs=take_back,
            min_job_age_s=300.0,
            missing_run_grace_s=20.0,
        )
        self.driver = Driver(NODES, PARTITIONS, policy)
        self.fakes = {spec.name: FakeNode(spec.name) for spec in NODES}
        for fake in self.fakes.values():
            self._register(fake)

    # What the shell would do with instructions: keep those to nodes until the node looks

    def _deliver(self) -> None:
        for one in self.driver.told:
            if isinstance(one, RunHook):
                assert (one.run, one.kind) not in self.begun_hooks, f"{one} begun twice"
                self.begun_hooks.add((one.run, one.kind))
                self.hooks.append(one)
            elif isinstance(one, LaunchRun | StartRun | TerminateRun):
                self.fakes[one.node].inbox.append(one)
        self.driver.told = []

    def _register(self, fake: FakeNode) -> None:
        fake.alive = True
        fake.incarnation += 1
        self.driver.register(
            fake.name,
            fake.listed(),
            boot_id=f"boot{fake.boot}",
            incarnation=f"{fake.name}-{fake.incarnation}",
            gres=(Gres("gpu", "a", 1), Gres("gpu", "b", 1)) if fake.name == "n1" else (),
        )
        self._deliver()

    # Users

    @rule(
        cpus=st.integers(1, 4),
        memory_mb=st.sampled_from([None, 0, 200, 500]),
        gpus=st.sampled_from([(), (Gres("gpu", "", 1),), (Gres("gpu", "a", 1),), (Gres("gpu", "", 2),)]),
        nodes=st.sampled_from([1, 1, 1, 2]),
        limit=st.sampled_from([None, 60, 0xFFFFFFFF]),
        requeue=st.sampled_from([None, True, False]),
        hold=st.booleans(),
        partition=st.sampled_from(["", "small"]),
    )
    def submit(self, cpus, memory_mb, gpus, nodes, limit, requeue, hold, partition) -> None:  # type: ignore[no-untyped-def]
        self.driver.try_submit(
            cpus_per_task=cpus, memory_mb=memory_mb, gres_per_node=gpus, nodes=nodes, tasks=nodes,
            time_limit_s=limit, requeue=requeue, hold=hold and cpus == 1, partition=partition,
        )  # fmt: skip
        self._deliver()

    @precondition(lambda self: self.driver.cluster.jobs)
    @rule(data=st.data(), signal=st.sampled_from([0, 0, 9, 10]))
    def cancel(self, data: st.DataObject, signal: int) -> None:
        self.driver.cancel(self._any_job(data), signal=signal)
        self._deliver()

    @precondition(lambda self: self.driver.cluster.jobs)
    @rule(data=st.data(), hold=st.booleans())
    def requeue(self, data: st.DataObject, hold: bool) -> None:
        self.driver.apply(e.RequeueAsked, job=self._any_job(data), by_uid=0, hold=hold)
        self._deliver()

    @precondition(lambda self: self.driver.cluster.jobs)
    @rule(data=st.data(), release=st.booleans())
    def hold(self, data: st.DataObject, release: bool) -> None:
        self.driver.apply(e.HoldAsked, job=self._any_job(data), by_uid=0, release=release)
        self._deliver()

    @precondition(lambda self: self.driver.cluster.jobs)
    @rule(data=st.data(), resume=st.booleans())
    def suspend(self, data: st.DataObject, resume: bool) -> None:
        self.driver.apply(e.SuspendAsked, job=self._any_job(data), by_uid=0, resume=resume)
        self._deliver()

    def _any_job(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.driver.cluster.jobs)))

    @rule(name=names, order=st.sampled_from(list(NodeOrder)))
    def order_node(self, name: str, order: NodeOrder) -> None:
        self.driver.apply(e.NodesOrdered, nodes=(name,), order=order, reason="test", by_uid=0)
        self._deliver()

    # Time

    @rule(seconds=st.sampled_from([0.5, 5.0, 30.0, 61.0, 100.0, 400.0]))
    def wait(self, seconds: float) -> None:
        self.driver.wait(seconds)
        self._deliver()

    @rule(backfill=st.booleans())
    def schedule(self, backfill: bool) -> None:
        self.driver.schedule(backfill)
        self._deliver()

    @rule(away_s=st.sampled_from([0.0, 10.0, 1000.0]))
    def restart(self, away_s: float) -> None:
        """kill -9 of the controller: what was in flight to nodes and hooks is gone."""
        self.hooks.clear()
        for fake in self.fakes.values():
            fake.inbox.clear()
        self.driver.restart(away_s=away_s)
        self._deliver()

    # Nodes

    @rule(name=names, data=st.data())
    def look(self, name: str, data: st.DataObject) -> None:
        """The node takes one of its calls, not always the first, and answers or its answer is lost."""
        fake = self.fakes[name]
        if not fake.alive or not fake.inbox:
            return
        call = fake.inbox.pop(data.draw(st.integers(0, len(fake.inbox) - 1)))
        answered = data.draw(st.booleans())
        match call:
            case LaunchRun(run=key):
                self._launch(fake, key, answered, refuse=data.draw(st.sampled_from([None, None, None, *Fault])))
            case StartRun(run=key):
                if key in fake.runs:
                    fake.runs[key].may_start = True
            case TerminateRun(run=key):
                self._terminate(fake, key, answered, kind=call.verdict.kind)
        self._deliver()

    def _launch(self, fake: FakeNode, key: RunKey, answered: bool, refuse: Fault | None) -> None:
        newest = fake.newest.get(key.job, 0)
        if key.attempt < newest or (key.attempt == newest and key not in fake.runs):
            self.driver.refuse(key, Fault.NODE, fake.name, "stale attempt")
            return
        if key not in fake.runs:
            if refuse is not None:
                fake.newest[key.job] = key.attempt
                self.driver.refuse(key, refuse, fake.name)
                return
            job = self.driver.cluster.jobs.get(key.job)
            run = job.runs.get(key.attempt) if job else None
            single = run is None or len(run.parts) == 1
            fake.runs[key] = FakeRun(key, batch=run is None or run.batch.node == fake.name, may_start=single)
            fake.newest[key.job] = key.attempt
        if answered:
            self.driver.apply(e.LaunchTaken, run=key, node=fake.name)

    def _terminate(self, fake: FakeNode, key: RunKey, answered: bool, kind: VerdictKind) -> None:
        run = fake.runs.get(key)
        if run is None:
            fake.newest[key.job] = max(fake.newest.get(key.job, 0), key.attempt)
            if answered:
                self.driver.apply(e.RunAbsent, run=key, node=fake.name)
            return
        if run.exit is None:
            self._end(run, 15)
        if answered:
            self.driver.apply(e.TerminateTaken, run=key, node=fake.name)

    def _end(self, run: FakeRun, status: int | None, oom: int = 0) -> None:
        source = ExitSource.WAITID
        if run.phase < Phase.RUNNING:
            source, status = ExitSource.NEVER_STARTED, None
        elif status is None:
            source = ExitSource.UNKNOWN
        run.exit = Exit(source, status, 5.0, oom)
        run.phase = Phase.ENDED

    @rule(name=names, data=st.data(), status=st.sampled_from([0, 0, 256, 9, None]), oom=st.sampled_from([0, 0, 1]))
    def progress(self, name: str, data: st.DataObject, status: int | None, oom: int) -> None:
        """A run on the node comes one step further."""
        fake = self.fakes[name]
        going = [run for run in fake.runs.values() if run.phase < Phase.FINISHED]
        if not going:
            return
        run = data.draw(st.sampled_from(going))
        if run.phase is Phase.READY and not run.may_start:
            return
        if run.phase is Phase.RUNNING:
            self._end(run, status, oom)
        else:
            run.phase = Phase(run.phase + 1)

    @rule(name=names, data=st.data(), held=st.booleans())
    def report(self, name: str, data: st.DataObject, held: bool) -> None:
        """The node says how far a run is; a run that is finished and answered is let go."""
        fake = self.fakes[name]
        if not fake.alive or not fake.runs:
            return
        run = data.draw(st.sampled_from(list(fake.runs.values())))
        if run.phase is Phase.ACCEPTED:
            return
        phase = data.draw(st.sampled_from([p for p in Phase if Phase.READY <= p <= run.phase]))
        ended = phase >= Phase.ENDED
        state = RunState(run.key, phase.word, exit=run.exit if ended else None)
        never = run.exit is not None and run.exit.source is ExitSource.NEVER_STARTED
        self.driver.apply(
            e.RunReported, node=name, phase=phase, state=state, requeue_held=held and never and ended,
            drain_reason="hook failed" if held and never and ended else "",
        )  # fmt: skip
        self._deliver()
        if phase is Phase.FINISHED:
            del fake.runs[run.key]
            if data.draw(st.booleans()):
                state = RunState(run.key, "released", exit=run.exit)
                self.driver.apply(e.RunReported, node=name, phase=Phase.RELEASED, state=state)
                self._deliver()

    @rule(name=names, reasons=st.sampled_from([(), (), ("unkillable",)]))
    def beat(self, name: str, reasons: tuple[str, ...]) -> None:
        fake = self.fakes[name]
        if not fake.alive:
            return
        if self.driver.beat(name, fake.listed(), drain_reasons=reasons).register_again:
            self._register(fake)
        self._deliver()

    @rule(name=names)
    def die(self, name: str) -> None:
        """The agent is away; its runs go on under their supervisors."""
        self.fakes[name].alive = False

    @rule(name=names)
    def come_back(self, name: str) -> None:
        if not self.fakes[name].alive:
            self._register(self.fakes[name])

    @rule(name=names, lost=st.booleans())
    def reboot(self, name: str, lost: bool) -> None:
        """Everything on the node is dead; its records are found again, or not."""
        fake = self.fakes[name]
        fake.boot += 1
        if lost:
            fake.runs.clear()
            fake.newest.clear()
        for run in fake.runs.values():
            if run.exit is None:
                self._end(run, None)
        self._register(fake)

    @rule(name=names)
    def leave(self, name: str) -> None:
        fake = self.fakes[name]
        if fake.alive and not fake.runs:
            self.driver.apply(e.NodeLeft, node=name, incarnation=self.driver.beats[name])
            fake.alive = False
            self._deliver()

    @precondition(lambda self: self.hooks)
    @rule(data=st.data(), ok=st.sampled_from([True, True, False]))
    def end_hook(self, data: st.DataObject, ok: bool) -> None:
        hook = self.hooks.pop(data.draw(st.integers(0, len(self.hooks) - 1)))
        self.driver.apply(e.HookEnded, run=hook.run, kind=hook.kind, ok=ok)
        self._deliver()

    # What always holds

    @invariant()
    def exits_never_change(self) -> None:
        for job in self.driver.cluster.jobs.values():
            for run in job.runs.values():
                if run.exit is not None:
                    assert self.exits.setdefault(run.key, run.exit) == run.exit

    @invariant()
    def nothing_runs_twice(self) -> None:
        """User code of one job never runs twice at a time on nodes that the controller can reach."""
        for job in self.driver.cluster.jobs.values():
            if job.state.active:
                run = job.run
                assert run is not None
                others = [one for one in job.runs.values() if one is not run and one.booked]
                assert all(part.lost or one.verdict for one in others for part in one.parts.values())

    def teardown(self) -> None:
        """Left alone by users, with all nodes back, every job's resources come free and nothing stays half done."""
        if not hasattr(self, "driver"):
            return
        for name in self.fakes:
            self.driver.apply(e.NodesOrdered, nodes=(name,), order=NodeOrder.RESUME, reason="", by_uid=0)
            self._deliver()
        for number in list(self.driver.cluster.jobs):
            self.driver.cancel(number)
            self._deliver()
        for _ in range(40):
            self._settle()
        for job in self.driver.cluster.jobs.values():
            assert job.state.finished and not job.completing, list(map(str, job.story))
            assert not any(run.booked for run in job.runs.values()), list(map(str, job.story))
        for node in self.driver.cluster.nodes.values():
            assert not node.runs and not node.strays and node.cpus_allocated == 0
        self.driver.wait(1000.0)
        assert not self.driver.cluster.jobs

    def _settle(self) -> None:
        self.driver.wait(11.0)
        self._deliver()
        while self.hooks:
            hook = self.hooks.pop()
            self.driver.apply(e.HookEnded, run=hook.run, kind=hook.kind, ok=True)
            self._deliver()
        for fake in self.fakes.values():
            if not fake.alive:
                self._register(fake)
            if self.driver.beat(fake.name, fake.listed()).register_again:
                self._register(fake)
            self._deliver()
            while fake.inbox:
                match fake.inbox.pop(0):
                    case LaunchRun(run=key):
                        self._launch(fake, key, True, None)
                    case TerminateRun(run=key, verdict=verdict):
                        self._terminate(fake, key, True, verdict.kind)
                self._deliver()
            for run in list(fake.runs.values()):
                if run.exit is not None:
                    for phase in (Phase.ENDED, Phase.FINISHED, Phase.RELEASED):
                        state = RunState(run.key, phase.word, exit=run.exit)
                        self.driver.apply(e.RunReported, node=fake.name, phase=phase, state=state)
                        self._deliver()
                    del fake.runs[run.key]


ClusterLife.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    derandomize=True,
    deadline=None,
    report_multiple_bugs=False,
    phases=(Phase_.explicit, Phase_.generate, Phase_.shrink),
    suppress_health_check=list(HealthCheck),
)
TestClusterLife = ClusterLife.TestCase
