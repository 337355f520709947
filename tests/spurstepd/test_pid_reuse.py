"""Pids that come back at once: a pid namespace in which only a few hundred of them exist (R26)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spurstepd.conftest import Bench

PID_MAX = 400  # the kernel starts at 300 again, so that a hundred of them come round


def small_namespace(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program as PID 1's child of a pid namespace with PID_MAX pids. Skips where that cannot be had."""
    inside = (
        f"echo {PID_MAX} > /proc/sys/kernel/pid_max 2>/dev/null && [ $(cat /proc/sys/kernel/pid_max) = {PID_MAX} ]"
        ' || exit 77; "$@"; exit $?'
    )
    before = Path("/proc/sys/kernel/pid_max").read_text()
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", inside, "bash",
         sys.executable, "-c", program, *arguments],
        capture_output=True, text=True, timeout=100, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    if Path("/proc/sys/kernel/pid_max").read_text() != before:  # the kernel has one for all namespaces, before 6.14
        Path("/proc/sys/kernel/pid_max").write_text(before)
        pytest.skip("pid_max is not a namespace's own on this kernel")
    if done.returncode == 77:
        pytest.skip("no pid namespace with a pid_max of its own can be made here")
    return done


REUSED = """
import os, signal, subprocess, sys, time
from pathlib import Path
from tests.patience import wait_for
from tests.spurstepd.conftest import Bench, exit_of

burnt = 0
while burnt < 300:
    process = subprocess.Popen(["sleep", "0"], env={"PATH": os.environ["PATH"]})
    burnt = process.pid
    process.wait()
bench = Bench(Path(sys.argv[1]))
first = bench.start_launcher()
run = bench.start("#!/bin/bash\\nexec sleep 1000\\n")
leader = run.wait_phase("running")["leader"]["pid"]
supervisor = run.state()["supervisor"]["pid"]
for pid in (bench.launchers[0].pid, supervisor, leader):
    os.kill(pid, signal.SIGKILL)
bench.launchers[0].wait()
first.close()
# init of this namespace is a shell that reaps; now let the pid come round again, as somebody else's
wait_for(lambda: not Path(f"/proc/{leader}").exists(), "the leader reaped")
stranger = None
for _ in range(2000):
    process = subprocess.Popen(["sleep", "1000"], env={"PATH": os.environ["PATH"]})
    if process.pid == leader:
        stranger = process
        break
    process.kill(); process.wait()
assert stranger is not None, "the pid did not come round"
bench.start_launcher()
bench.supervise(run)
state = run.finish()
assert exit_of(state) == ("unknown", None), state
assert stranger.poll() is None, "a stranger was signalled"
stranger.kill(); stranger.wait()
bench.close()
print("stranger untouched")
"""


def test_a_stranger_with_the_leaders_pid_is_neither_signalled_nor_taken_for_it(bench: Bench, tmp_path: Path) -> None:
    done = small_namespace(REUSED, str(tmp_path / "inside"))
    assert done.stdout.endswith("stranger untouched\n"), done.stdout + done.stderr


CHURN = """
import os, subprocess, sys
from pathlib import Path
from tests.spurstepd.conftest import Bench, exit_of

bench = Bench(Path(sys.argv[1]))
bench.start_launcher()
for job in range(1, 61):
    run = bench.start(f"#!/bin/bash\\nfor i in $(seq 20); do /bin/true; done\\nexit {job}\\n", job=job)
    assert exit_of(run.finish()) == ("waitid", job << 8)
bench.close()
print("all exact")
"""


def test_exits_stay_exact_while_pids_come_round(bench: Bench, tmp_path: Path) -> None:
    """60 runs of 20 processes each over 100 pids."""
    assert os.geteuid() == 0
    done = small_namespace(CHURN, str(tmp_path / "inside"))
    assert done.stdout.endswith("all exact\n"), done.stdout + done.stderr
