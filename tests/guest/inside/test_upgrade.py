"""The package is upgraded, removed and installed again under jobs that run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import PACKAGE
from .node import run, submit, unit, until

pytestmark = pytest.mark.usefixtures("node")

JOBS = 8
NEXT = Path("/tmp/spur-next")


@pytest.fixture(scope="module")
def next_package() -> Iterator[Path]:
    """The same package as a later version."""
    run("dpkg-deb", "--raw-extract", str(PACKAGE), str(NEXT))
    control = NEXT / "DEBIAN/control"
    control.write_text(control.read_text().replace("\nVersion: ", "\nVersion: 1:"))
    run("dpkg-deb", "--root-owner-group", "-Znone", "--build", str(NEXT), f"{NEXT}.deb")
    run("rm", "-r", str(NEXT))
    yield Path(f"{NEXT}.deb")
    run("rm", f"{NEXT}.deb")


def install(package: Path) -> None:
    run("dpkg", "--force-unsafe-io", "--force-downgrade", "--install", str(package), timeout_s=600)


def test_jobs_live_through_an_upgrade_and_the_way_back(tmp_path: Path, next_package: Path) -> None:
    """M6: the daemons are restarted by the package; supervisors of before go on with what they have in memory."""
    jobs = [submit(tmp_path, f"exit {number}") for number in range(1, JOBS + 1)]
    supervisors = [job.supervisor() for job in jobs]
    main = unit("MainPID")
    install(next_package)
    assert unit("MainPID") != main
    assert [job.supervisor() for job in jobs] == supervisors
    for job in jobs[: JOBS // 2]:
        job.end()
    install(PACKAGE)
    for job in jobs[JOBS // 2 :]:
        job.end()
    assert [job.conclude() for job in jobs] == [("FAILED", f"{number}:0") for number in range(1, JOBS + 1)]


def test_a_job_ends_exactly_while_the_package_is_removed(tmp_path: Path) -> None:
    """R22: nothing of the installation is needed by a run that was started."""
    job = submit(tmp_path, "kill -11 $$")
    run("dpkg", "--force-unsafe-io", "--remove", "spur", timeout_s=600)
    assert not Path("/usr/lib/spur/bin").exists()
    job.end()
    until("its exit is recorded", job.has_recorded_exit)
    assert json.loads((job.directory / "manifest.json").read_text())["exit"]["status"] & 0x7F == 11
    install(PACKAGE)
    run("systemctl", "enable", "--now", "spurctld", "spurd")
    assert job.conclude() == ("FAILED", "0:11")
