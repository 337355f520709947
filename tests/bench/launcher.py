"""What the launcher does by itself: launches per second, and memory per supervisor.

    python -m tests.bench.launcher [--against CHECKOUT] [--rounds N] [--runs N] [--held N] [--callers N]

Prints medians. With another checkout of this project, the same is measured of both in turn, since the speed of a
machine drifts, with the ratio of the medians: above 1.00x, this version is better. Nothing else should run meanwhile;
CPU time per run is the figure that suffers least if something does. Run it as root.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from spurstepd.ids import RunId
from tests.bench.node import NOTHING, SLEEPER, Node, Version, memory_of
from tests.spurstepd.conftest import Peer


@dataclass(frozen=True)
class Figure:
    name: str
    unit: str
    more_is_better: bool
    meaning: str


FIGURES = (
    Figure("supervised", "1/s", True, "supervisors started, directories there already, one call at a time"),
    Figure("launched", "1/s", True, "directory made durable and supervisor started, by all callers at once"),
    Figure("run_through", "1/s", True, "the same, an empty script run to its exit, acknowledged and released"),
    Figure("latency_p50", "ms", False, "from the call to the lock held and the socket open, one at a time"),
    Figure("latency_p99", "ms", False, "the same, of one call in a hundred"),
    Figure("cpu", "ms", False, "CPU time per run through, of launcher, supervisor and task"),
    Figure("pss", "KiB", False, "memory per supervisor with a live task, shared pages by share"),
    Figure("uss", "KiB", False, "memory per supervisor with a live task, its own alone"),
    Figure("rss", "KiB", False, "memory per supervisor with a live task, shared pages counted in full"),
    Figure("launcher_pss", "KiB", False, "memory of the launcher while it has them"),
)


@dataclass
class Bench:
    """One version under measurement. `got`: what each round gave."""

    version: Version
    options: argparse.Namespace
    got: dict[str, list[float]] = field(default_factory=dict)

    def note(self, name: str, value: float) -> None:
        self.got.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        return float(statistics.median(self.got[name]))

    @contextmanager
    def node(self) -> Iterator[Node]:
        with tempfile.TemporaryDirectory(prefix="spur-bench-", dir=self.options.dir) as path:
            os.chmod(path, 0o711)
            node = Node(self.version, Path(path) / "node", self.options.cgroup)
            try:
                yield node
            finally:
                node.close()

    def round(self) -> None:
        """All figures once."""
        with self.node() as node:
            self.supervise(node)
        with self.node() as node:
            self.launch(node)
        with self.node() as node:
            self.run_through(node)

    def supervise(self, node: Node) -> None:
        """Supervisors for directories that are there, and what they weigh."""
        runs = [node.make(SLEEPER) for _ in range(self.options.held)]
        peer = node.connect()
        latencies, pids = [], []
        start = time.perf_counter()
        for run in runs:
            begin = time.perf_counter()
            pids.append(node.supervise(peer, run))
            latencies.append((time.perf_counter() - begin) * 1e3)
        self.note("supervised", len(runs) / (time.perf_counter() - start))
        peer.close()
        self.note("latency_p50", statistics.median(latencies))
        self.note("latency_p99", sorted(latencies)[(len(latencies) * 99) // 100])
        for run in runs:
            node.wait_phase(run, "running")
        self.weigh(node, pids)
        self.end(node, dict(zip(runs, pids, strict=True)))

    def weigh(self, node: Node, pids: list[int]) -> None:
        weights = [memory_of(pid) for pid in pids]
        self.note("pss", statistics.median(one.pss for one in weights))
        self.note("uss", statistics.median(one.uss for one in weights))
        self.note("rss", statistics.median(one.rss for one in weights))
        self.note("launcher_pss", memory_of(node.launcher_pid).pss)

    def launch(self, node: Node) -> None:
        """As an agent launches: a durable directory first, several at once."""
        started: dict[RunId, int] = {}

        def one(peer: Peer) -> None:
            run = node.make(SLEEPER)
            started[run] = node.supervise(peer, run)

        self.note("launched", self.rate(node, one))
        self.end(node, started)

    def run_through(self, node: Node) -> None:
        def one(peer: Peer) -> None:
            run = node.make(NOTHING)
            node.finish(run, node.supervise(peer, run))

        before = node.cpu_s()
        self.note("run_through", self.rate(node, one))
        self.note("cpu", (node.cpu_s() - before) / self.options.runs * 1e3)

    def rate(self, node: Node, one: Callable[[Peer], None]) -> float:
        """How often per second all callers together get `one` done, each on a connection of its own."""
        peers = [node.connect() for _ in range(self.options.callers)]

        def share(number: int) -> None:
            for _ in range(number, self.options.runs, len(peers)):
                one(peers[number])

        with ThreadPoolExecutor(len(peers)) as pool:
            start = time.perf_counter()
            list(pool.map(share, range(len(peers))))
            took = time.perf_counter() - start
        for peer in peers:
            peer.close()
        return float(self.options.runs) / took

    def end(self, node: Node, started: dict[RunId, int]) -> None:
        for run in started:
            node.terminate(run)
        for run, pid in started.items():
            node.finish(run, pid)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another version of this project")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=200, help="launches in a round")
    parser.add_argument("--held", type=int, default=100, help="supervisors that are alive together when weighed")
    parser.add_argument("--callers", type=int, default=4, help="callers at once")
    parser.add_argument("--cgroup", choices=("auto", "none"), default="auto")
    parser.add_argument("--dir", type=Path, help="where the directories are made: the disk matters")
    options = parser.parse_args()
    benches = [Bench(Version("this"), options)]
    if options.against is not None:
        benches.append(Bench(Version("other", options.against.resolve()), options))
    for _ in range(options.rounds):
        for bench in benches:
            bench.round()
    report(benches, options)


def report(benches: list[Bench], options: argparse.Namespace) -> None:
    heads = [bench.version.name for bench in benches]
    load = os.getloadavg()[0]
    print(f"{options.rounds} rounds, {options.runs} launches, {options.held} held, {options.callers} callers, "
          f"cgroup {options.cgroup}, {os.cpu_count()} CPUs, load {load:.1f}")  # fmt: skip
    print(f"{'median':14}" + "".join(f"{head:>12}" for head in heads) + ("     ratio" if len(heads) > 1 else ""))
    for figure in FIGURES:
        medians = [bench.median(figure.name) for bench in benches]
        line = f"{figure.name:14}" + "".join(f"{median:12.4g}" for median in medians)
        if len(medians) > 1:
            ratio = medians[0] / medians[1] if figure.more_is_better else medians[1] / medians[0]
            line += f"{ratio:9.2f}x"
        spread = f"{min(benches[0].got[figure.name]):.4g} to {max(benches[0].got[figure.name]):.4g}"
        print(f"{line}  {figure.unit:4} {spread:>20}   {figure.meaning}")


if __name__ == "__main__":
    main()
