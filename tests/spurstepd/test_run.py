"""A run from its directory to its release, without an agent."""

from __future__ import annotations

import os
import select
import shutil
import signal

import pytest

from tests.spurstepd.conftest import Bench, exit_of

EXITS = {
    "exit 0": ("exit 0", 0),
    "exit 7": ("exit 7", 7 << 8),
    "exit 255": ("exit 255", 255 << 8),
    "kill -9 itself": ("kill -9 $$", 9),
    "TERM itself": ("kill -15 $$", 15),
}


@pytest.mark.parametrize("script, status", EXITS.values(), ids=EXITS)
def test_exit_is_what_waitid_saw(bench: Bench, script: str, status: int) -> None:
    bench.start_launcher()
    run = bench.start(f"#!/bin/bash\n{script}\n")
    state = run.finish()
    assert exit_of(state) == ("waitid", status)


def test_a_launcher_ends_what_stands_without_a_record(bench: Bench) -> None:
    """The spool was lost under a run: nobody would ever look for its processes again."""
    first = bench.start_launcher()
    run = bench.start("#!/bin/bash\nexec sleep 1000\n")
    state = run.wait_phase("running")
    leader = os.pidfd_open(state["leader"]["pid"])
    for pid in (bench.launchers[0].pid, state["supervisor"]["pid"]):
        os.kill(pid, signal.SIGKILL)
    bench.launchers[0].wait()
    first.close()
    shutil.rmtree(run.dir.path)
    bench.dirs.socket(run.run).unlink()
    bench.start_launcher()
    assert select.select([leader], [], [], 10.0)[0]
    os.close(leader)
