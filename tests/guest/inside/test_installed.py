"""A clean Debian, the package, two commands: a node that runs jobs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .node import SPOOL, Job, run, scopes, submit, unit, until

pytestmark = pytest.mark.usefixtures("node")


def test_a_job_runs_and_its_exit_is_exact(tmp_path: Path) -> None:
    job = submit(tmp_path, "exit 7")
    job.end()
    assert job.conclude() == ("FAILED", "7:0")


def test_a_job_of_a_user_runs_as_that_user(tmp_path: Path) -> None:
    run("useradd", "--create-home", "alice")
    wrap = ["sbatch", "--parsable", "--output=/home/alice/out", "--wrap", "id -un; ulimit -Hn; exit 3"]
    number = run("setpriv", "--reuid=alice", "--regid=alice", "--init-groups", "env", "-C", "/home/alice", *wrap)
    until("its output is there", Path("/home/alice/out").exists)
    assert Job(int(number), tmp_path).conclude() == ("FAILED", "3:0")
    assert Path("/home/alice/out").read_text().splitlines() == ["alice", "524288"]
    assert Path("/home/alice/out").owner() == "alice"


def test_the_daemons_are_who_they_should_be() -> None:
    owner = {name: run("ps", "-o", "user=", "-p", unit("MainPID", name)).strip() for name in ("spurctld", "spurd")}
    assert owner == {"spurctld": "spur", "spurd": "root"}
    assert len(scopes()) == 1


def test_the_units_are_clean() -> None:
    verified = subprocess.run(
        ["systemd-analyze", "verify", "spurd.service", "spurctld.service", "spur.slice"], capture_output=True, text=True
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    run("systemd-analyze", "security", "--no-pager", "--threshold=20", "spurctld.service")


def test_the_doctor_finds_nothing_broken() -> None:
    said = run("spur", "doctor")
    assert "KillMode=process" in said
    assert "cgroup controllers: all of version 2" in said


def test_the_log_of_the_supervisors_can_be_rotated() -> None:
    assert (SPOOL / "spurstepd.log").stat().st_size > 0
    run("logrotate", "--force", "/etc/logrotate.d/spur")
    assert (SPOOL / "spurstepd.log").stat().st_size == 0
