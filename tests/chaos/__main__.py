"""A chaos run from the command line. Its exit code is 0 where nothing was wrong."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.chaos import harvest
from tests.chaos.audit import Fate, Verdict, audit
from tests.chaos.disk import own_mounts
from tests.chaos.network import CLONE_NEWNET, unshare
from tests.chaos.plan import Decision, FaultKind, Options, decisions
from tests.chaos.world import World

_TICK_S = 0.05
_USUAL = ",".join(kind.value for kind in FaultKind if kind is not FaultKind.CLOCK)


def main() -> int:
    given = _parse()
    wanted = frozenset(FaultKind(word) for word in given.faults.split(",") if word)
    faults = _possible(wanted, given.faults == _USUAL)
    options = Options(given.nodes, faults, given.job_every, given.fault_every)
    print(
        f"seed {given.seed}, nodes {given.nodes}, faults {', '.join(sorted(kind.value for kind in faults))}", flush=True
    )
    for number in (signal.SIGTERM, signal.SIGINT):  # of whoever has had enough: all is ended and removed
        signal.signal(number, signal.default_int_handler)
    world = World(given.nodes, network=FaultKind.NETWORK in faults, disk=FaultKind.DISK in faults, say=_say)
    try:
        world.start()
        _play(world, decisions(given.seed, options), given)
        verdict = _come_to_rest(world, given.drain_within)
    except KeyboardInterrupt:
        world.close()
        return 130
    except BaseException:
        _keep_logs(world, given.keep)
        print(world.cluster.story(), flush=True)
        world.close()
        raise
    _keep_logs(world, given.keep)
    left = world.close()
    _report(world, verdict, left)
    return 0 if verdict.right and not left else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of all decisions")
    parser.add_argument("--minutes", type=float, default=1.0, help="of faults; the end takes its own time")
    parser.add_argument("--agent-kills", type=int, help="go on until so many agents were killed with -9, however long")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--faults", default=_USUAL, help=f"any of {_USUAL},clock; clock steps that of the machine")
    parser.add_argument("--job-every", type=float, default=2.0, metavar="S", help="seconds between jobs, on average")
    parser.add_argument("--fault-every", type=float, default=2.0, metavar="S", help="seconds between faults")
    parser.add_argument("--drain-within", type=float, default=180.0, metavar="S", help="for the queue, in the end")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where logs and traces are kept")
    return parser.parse_args()


def _possible(wanted: frozenset[FaultKind], usual: bool) -> frozenset[FaultKind]:
    """Without those that this machine does not allow, unless they were named."""
    impossible = set()
    for kind, prepare in ((FaultKind.DISK, own_mounts), (FaultKind.NETWORK, lambda: unshare(CLONE_NEWNET))):
        if kind in wanted:
            try:
                prepare()
            except OSError as error:
                if not usual:
                    raise SystemExit(f"{kind.value}: {error}") from None
                print(f"without {kind.value}: {error}", flush=True)
                impossible.add(kind)
    return wanted - impossible


def _say(text: str) -> None:
    print(text, flush=True)


def _play(world: World, plan: Iterator[Decision], given: argparse.Namespace) -> None:
    """Carry out decisions at their times until there were enough."""
    began = time.monotonic()
    for decision in plan:
        if _enough(world, decision.at_s, given):
            return
        while (left_s := began + decision.at_s - time.monotonic()) > 0:
            world.tick()
            time.sleep(min(left_s, _TICK_S))
        _say(f"{decision.at_s:8.2f}  {decision.action}")
        world.carry_out(decision.action)


def _enough(world: World, at_s: float, given: argparse.Namespace) -> bool:
    if given.agent_kills is not None:
        return world.agent_kills >= int(given.agent_kills)
    return at_s > 60 * float(given.minutes)


def _come_to_rest(world: World, within_s: float) -> Verdict:
    """Heal, wait, and judge. What does not come to rest is a finding like any other."""
    _say("healing")
    late = []
    try:
        world.heal()
        world.drain(within_s)
    except AssertionError as error:
        late.append(str(error))
    finally:
        world.janitor.stop()
    facts = harvest.gather(world)
    return audit(replace(facts, surprises=[*facts.surprises, *late]))


def _keep_logs(world: World, directory: Path | None) -> None:
    if directory is None:
        return
    directory.mkdir(parents=True, exist_ok=True)
    root = world.cluster.root
    for path in (*root.glob("*.log"), *root.glob("*/spurstepd.log")):
        shutil.copy(path, directory / str(path.relative_to(root)).replace(os.sep, "-"))
    shutil.copytree(world.traces, directory / "traces", dirs_exist_ok=True)
    _say(f"the logs are in {directory}")


def _report(world: World, verdict: Verdict, left: list[str]) -> None:
    for finding in verdict.findings:
        _say(str(finding))
    for text in left:
        _say(text)
    for (node, reason), count in sorted(world.janitor.drains.items()):
        _say(f"drained {node} ({count}): {reason}")
    for reason, count in sorted(world.janitor.releases.items()):
        _say(f"released jobs that were held for {reason}: {count}")
    for text, count in sorted(harvest.complaints(world).items()):
        _say(f"said {count} times: {text}")
    _say("")
    for what, count in sorted(world.injected.items()):
        _say(f"{count:6} {what}")
    _say(f"{world.injected.total():6} faults, {world.agent_kills} agents killed with -9")
    outcomes = ", ".join(f"{count} {state}" for state, count in verdict.outcomes.items())
    submitted = sum(one.submitted is not Fate.NONE for one in world.requests.jobs.values())
    _say(f"{submitted:6} jobs, {world.requests.requeues} requeued by us: {outcomes}")
    for fault, count in verdict.counts.items():
        if fault.wrong or count:
            _say(f"{count:6} {fault.value}")
    if left:
        _say(f"{len(left):6} left at the very end")


if __name__ == "__main__":
    sys.exit(main())
