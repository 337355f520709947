"""The cluster that a chaos run is about, and everything that is done to it.

It lives on one machine: a controller, a few agents, each in a network namespace of its own where that can be had, the
disks of the controller and of the first agent so small that they can be filled. Whatever is broken here is mended
here, after its time or by `heal`.
"""

from __future__ import annotations

import heapq
import itertools
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, assert_never

from tests.chaos import processes
from tests.chaos.audit import Death, Silence
from tests.chaos.disk import SmallDisk
from tests.chaos.janitor import Janitor
from tests.chaos.jobs import SHORT_LIMIT_S
from tests.chaos.keeper import Keeper
from tests.chaos.network import CONTROLLER, Network
from tests.chaos.plan import (
    AGENT_POINTS,
    LAUNCHER_POINTS,
    Action,
    Cancel,
    CutLink,
    Fill,
    Kill,
    Order,
    Requeue,
    StepClock,
    Stop,
    Submit,
    Victim,
)
from tests.chaos.processes import Held
from tests.chaos.requests import Requests
from tests.cluster import USER, Agent, Cluster
from tests.patience import wait_for

HEARTBEAT_TIMEOUT_S = 10.0
CPUS = 8
_LAUNCHER_LEAVES_S = 75.0  # one whose agent died before it said Attach waits for a minute

_CONFIG: dict[str, Any] = {
    "controller": {"heartbeat_timeout_secs": HEARTBEAT_TIMEOUT_S, "agent_timeout_secs": 3, "missing_run_grace_secs": 5},
    "agent": {"heartbeat_interval_secs": 0.5, "supervisor_timeout_secs": 4},
    "scheduler": {"interval_secs": 0.2, "min_job_age_secs": 30 * 86400},
    "job": {"kill_wait_secs": 1, "unkillable_secs": 15},
    "limits": {"max_jobs": 1_000_000},
    "partitions": [
        {"name": "main", "nodes": "ALL", "default": True},
        {"name": "brief", "nodes": "ALL", "default_time": f"0:{SHORT_LIMIT_S:02}"},
    ],
}

_HOOK = """#!/bin/sh
run=$(sed -n 's!^0::.*/\\([0-9]*\\.[0-9]*\\)/{name}.*$!\\1!p' /proc/self/cgroup)
[ -n "$run" ] || {{ run=$(readlink /proc/$$/fd/1); run=${{run%/*}}; run=${{run##*/}}; }}
trace() {{ read -r up rest < /proc/uptime; echo "$1 $run $SLURMD_NODENAME $up" >> {traces}/{name}.$SLURM_JOB_ID; }}
trace begin
sleep 0.1
trace end
"""


class Spread(Cluster):
    """A cluster whose agents have networks of their own."""

    def __init__(self, network: Network, **options: Any) -> None:
        self._network = network
        super().__init__(start=False, **options)
        self._addresses["spurctld"] = f"{CONTROLLER}:6817"
        for name in self.agents:
            self._addresses[name] = f"{network.address(number_of(name))}:6818"

    def _agent_command(self, agent: Agent) -> list[str]:
        return [*self._network.command(number_of(agent.name)), *super()._agent_command(agent)]


def number_of(name: str) -> int:
    return int(name.removeprefix("n"))


