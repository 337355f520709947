"""Kill -9 of a supervisor, or of it and its launcher, at every point of a run's life (R17, R50).

Afterwards the exit is exact, the hooks ran once or their interruption is recorded, and nothing is left. What needs the
agent and the controller as well is in tests/faults.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from spurstepd.launchplan import Hooks
from tests.patience import wait_for
from tests.spurstepd.conftest import Bench, RunHandle, exit_of

POINTS = [
    "locked", "prolog-recorded", "prolog-forked", "prolog-started", "prolog-ended", "prolog-done", "task-forked",
    "task-told", "task-recorded", "task-started", "task-executed", "task-exited", "exit-recorded", "exit-in-manifest",
    "leftovers-killed", "epilog-recorded", "epilog-forked", "epilog-started", "epilog-ended", "epilog-done", "released",
]  # fmt: skip
PROLOG_INTERRUPTED = {"prolog-recorded", "prolog-forked", "prolog-started", "prolog-ended"}
EPILOG_INTERRUPTED = {"epilog-recorded", "epilog-forked", "epilog-started", "epilog-ended"}


def hook(bench: Bench, name: str) -> tuple[str, Path]:
    """A program that says in a file that it ran."""
    trace = bench.output / f"{name}.ran"
    program = bench.output / name
    program.write_text(f"#!/bin/bash\necho ran >> {trace}\n")
    program.chmod(0o755)
    return str(program), trace


def times_run(trace: Path) -> int:
    return len(trace.read_text().splitlines()) if trace.exists() else 0


def run_with_hooks(bench: Bench) -> tuple[RunHandle, Path, Path]:
    prolog, prolog_trace = hook(bench, "prolog")
    epilog, epilog_trace = hook(bench, "epilog")
    script = f"#!/bin/bash\necho line >> {bench.output}/lines\nexit 7\n"
    return bench.make_run(script, hooks=Hooks(prolog=prolog, epilog=epilog)), prolog_trace, epilog_trace


def supervise_even_if_it_dies(bench: Bench, run: RunHandle) -> None:
    """The call of spurd, whose answer may be that the supervisor died; its launcher goes on by itself."""
    assert bench.launcher is not None
    bench.launcher.send("org.spur.Launcher.Supervise", job=run.run.job, attempt=run.run.attempt)
    bench.launcher.receive()


def check_end(bench: Bench, run: RunHandle, point: str, prologs: Path, epilogs: Path) -> None:
    state = run.finish()
    lines = Path(bench.output / "lines")
    if point in PROLOG_INTERRUPTED:
        assert exit_of(state) == ("never_started", None)
        assert not lines.exists()
        assert "prolog" in state["drain"]
        assert times_run(prologs) <= 1
        assert times_run(epilogs) == 1
        return
    assert state["exit"]["status"] == 7 << 8
    assert state["exit"]["source"] in ("waitid", "witness", "kernel")
    assert lines.read_text() == "line\n"
    assert times_run(prologs) == 1
    if point in EPILOG_INTERRUPTED:
        assert "epilog was interrupted" in state["drain"]
        assert times_run(epilogs) <= 1
    else:
        assert state["drain"] is None
        assert times_run(epilogs) == 1


@pytest.mark.parametrize("point", POINTS)
def test_supervisor_killed_at(bench: Bench, point: str) -> None:
    bench.start_launcher()
    run, prologs, epilogs = run_with_hooks(bench)
    bench.order(point, "kill")
    supervise_even_if_it_dies(bench, run)
    check_end(bench, run, point, prologs, epilogs)
    assert bench.events("supervisor_died"), f"nobody came by {point}"


def test_exit_is_exact_where_a_child_that_was_never_let_go_was_reaped_before(bench: Bench) -> None:
    """Two supervisors die, the first before its child was recorded: that one's end is not taken for the leader's."""
    bench.start_launcher()
    go = bench.output / "go"
    run = bench.make_run(f"#!/bin/bash\nwhile [ ! -e {go} ]; do sleep 0.02; done\nexit 7\n")
    bench.order("task-told", "kill")
    supervise_even_if_it_dies(bench, run)
    run.wait_phase("running")
    second = run.manifest().supervisor
    assert second is not None
    os.kill(second.pid, signal.SIGKILL)
    wait_for(lambda: run.manifest().supervisor != second, "a third supervisor", explain=bench.log_text)
    run.wait_phase("running")
    leader = run.manifest().leader
    assert leader is not None
    launcher = bench.launchers[0].pid
    os.kill(launcher, signal.SIGSTOP)  # so that the leader is seen dead before it is reaped
    go.touch()
    wait_for(lambda: "Z" in Path(f"/proc/{leader.pid}/stat").read_text().rpartition(")")[2], "it has ended")
    assert bench.events("exit_recorded") == []
    os.kill(launcher, signal.SIGCONT)
    state = run.finish()
    assert state["exit"]["status"] == 7 << 8
    assert state["exit"]["source"] in ("witness", "kernel")


@pytest.mark.parametrize("point", [p for p in POINTS if p != "released"])
def test_supervisor_and_launcher_killed_at(bench: Bench, point: str) -> None:
    """Nobody who could wait is left; the kernel's record, the slot or a pidfd of the agent's is."""
    first = bench.start_launcher()
    run, prologs, epilogs = run_with_hooks(bench)
    bench.order(point, "wait")
    first.send("org.spur.Launcher.Supervise", job=42, attempt=1)
    supervisor = bench.reached(point)
    kept = keep_leader(run)
    launcher = bench.launchers[0].pid
    os.kill(launcher, signal.SIGKILL)
    os.kill(supervisor, signal.SIGKILL)
    bench.launchers[0].wait()
    first.close()
    bench.start_launcher()
    assert bench.launcher is not None
    if kept is None:
        bench.supervise(run)
    else:
        bench.launcher.send("org.spur.Launcher.Supervise", job=42, attempt=1, leader_fd=0, fds=(kept,))
        assert "error" not in bench.launcher.receive()
        os.close(kept)
    check_end(bench, run, point, prologs, epilogs)


def keep_leader(run: RunHandle) -> int | None:
    """The pidfd that an agent keeps of a leader that it knows of."""
    leader = run.manifest().leader
    return None if leader is None or run.manifest().exit is not None else os.pidfd_open(leader.pid)
