"""What cgroups of either version give a run. Runs on any machine; what it lacks is skipped, aloud."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spurstepd import cgroups
from spurstepd.cgroups import ContainmentError, DeviceNumber, Hierarchy, Kind, Limits, RunCgroup, tree
from spurstepd.ids import RunId

from .places import (
    DAEMON,
    EAT_MEMORY,
    FORK_BOMB,
    PATIENCE_S,
    Places,
    await_empty,
    await_populated,
    first_line,
    until,
)

MIB = 1 << 20


def directory_of(run: RunCgroup) -> str:
    return run.recorded.split(" ")[0]


def test_a_child_is_in_its_leaf_in_every_hierarchy_before_its_first_instruction(contained: Places) -> None:
    run = contained.create(Limits(memory_bytes=512 * MIB, pids_max=100))
    lines = contained.start(run, "/bin/cat", "/proc/self/cgroup").communicate()[0].splitlines()
    ours = [line for line in lines if "/1.1" in line]
    assert len(ours) == len(run.recorded.split(" "))
    assert any(line.startswith("0::") and line.endswith("/1.1/batch") for line in ours)


def test_a_leaf_that_vanished_keeps_its_child_from_running(contained: Places) -> None:
    run = contained.create()
    leaf = run.leaf("batch")
    assert run.remove()
    with pytest.raises(OSError, match=r"1\.1/batch/cgroup\.procs") as refused:
        leaf.enter()
    assert refused.value.errno == errno.ENODEV
    leaf.close()


@pytest.mark.parametrize("kill", [tree.kill, tree.kill_one_by_one])
def test_a_fork_bomb_stays_inside_and_dies(contained: Places, kill: Callable[[str], None]) -> None:
    contained.need("pids")
    run = contained.create(Limits(pids_max=40))
    bomb = contained.python(run, FORK_BOMB)
    until(lambda: len(run.pids()) >= 40, "the bomb has filled its run")
    kill(directory_of(run))
    await_populated(run, False)
    assert bomb.wait() == -signal.SIGKILL


def test_a_frozen_run_dies_of_the_kill_without_cgroup_kill(contained: Places) -> None:
    run = contained.create()
    leader = contained.shell(run, f"{DAEMON} echo started; exec sleep 1000")
    assert first_line(leader) == "started"
    run.freeze()
    until(lambda: "frozen 1" in Path(directory_of(run), "cgroup.events").read_text(), "frozen")
    tree.kill_one_by_one(directory_of(run))
    await_populated(run, False)


def test_a_job_that_eats_memory_is_killed_and_counted_and_its_neighbour_lives(contained: Places) -> None:
    contained.need("memory")
    run, other = contained.create(Limits(memory_bytes=64 * MIB)), contained.create(Limits(memory_bytes=64 * MIB))
    neighbour = contained.shell(other, "echo started; read go; echo alive")
    assert first_line(neighbour) == "started"
    eater = contained.python(run, EAT_MEMORY.format(bytes=200 * MIB))
    assert eater.communicate()[0] == ""
    assert eater.returncode == -signal.SIGKILL
    assert (run.oom_kills(), other.oom_kills()) == (1, 0)
    assert neighbour.communicate("go\n")[0] == "alive\n"
    peak = run.usage().peak_memory_bytes
    assert peak is None or 60 * MIB < peak <= 64 * MIB


def test_a_kill_for_memory_is_counted_though_the_script_went_on_and_exited_0(contained: Places) -> None:
    contained.need("memory")
    run = contained.create(Limits(memory_bytes=64 * MIB))
    eat = f'{sys.executable} -S -E -c "{EAT_MEMORY.format(bytes=200 * MIB)}"'
    script = contained.shell(run, f"{eat}; echo went on; exit 0")
    assert script.communicate()[0] == "went on\n"
    assert script.returncode == 0
    assert run.oom_kills() == 1
    assert cgroups.reopen(run.recorded).oom_kills() == 1


def test_with_oom_group_the_whole_run_dies_at_once(contained: Places) -> None:
    if "memory" not in contained.hierarchy.controllers:
        pytest.skip(f"{contained.hierarchy.kind.value}: memory.oom.group is a file of the v2 memory controller")
    run = contained.create(Limits(memory_bytes=64 * MIB, oom_group=True))
    sleeper = contained.shell(run, "echo started; sleep 1000; true", leaf="step_0")
    assert first_line(sleeper) == "started"
    contained.python(run, EAT_MEMORY.format(bytes=200 * MIB))
    assert sleeper.wait() == -signal.SIGKILL
    await_populated(run, False)
    assert run.oom_kills() >= 2


def test_no_run_gets_less_memory_than_a_shell_needs(contained: Places) -> None:
    contained.need("memory")
    run = contained.create(Limits(memory_bytes=1))
    assert contained.shell(run, "echo fine").communicate()[0] == "fine\n"
    assert run.unmet == ()


def test_a_run_is_kept_on_its_cpus(contained: Places) -> None:
    contained.need("cpuset")
    last = max(os.sched_getaffinity(0))
    run = contained.create(Limits(cpus=(last,)))
    assert (run.unmet, run.confines_cpus) == ((), True)
    widen = f"import os; os.sched_setaffinity(0, range(1024)); print(*os.sched_getaffinity(0), *{{{last}}})"
    assert contained.python(run, widen).communicate()[0] == f"{last} {last}\n"
    assert cgroups.reopen(run.recorded).confines_cpus


def test_cpus_that_are_not_there_are_said_and_the_run_can_still_live(contained: Places) -> None:
    contained.need("cpuset")
    run = contained.create(Limits(cpus=(8000,)))
    assert len(run.unmet) == 1
    assert "8000" in run.unmet[0]
    assert contained.shell(run, "echo fine").communicate()[0] == "fine\n"


def test_a_denied_device_cannot_be_opened_and_others_can(contained: Places) -> None:
    if not contained.hierarchy.denies_devices:
        pytest.skip("devices cannot be denied here")
    full = cgroups.device_number("/dev/full")
    assert full == DeviceNumber("c", 1, 7)
    run = contained.create(Limits(denied_devices=(full,)))
    assert run.unmet == ()
    script = contained.shell(run, "(: </dev/full) 2>/dev/null || echo denied; : </dev/null && echo allowed")
    assert script.communicate()[0] == "denied\nallowed\n"


def test_usage_counts_the_dead_too_and_a_successor_reads_the_same(contained: Places) -> None:
    run = contained.create()
    burn = "import os, time\npid = os.fork()\nwhile time.process_time() < 0.3: pass\nif pid: os.wait()"
    assert contained.python(run, burn).wait() == 0
    await_populated(run, False)
    used = run.usage()
    assert used.user_cpu_s is not None
    assert used.system_cpu_s is not None
    assert 0.5 < used.user_cpu_s + used.system_cpu_s < 5
    again = cgroups.reopen(run.recorded).usage()
    assert (again.user_cpu_s, again.system_cpu_s) == (used.user_cpu_s, used.system_cpu_s)
    if contained.hierarchy.limits("memory"):
        assert used.memory_bytes is not None


def test_events_tell_that_a_run_is_populated_and_empty_and_nothing_else(contained: Places) -> None:
    run = contained.create()
    events = run.events_fd()
    assert events is not None
    waiting = select.poll()
    waiting.register(events, select.POLLIN)
    assert run.populated() is False
    assert waiting.poll(0) == []
    leader = contained.shell(run, "read go")
    await_populated(run, True)
    assert waiting.poll(0) == []
    leader.communicate("go\n")
    assert waiting.poll(PATIENCE_S * 1000) != []
    assert run.populated() is False
    assert waiting.poll(0) == []


def test_removing_leaves_nothing_in_any_hierarchy(contained: Places) -> None:
    run = contained.create(Limits(cpus=(0,), memory_bytes=512 * MIB, pids_max=100))
    contained.shell(run, "true").wait()
    contained.shell(run, "true", leaf="epilog").wait()
    places = [word.rpartition("=")[2] for word in run.recorded.split(" ")]
    assert all(Path(place).is_dir() for place in places)
    assert run.remove(PATIENCE_S)
    assert not any(Path(place).exists() for place in places)


def test_a_populated_run_is_not_removed(contained: Places) -> None:
    run = contained.create()
    leader = contained.shell(run, "echo started; read go")
    assert first_line(leader) == "started"
    assert run.remove() is False
    assert leader.poll() is None


def test_a_run_that_is_gone_reads_as_empty(contained: Places) -> None:
    run = contained.create(Limits(memory_bytes=512 * MIB))
    assert run.remove()
    gone = cgroups.reopen(run.recorded)
    assert (gone.populated(), gone.pids(), gone.events_fd(), gone.oom_kills()) == (False, [], None, 0)
    assert gone.usage() == cgroups.Counters()
    gone.kill_all()
    assert gone.remove()


def test_leftovers_that_nobody_recorded_are_killed_when_a_run_is_made_again(contained: Places) -> None:
    limits = Limits(memory_bytes=512 * MIB)
    first = contained.create(limits, job=77)
    leader = contained.shell(first, f"{DAEMON} echo started; exec sleep 1000")
    assert first_line(leader) == "started"
    second = contained.create(limits, job=77)
    assert leader.wait() == -signal.SIGKILL
    assert second.pids() == []
    assert contained.shell(second, "sleep 0 & wait; echo fine").communicate()[0] == "fine\n"


def test_runs_are_made_though_a_leaving_launcher_removed_the_directory_above(found: Hierarchy) -> None:
    if found.node is None:
        pytest.skip(f"no cgroups for runs here: {'; '.join(found.reasons)}")
    removed = replace(found, node=f"{found.node}-2", v1=tuple((name, f"{node}-2") for name, node in found.v1))
    places = Places(removed)
    run = places.create(Limits(cpus=(0,), memory_bytes=512 * MIB, pids_max=100))
    assert places.shell(run, "echo fine").communicate()[0] == "fine\n"
    assert run.unmet == ()
    places.clear()
    for directory in (removed.node, *(node for _, node in removed.v1)):
        os.rmdir(directory or "")


def test_a_supervisor_is_outside_the_limits_of_its_run(contained: Places) -> None:
    run = contained.create(Limits(pids_max=1))
    own = Path("/proc/self/cgroup").read_text()
    assert "/supervisors" in own
    assert "/1.1" not in own
    assert os.getpid() not in run.pids()


def test_a_place_that_cannot_be_freed_is_named_with_what_holds_it(contained: Places, tmp_path: Path) -> None:
    blocked = Path(contained.hierarchy.node or "", "5.1")
    blocked.mkdir()
    mounted = subprocess.run(["mount", "--bind", str(tmp_path), str(blocked)], check=False)
    if mounted.returncode != 0:
        blocked.rmdir()
        pytest.skip("nothing can be mounted here")
    try:
        with pytest.raises(ContainmentError, match=r"5\.1"):
            cgroups.create(contained.hierarchy, RunId(5, 1), Limits())
    finally:
        subprocess.run(["umount", str(blocked)], check=True)
        blocked.rmdir()


def test_runs_that_stand_are_found_without_any_record(contained: Places) -> None:
    runs = [contained.create(Limits(memory_bytes=512 * MIB), job=job) for job in (3, 40)]
    leader = contained.shell(runs[1], "echo started; exec sleep 1000")
    assert first_line(leader) == "started"
    found = cgroups.standing(contained.hierarchy)
    assert {str(run): place.recorded for run, place in found.items()} == {
        "3.1": runs[0].recorded,
        "40.1": runs[1].recorded,
    }
    assert found[RunId(40, 1)].pids() == [leader.pid]


@pytest.fixture
def many(contained: Places) -> Iterator[list[RunCgroup]]:
    yield [contained.create(Limits(memory_bytes=512 * MIB)) for _ in range(20)]


def test_many_runs_at_once_are_made_killed_and_removed(many: list[RunCgroup], contained: Places) -> None:
    leaders = [contained.shell(run, "echo started; exec sleep 1000") for run in many]
    assert {first_line(leader) for leader in leaders} == {"started"}
    for run in many:
        run.kill_all()
    for run in many:
        await_empty(run)
        assert run.remove(PATIENCE_S)
    assert {leader.wait() for leader in leaders} == {-signal.SIGKILL}


def test_this_machine_offers_what_the_reasons_do_not_deny(contained: Places) -> None:
    hierarchy = contained.hierarchy
    assert hierarchy.kind is not Kind.BARE
    assert all("\n" not in reason for reason in hierarchy.reasons)
    for controller in ("memory", "cpuset", "pids"):
        assert hierarchy.limits(controller) is not any(f"no {controller} controller" in r for r in hierarchy.reasons)
