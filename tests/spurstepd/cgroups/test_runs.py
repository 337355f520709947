"""What holds for a run wherever it lives."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spurstepd import cgroups
from spurstepd.cgroups import ContainmentError, RunCgroup, processes

from .places import DAEMON, PATIENCE_S, Places, await_empty, await_populated, first_line, until

SUCCESSOR = """
import sys
from spurstepd import cgroups
run = cgroups.reopen(sys.argv[1])
print(*run.pids())
run.kill_all()
"""


REJOIN = """
import sys
from spurstepd import cgroups
run = cgroups.rejoin(sys.argv[1])
print(run is not None, open("/proc/self/cgroup").read().split("0::")[1].split()[0])
"""


def test_daemons_that_detached_themselves_die_with_the_run(places: Places) -> None:
    run = places.create()
    leader = places.shell(run, f"{DAEMON} echo started; exec sleep 1002")
    assert first_line(leader) == "started"
    until(lambda: len(run.pids()) >= 3, "the daemon's processes")
    members = run.pids()
    run.kill_all()
    assert leader.wait() == -signal.SIGKILL
    await_empty(run)
    assert run.pids() == []
    assert not [pid for pid in members if pid != leader.pid and _is_alive(pid)]


def test_daemons_are_still_found_when_the_leader_has_ended(places: Places) -> None:
    run = places.create()
    leader = places.shell(run, f"{DAEMON} echo started")
    leader.wait()
    until(lambda: [left.name for left in run.left()] == ["sleep", "sleep"], "the two daemons")
    run.kill_all()
    await_empty(run)


def test_one_run_is_killed_and_its_neighbours_live(contained: Places) -> None:
    runs = [contained.create() for _ in range(8)]
    leaders = [contained.shell(run, "sleep 1000 & echo started; read go; echo alive; wait") for run in runs]
    assert [first_line(leader) for leader in leaders] == ["started"] * 8
    runs[3].kill_all()
    assert leaders[3].wait() == -signal.SIGKILL
    await_empty(runs[3])
    for number, leader in enumerate(leaders):
        if number != 3:
            assert leader.stdin is not None
            leader.stdin.write("go\n")
            leader.stdin.flush()
            assert first_line(leader) == "alive"
            assert runs[number].populated()


def test_one_leaf_is_killed_and_the_others_live(places: Places) -> None:
    run = places.create()
    batch = places.shell(run, "echo started; exec sleep 1000")
    step = places.shell(run, f"{DAEMON} echo started; exec sleep 1000", leaf="step_0")
    assert first_line(batch) == first_line(step) == "started"
    leaf = run.leaf("step_0")
    assert batch.pid not in leaf.pids()
    leaf.kill_all()
    leaf.close()
    assert step.wait() == -signal.SIGKILL
    until(lambda: run.pids() == [batch.pid], "only the batch step is left")


def test_signals_reach_all_members_and_nobody_else(contained: Places) -> None:
    run, other = contained.create(), contained.create()
    trap = "trap 'echo terminated; exit 9' TERM; echo started; while :; do sleep 0.01; done"
    first, second = contained.shell(run, trap), contained.shell(run, trap, leaf="step_0")
    bystander = contained.shell(other, "echo started; exec sleep 1000")
    assert {first_line(one) for one in (first, second, bystander)} == {"started"}
    assert run.signal(signal.SIGTERM) >= 2
    assert [first_line(first), first_line(second)] == ["terminated", "terminated"]
    assert [first.wait(), second.wait()] == [9, 9]
    assert bystander.poll() is None


def test_a_frozen_run_stands_still_and_goes_on_when_thawed(places: Places) -> None:
    run = places.create()
    ticking = places.shell(run, "while :; do echo tick; sleep 0.001; done")
    assert first_line(ticking) == "tick"
    run.freeze()
    until(lambda: _is_frozen(run), "all stopped")
    assert ticking.stdout is not None
    pipe = ticking.stdout.fileno()
    os.set_blocking(pipe, False)
    while select.select([pipe], [], [], 0)[0]:
        os.read(pipe, 65536)
    assert select.select([pipe], [], [], 0.1)[0] == []
    run.thaw()
    assert select.select([pipe], [], [], PATIENCE_S)[0] == [pipe]


def test_a_frozen_run_can_be_killed_and_its_epilog_runs(places: Places) -> None:
    run = places.create()
    leader = places.shell(run, f"trap '' TERM; {DAEMON} echo started; sleep 1000; sleep 1000")
    assert first_line(leader) == "started"
    run.freeze()
    run.signal(signal.SIGTERM)
    run.kill_all()
    assert leader.wait() == -signal.SIGKILL
    await_empty(run)
    epilog = places.shell(run, "sleep 0 & wait; sh -c 'echo cleaned'", leaf="epilog")
    assert first_line(epilog) == "cleaned"
    assert epilog.wait() == 0


def test_a_run_that_stopped_itself_can_be_killed(places: Places) -> None:
    run = places.create()
    leader = places.shell(run, "echo started; kill -STOP $$")
    assert first_line(leader) == "started"
    until(lambda: _states([leader.pid]) == {"T"}, "stopped")
    run.kill_all()
    assert leader.wait() == -signal.SIGKILL


def test_a_successor_finds_what_was_recorded_and_kills_it(places: Places) -> None:
    run = places.create()
    leader = places.shell(run, f"{DAEMON} echo started; exec sleep 1002")
    assert first_line(leader) == "started"
    until(lambda: len(run.pids()) >= 3, "the daemon's processes")
    members = run.pids()
    answer = subprocess.run([sys.executable, "-c", SUCCESSOR, run.recorded], stdout=subprocess.PIPE, check=True)
    assert {int(pid) for pid in answer.stdout.split()} == set(members)
    assert leader.wait() == -signal.SIGKILL
    await_empty(run)


def test_an_empty_run_can_be_asked_anything(places: Places) -> None:
    run = places.create()
    assert run.pids() == []
    assert run.populated() is False
    assert run.oom_kills() == 0
    assert run.left() == []
    assert run.signal(signal.SIGTERM) == 0
    run.kill_all()
    run.freeze()
    run.thaw()
    assert run.usage().user_cpu_s == pytest.approx(0, abs=0.01)
    assert run.remove()


def test_a_run_says_what_it_could_not_limit(places: Places) -> None:
    wanted = cgroups.Limits(cpus=(0,), memory_bytes=1 << 30, pids_max=100)
    run = places.create(wanted)
    missing = [name for name in ("cpuset", "memory", "pids") if not places.hierarchy.limits(name)]
    assert len(run.unmet) == len(missing)
    assert all(any(name in line for line in run.unmet) for name in missing)


def test_a_record_of_no_kind_is_refused() -> None:
    for recorded in ("", "cookie:", "cookie:a", "relative/path", "/a/b memory", "/a/b memory=c"):
        with pytest.raises(ContainmentError):
            cgroups.reopen(recorded)


def test_populated_is_told_by_an_event_or_by_asking(places: Places) -> None:
    run = places.create()
    leader = places.shell(run, "read go")
    await_populated(run, True)
    leader.communicate("go\n")
    await_populated(run, False)


def _is_alive(pid: int) -> bool:
    return not _states([pid]) <= {"Z"}


def _states(pids: list[int]) -> set[str]:
    return {left.state for left in processes.describe(pids)}


def _is_frozen(run: RunCgroup) -> bool:
    directory = run.recorded.split(" ")[0]
    if directory.startswith("/"):
        return "frozen 1" in Path(directory, "cgroup.events").read_text()
    return _states(run.pids()) == {"T"}


def test_a_successor_moves_beside_the_run_that_it_finds_and_is_told_of_one_that_is_gone(contained: Places) -> None:
    """R26, R15: after a reboot, or when systemd has removed the scope, the epilog needs a place of its own."""
    run = contained.create()
    node = Path(run.recorded.split(" ")[0]).parent
    found, own = _rejoin(run)
    assert found == "True"
    assert own.endswith(f"/{node.name}/supervisors")
    assert run.remove(PATIENCE_S)
    assert _rejoin(run)[0] == "False"


def _rejoin(run: RunCgroup) -> list[str]:
    done = subprocess.run([sys.executable, "-c", REJOIN, run.recorded], capture_output=True, text=True, check=True)
    return done.stdout.split()
