"""R04, R50: what systemd may do to spurd, with jobs that live through it and jobs that end in the middle of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .node import Job, run, scopes, submit, unit, until

pytestmark = pytest.mark.usefixtures("node")

RESTARTS = int(os.environ.get("SPUR_GUEST_RESTARTS", "50"))
During = Callable[[], None]


def restart(during: During) -> None:
    with subprocess.Popen(["systemctl", "restart", "spurd"]) as asked:
        during()
    assert asked.returncode == 0


def kill(during: During) -> None:
    main = unit("MainPID")
    run("systemctl", "kill", "--signal=KILL", "spurd")
    during()
    until("systemd has started spurd again", lambda: unit("MainPID") not in ("0", main))


def stop_and_start(during: During) -> None:
    run("systemctl", "stop", "spurd")
    during()
    run("systemctl", "start", "spurd")


def reexecute(during: During) -> None:
    run("systemctl", "daemon-reexec")
    during()
    run("systemctl", "restart", "spurd")


def run_out_of_memory(during: During) -> None:
    before = int(unit("NRestarts"))
    run("systemctl", "set-property", "--runtime", "spurd.service", "MemoryMax=16M")
    until("the kernel has killed spurd for its memory", lambda: int(unit("NRestarts")) > before)
    during()
    run("systemctl", "set-property", "--runtime", "spurd.service", "MemoryMax=infinity")


def stopped(job: Job) -> bool:
    return job.has_recorded_exit() or not job.directory.exists()


@pytest.mark.parametrize("disturb", [restart, kill, stop_and_start, reexecute, run_out_of_memory])
def test_jobs_and_their_exits_are_unharmed(tmp_path: Path, disturb: Callable[[During], None]) -> None:
    stays, ends = submit(tmp_path, "exit 7"), submit(tmp_path, "kill -9 $$")
    supervisor, scope = stays.supervisor(), Path(f"/proc/{stays.supervisor()}/cgroup").read_text()
    main = unit("MainPID")

    def end_one() -> None:
        ends.end()
        until(f"the exit of job {ends.number} is recorded", lambda: stopped(ends))

    disturb(end_one)
    until("spurd is active", lambda: unit("ActiveState") == "active")
    assert unit("MainPID") != main
    assert ends.conclude() == ("FAILED", "0:9")
    assert stays.shown()["JobState"] == "RUNNING"
    assert stays.supervisor() == supervisor
    assert Path(f"/proc/{supervisor}/cgroup").read_text() == scope
    stays.end()
    assert stays.conclude() == ("FAILED", "7:0")


def counted() -> dict[str, int]:
    """What could grow."""
    return {
        "scopes": len(scopes()),
        "kept descriptors": int(unit("NFileDescriptorStore")),
        "launcher sockets": len(list(Path("/run/spur/launchers").iterdir())),
        "run sockets": len(list(Path("/run/spur/runs").iterdir())),
        "processes": len([path for path in Path("/proc").iterdir() if path.name.isdigit() and (path / "exe").exists()]),
        "cgroups": sum(1 for _ in os.walk("/sys/fs/cgroup/spur.slice")),
        "failed units": len(run("systemctl", "--failed", "--plain", "--no-legend").splitlines()),
        "open files of systemd": len(os.listdir("/proc/1/fd")),
    }


def test_nothing_grows_over_many_restarts_under_a_job(tmp_path: Path) -> None:
    """R41."""
    job = submit(tmp_path, "exit 7")
    supervisor = job.supervisor()
    run("systemctl", "restart", "spurd")  # its own launcher and the job's: as many as there will ever be
    until("the launchers have settled", lambda: len(scopes()) == 2)
    before = counted()
    for _ in range(RESTARTS):
        run("systemctl", "restart", "spurd")
    until("the launchers have settled", lambda: len(scopes()) == 2)
    until(f"as before: {before}, and not {counted()}", lambda: counted() == before)
    assert job.supervisor() == supervisor
    job.end()
    assert job.conclude() == ("FAILED", "7:0")
    until("the job's launcher has left", lambda: len(scopes()) == 1)
