"""R50: everything that knew of a job is killed at once, and the job ends while nobody lives who could know."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from spur.doctor import kernel
from spur.doctor.finding import Grade

from .node import Job, run, scopes, submit, unit, until

pytestmark = pytest.mark.usefixtures("node")

DROP_IN = Path("/run/systemd/system/spurd.service.d/later.conf")


@pytest.fixture
def late_restart() -> Iterator[None]:
    """systemd takes its time to start spurd again; until then it keeps what spurd left with it."""
    DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    DROP_IN.write_text("[Service]\nRestartSec=30\n")
    run("systemctl", "daemon-reload")
    yield
    DROP_IN.unlink()
    run("systemctl", "daemon-reload")


def kill_all_that_know(job: Job) -> None:
    scope = Path(f"/proc/{job.supervisor()}/cgroup").read_text().strip().removeprefix("0::")
    witnesses = Path(f"/sys/fs/cgroup{scope}/cgroup.procs").read_text().split()
    for pid in [unit("MainPID"), *witnesses]:
        os.kill(int(pid), signal.SIGKILL)
    until("spurd is dead", lambda: unit("SubState") == "auto-restart")
    until("the supervisor is dead", lambda: not Path(f"/proc/{job.supervisor()}").exists())


@pytest.mark.usefixtures("late_restart")
def test_the_exit_of_a_job_that_init_reaped_comes_from_the_kernel_or_is_unknown(tmp_path: Path) -> None:
    job = submit(tmp_path, "exit 7")
    leader = job.manifest()["leader"]["pid"]
    assert unit("NFileDescriptorStore") != "0"
    kill_all_that_know(job)
    job.end()
    until("init has reaped the job", lambda: not Path(f"/proc/{leader}").exists())
    assert unit("SubState") == "auto-restart"
    until("systemd has started spurd again", lambda: unit("ActiveState") == "active")
    kept = kernel.exit_record().grade is Grade.OK
    assert job.conclude() == (("FAILED", "7:0") if kept else ("NODE_FAIL", "0:1"))
    until("nothing is kept of it", lambda: unit("NFileDescriptorStore") == "0")
    until("its scope is gone", lambda: len(scopes()) == 1)
