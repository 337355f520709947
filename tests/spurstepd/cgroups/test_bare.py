"""Without cgroups: supervisors as real processes of their own, each with a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from spurstepd import cgroups
from spurstepd.cgroups import bare
from spurstepd.cgroups.bare import descendants
from spurstepd.cgroups.processes import Entry, entry
from spurstepd.ids import RunId

from .places import DAEMON, Places, first_line, until

SUPERVISOR = """
import os, subprocess, sys
import prctl
from spurstepd import cgroups
from spurstepd.cgroups import probe
from spurstepd.ids import RunId
prctl.set_child_subreaper(1)
run = cgroups.create(probe.bare(sys.argv[1], "for the test"), RunId(int(sys.argv[2]), 1), cgroups.Limits())
name, _, value = run.leaf("batch").environment[0].partition("=")
subprocess.Popen(["/bin/sh", "-c", sys.argv[3]], env={**os.environ, name: value})
print(run.recorded, flush=True)
for line in sys.stdin:
    if line == "pids\\n":
        print(*run.pids(), flush=True)
    if line == "kill\\n":
        while run.populated():
            run.kill_all()
        print("killed", flush=True)
"""

RABBIT = "import os\nfor i in range(3000):\n    if os.fork(): os._exit(0)"


@pytest.fixture
def supervisors() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for one in started:
        one.kill()
        one.communicate()


def supervise(supervisors: list[subprocess.Popen[str]], job: int, script: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, f"bare{os.getpid()}", str(job), script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    supervisors.append(process)
    return process


def ask(supervisor: subprocess.Popen[str], question: str) -> str:
    assert supervisor.stdin is not None
    supervisor.stdin.write(f"{question}\n")
    supervisor.stdin.flush()
    return first_line(supervisor)


def pids(supervisor: subprocess.Popen[str]) -> set[int]:
    return {int(word) for word in ask(supervisor, "pids").split()}


def test_a_run_is_killed_with_its_daemons_and_another_supervisors_run_lives(
    supervisors: list[subprocess.Popen[str]],
) -> None:
    mine, other = (supervise(supervisors, job, f"{DAEMON} exec sleep 1000") for job in (1, 2))
    for one in (mine, other):
        first_line(one)
        until(lambda one=one: len(pids(one)) == 3, "leader and daemons")  # type: ignore[misc]
    members, others = pids(mine), pids(other)
    assert not members & others
    assert ask(mine, "kill") == "killed"
    assert not any(_is_alive(pid) for pid in members)
    assert all(_is_alive(pid) for pid in others)
    ask(other, "kill")


def test_daemons_of_a_dead_supervisor_are_found_by_their_cookie(
    supervisors: list[subprocess.Popen[str]], subreaper: None
) -> None:
    """The orphans are given to the launcher, here this process, and the successor finds them all the same."""
    supervisor = supervise(supervisors, 3, f"{DAEMON} exec sleep 1000")
    recorded = first_line(supervisor)
    until(lambda: len(pids(supervisor)) == 3, "leader and daemons")
    members = pids(supervisor)
    supervisor.kill()
    supervisor.wait()
    successor = cgroups.reopen(recorded)
    assert set(successor.pids()) == members
    successor.kill_all()
    until(lambda: not successor.populated(), "all dead")
    assert not any(_is_alive(pid) for pid in members)


def test_even_a_daemon_that_wiped_its_environment_is_found_below_a_living_supervisor(
    supervisors: list[subprocess.Popen[str]],
) -> None:
    supervisor = supervise(supervisors, 4, "env -i setsid sleep 1000 </dev/null >/dev/null 2>&1 &")
    first_line(supervisor)
    until(lambda: len(pids(supervisor)) == 1, "the daemon")
    (daemon,) = pids(supervisor)
    assert ask(supervisor, "kill") == "killed"
    assert not _is_alive(daemon)


def test_a_process_that_forks_and_exits_all_the_time_is_caught_or_gone(bare: Places) -> None:
    run = bare.create()
    bare.python(run, RABBIT)
    until(lambda: run.kill_all() is None and not run.populated(), "caught")


def test_a_number_that_became_another_process_is_not_signalled(bare: Places) -> None:
    run = bare.create()
    leader = bare.shell(run, "echo started; exec sleep 1000")
    assert first_line(leader) == "started"
    found = entry(leader.pid)
    assert found is not None
    stranger = Entry(found.pid, found.ppid, found.name, "S", found.start_ticks - 1, 0, 0, 0)
    assert cgroups.bare._send(stranger, signal.SIGKILL) is False
    assert leader.poll() is None


def test_usage_is_that_of_the_living_and_of_whom_they_waited_for(bare: Places) -> None:
    run = bare.create()
    burn = "import os, time\npid = os.fork()\nwhile not pid and time.process_time() < 0.2: pass\nif pid: os.wait()\n"
    leader = bare.python(run, burn + "if pid:\n print('burnt', flush=True)\n input()")
    assert first_line(leader) == "burnt"
    used = run.usage()
    assert used.user_cpu_s is not None
    assert used.user_cpu_s + (used.system_cpu_s or 0) > 0.15
    assert (used.memory_bytes or 0) > 1 << 20
    assert used.peak_memory_bytes is None


def test_two_attempts_never_share_a_cookie() -> None:
    first, second = (bare.create("k", RunId(1, 1), cgroups.Limits()) for _ in range(2))
    assert first.recorded != second.recorded


def test_descendants_survive_a_table_with_loops_and_missing_parents() -> None:
    table = {
        pid: Entry(pid, ppid, "x", "S", 0, 0, 0, 0) for pid, ppid in ((2, 1), (3, 2), (4, 5), (5, 4), (6, 99), (7, 3))
    }
    assert descendants(table, {2}) == {3, 7}
    assert descendants(table, {4}) == {5}
    assert descendants(table, {99}) == {6}


def _is_alive(pid: int) -> bool:
    found = entry(pid)
    return found is not None and found.state not in "ZX"
