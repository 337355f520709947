"""Processes that do not die: said by pid and wait channel, for as long as they are there.

A process in a frozen cgroup of version 1 is one: SIGKILL waits for its thaw. Machines without such a freezer skip this.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import wait_for
from tests.spurstepd.conftest import Bench, exit_of


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A cgroup of version 1 whose members can be made unkillable."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    tops = [Path(m[1]) for m in mounts if m[2] == "cgroup" and "freezer" in m[3].split(",")]
    if not tops:
        pytest.skip("no freezer of cgroup version 1 on this machine")
    place = tops[0] / f"unkillable-{os.urandom(4).hex()}"
    place.mkdir()
    yield place
    (place / "freezer.state").write_text("THAWED")
    wait_for(lambda: not (place / "cgroup.procs").read_text(), "what was frozen has gone")
    place.rmdir()


def test_what_does_not_die_drains_the_node_and_holds_its_claim_until_it_has_died(bench: Bench, freezer: Path) -> None:
    bench.start_launcher()
    run = bench.start("#!/bin/bash\nsleep 1000 &\nexec sleep 1000\n", kill_wait_s=0.1, unkillable_s=0.3)
    leader = run.wait_phase("running")["leader"]["pid"]
    child = wait_for(lambda: [pid for pid in run.call("ListPids")["pids"] if pid != leader] or None, "the child")[0]
    (freezer / "cgroup.procs").write_text(str(child))
    (freezer / "freezer.state").write_text("FROZEN")
    run.call("Terminate", kind="cancelled")
    state = wait_for(lambda: (s := run.state()) and s["drain"] and s, "a complaint", explain=bench.log_text)
    assert state["drain"].startswith(f"job 42: unkillable: {child} (")
    assert state["waiting_for"].startswith(f"unkillable: {child} ")
    assert state["phase"] == "ended"
    (freezer / "freezer.state").write_text("THAWED")
    state = run.finish()
    assert exit_of(state) == ("waitid", signal.SIGTERM)
    assert state["drain"] is None


def test_a_complaint_of_a_predecessor_is_taken_back_once_nothing_is_left(bench: Bench, freezer: Path) -> None:
    bench.start_launcher()
    run = bench.start("#!/bin/bash\nexec sleep 1000\n", kill_wait_s=0.1, unkillable_s=0.3)
    leader = run.wait_phase("running")["leader"]["pid"]
    (freezer / "cgroup.procs").write_text(str(leader))
    (freezer / "freezer.state").write_text("FROZEN")
    run.call("Terminate", kind="cancelled")
    wait_for(lambda: run.manifest().drain, "a complaint", explain=bench.log_text)
    first = run.manifest().supervisor
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    wait_for(lambda: run.manifest().supervisor != first, "a successor", explain=bench.log_text)
    (freezer / "freezer.state").write_text("THAWED")
    assert run.finish()["drain"] is None