def boottime_s() -> float:
    """The clock of the traces."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class World:
    """Owns the cluster. `tick` has to be called often: it mends what is due and starts who is missing."""

    def __init__(self, nodes: int, *, network: bool, disk: bool, say: Callable[[str], None]) -> None:
        self._say = say
        root = Path(f"/tmp/spur-chaos-{os.getpid()}")
        self.network = Network(nodes) if network else None
        self.cluster = self._make_cluster(root, nodes)
        self.traces = self.cluster.work / "traces"
        self._write_hooks()
        places = {Victim.AGENT: root / "n1", Victim.CONTROLLER: root / "spurctld"} if disk else {}
        self.disks = {victim: SmallDisk(where) for victim, where in places.items()}
        self.requests = Requests(self.cluster.as_user(USER), self.traces)
        self.janitor = Janitor(self.cluster)
        self.keeper = Keeper(self.cluster, say)
        self.injected: Counter[str] = Counter()
        self.agent_kills = 0
        self.silences: list[Silence] = []
        self.deaths: list[Death] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._stopped: list[Held] = []
        self._orders: dict[str, Order] = {}  # nobody came by yet
        self._owed_murders = 0  # of agents, by order
        self._clock_offset_s = time.time() - time.monotonic()

    def _make_cluster(self, root: Path, nodes: int) -> Cluster:
        config = {**_CONFIG, "hooks": {name: str(root / name) for name in ("prolog", "epilog")}}
        declared = {f"n{number}": {"cpus": CPUS} for number in range(1, nodes + 1)}
        if self.network is None:
            return Cluster(root, nodes=declared, config=config, start=False)
        return Spread(self.network, root=root, nodes=declared, config=config)

    def _write_hooks(self) -> None:
        self.traces.mkdir()
        self.traces.chmod(0o1777)
        for name in ("prolog", "epilog"):
            program = self.cluster.root / name
            program.write_text(_HOOK.format(name=name, traces=self.traces))
            program.chmod(0o755)

    def start(self) -> None:
        self.cluster.start()
        self.janitor.start()

    # -- time

    def tick(self) -> None:
        """Mend what is due, start again who is down, see who came by a fault point."""
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()
        self._see_orders()
        self.agent_kills += self.keeper.look_after(self._murdered)

    def _after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, self.injected.total(), what))

    def _silent(self, node: int, for_s: float) -> None:
        """It may be given up from a while after the begin until a while after the end of that."""
        now = boottime_s()
        self.silences.append(Silence(f"n{node}", now, now + for_s + 2 * HEARTBEAT_TIMEOUT_S))

    # -- what is done to it

    def carry_out(self, action: Action) -> None:
        match action:
            case Submit(job):
                self.requests.submit(job)
            case Cancel(index):
                self.requests.cancel(index)
            case Requeue(index):
                self.requests.requeue(index)
            case Kill():
                self._kill(action)
            case Stop():
                self._stop(action)
            case Order():
                self._order(action)
            case Fill():
                self._fill(action)
            case CutLink():
                self._cut(action)
            case StepClock():
                self._step_clock(action)
            case _:
                assert_never(action)

    def _agent(self, node: int) -> Agent:
        return self.cluster.agents[f"n{node}"]

    def _kill(self, kill: Kill) -> None:
        """All at once, as far as that goes: stopped first, so that none acts on the death of another."""
        chosen = self._choose(kill.node, kill.victims, kill.pick)
        if kill.politely:
            killed = [one for one in chosen if one[1].send(signal.SIGTERM)]
        else:
            for _, held in chosen:
                held.send(signal.SIGSTOP)
            killed = [one for one in chosen if one[1].send(signal.SIGKILL)]
        for victim, held in killed:
            self._note_death(kill, victim)
            held.let_go()
        how = "end" if kill.politely else "kill"
        self.injected[f"{how} {'+'.join(victim.value for victim, _ in killed) or 'nobody'}"] += 1
        self._say(f"    {how}: {', '.join(str(held) for _, held in killed) or 'nobody there'}")

    def _note_death(self, kill: Kill, victim: Victim) -> None:
        if victim is Victim.CONTROLLER:
            self.keeper.ended(self.cluster.controller, kill.down_s, kill.politely)
            return
        self.deaths.append(Death(f"n{kill.node}", victim.value, boottime_s()))
        if victim is Victim.AGENT:
            self.agent_kills += not kill.politely
            self.keeper.ended(self._agent(kill.node), kill.down_s, kill.politely)
            self._silent(kill.node, kill.down_s)

    def _choose(self, node: int, victims: tuple[Victim, ...], pick: float) -> list[tuple[Victim, Held]]:
        """Those that live. A launcher that is to die with a supervisor is the supervisor's own."""
        agent, chosen = self._agent(node), dict[Victim, Held]()
        if Victim.SUPERVISOR in victims:
            chosen |= _one(Victim.SUPERVISOR, processes.supervisors(agent), pick)
        if Victim.LAUNCHER in victims:
            chosen |= _one(Victim.LAUNCHER, self._launchers_over(agent, chosen.get(Victim.SUPERVISOR)), pick)
        if Victim.AGENT in victims:
            chosen |= _one(Victim.AGENT, self._running(agent.name), pick)
        if Victim.CONTROLLER in victims:
            chosen |= _one(Victim.CONTROLLER, self._running("spurctld"), pick)
        return list(chosen.items())

    def _launchers_over(self, agent: Agent, supervisor: Held | None) -> list[Held]:
        found = processes.launchers(agent)
        own = [one for one in found if supervisor is not None and one.pid == processes.parent(supervisor.pid)]
        return own or found

    def _running(self, name: str) -> list[Held]:
        daemon = self.cluster.controller if name == "spurctld" else self.cluster.agents[name]
        if not daemon.running or self.keeper.is_dying(daemon):
            return []
        held = processes.hold(daemon.pid, str(self.cluster.conf))
        return [] if held is None else [replace(held, title=f"{'' if name == 'spurctld' else 'spurd of '}{name}")]

    def _stop(self, stop: Stop) -> None:
        for victim, held in self._choose(stop.node, (stop.victim,), stop.pick):
            held.send(signal.SIGSTOP)
            self._stopped.append(held)
            self._after(stop.for_s, lambda held=held: self._go_on(held))  # type: ignore[misc]
            self.injected[f"stop {victim.value}"] += 1
            self._say(f"    stop: {held}")
        if stop.victim is Victim.AGENT:
            self._silent(stop.node, stop.for_s)
        elif stop.victim is Victim.CONTROLLER:
            for node in range(1, len(self.cluster.agents) + 1):
                self._silent(node, stop.for_s)

    def _go_on(self, held: Held) -> None:
        if held in self._stopped:
            self._stopped.remove(held)
            held.send(signal.SIGCONT)
            held.let_go()

    def _order(self, order: Order) -> None:
        self.cluster.faults.order(order.point, order.order)
        self._orders[order.point] = order
        self._owed_murders += order.order == "kill" and order.point in AGENT_POINTS

    def _see_orders(self) -> None:
        """Whoever it was: from now on it may be missing on any node."""
        for point in [point for point in self._orders if self.cluster.faults.taken(point)]:
            order = self._orders.pop(point)
            self.injected[f"{order.order.split()[0]} at a point"] += 1
            self._say(f"    at {point}: {order.order}")
            if order.order == "kill" and point not in AGENT_POINTS:
                victim = "launcher" if point in LAUNCHER_POINTS else "supervisor"
                self.deaths += [Death(name, victim, boottime_s()) for name in self.cluster.agents]

    def _murdered(self, agent: Agent) -> bool:
        """Whether a kill -9 of this agent that we did not send ourselves may have been one of our orders."""
        if not self._owed_murders:
            return False
        self._owed_murders -= 1
        self.deaths.append(Death(agent.name, Victim.AGENT.value, boottime_s()))
        self._silent(number_of(agent.name), 2.0)
        return True

    def _fill(self, fill: Fill) -> None:
        disk = self.disks[fill.victim]
        disk.fill(fill.leave_bytes)
        self._after(fill.for_s, disk.free)
        self.injected[f"fill the disk of {fill.victim.value}"] += 1

    def _cut(self, cut: CutLink) -> None:
        assert self.network is not None
        self.network.cut(cut.node, cut.cut)
        self._after(cut.for_s, lambda: self.network.heal(cut.node))  # type: ignore[union-attr]
        self._silent(cut.node, cut.for_s + HEARTBEAT_TIMEOUT_S)
        self.injected[f"cut: {cut.cut.value}"] += 1

    def _step_clock(self, step: StepClock) -> None:
        time.clock_settime(time.CLOCK_REALTIME, time.time() + step.by_s)
        self._after(step.for_s, self._set_clock_right)
        self.injected["step the clock"] += 1

    def _set_clock_right(self) -> None:
        time.clock_settime(time.CLOCK_REALTIME, time.monotonic() + self._clock_offset_s)

    # -- the end

    def heal(self) -> None:
        """Nothing is broken any more, and everybody is back."""
        self.requests.shut()
        for point in self._orders:
            self.cluster.faults.withdraw(point)
        for held in list(self._stopped):
            self._go_on(held)
        while self._timers:
            heapq.heappop(self._timers)[2]()
        self.keeper.hurry()
        wait_for(self._all_back, "all daemons are back", within_s=90, explain=self.cluster.story)

    def _all_back(self) -> bool:
        self.tick()
        return all(agent.running and agent.events("registered") for agent in self.cluster.agents.values())

    def drain(self, within_s: float) -> None:
        """Wait until no job is left in the queue and no run on any node. AssertionError: some are."""
        self.requests.cancel_endless()
        self.requests.settle(within_s)
        wait_for(self._is_empty, "the queue is empty", within_s=within_s, explain=self._queue, pause_s=1.0)
        self.janitor.stop()
        wait_for(self._launchers_left, "old launchers have left", within_s=_LAUNCHER_LEAVES_S, pause_s=0.5)

    def _launchers_left(self) -> bool:
        found = [processes.launchers(agent) for agent in self.cluster.agents.values()]
        for held in itertools.chain(*found):
            held.let_go()
        return all(len(launchers) == 1 for launchers in found)

    def _is_empty(self) -> bool:
        self.tick()
        return not self._queue() and not any(agent.runs for agent in self.cluster.agents.values())

    def _queue(self) -> str:
        return self.cluster.run("squeue", "-h", "-o", "%i %j %T %M %N %r", check=True).stdout

    def close(self) -> list[str]:
        """End everything; what was left."""
        self.janitor.stop()
        left = self.cluster.close().splitlines()
        for disk in self.disks.values():
            disk.unmount()
        if self.network is not None:
            self.network.close()
        shutil.rmtree(self.cluster.root, ignore_errors=True)
        return left


def _one(victim: Victim, among: list[Held], pick: float) -> dict[Victim, Held]:
    """One of them, the others let go."""
    if not among:
        return {}
    chosen = among[int(pick * len(among))]
    for other in among:
        if other is not chosen:
            other.let_go()
    return {victim: chosen}
