"""The programs that run beside the controller."""

from __future__ import annotations

from pathlib import Path

from spur.pb import common_pb2
from tests.patience import wait_for
from tests.spurctld.agent import Agent
from tests.spurctld.conftest import MakeSite
from tests.spurctld.site import Site


def hooked(
    make_site: MakeSite, tmp_path: Path, prolog: str = "exit 0", epilog: str = "exit 0", **hooks: object
) -> Site:
    said = tmp_path / "said"
    for name, script in (("prolog", prolog), ("epilog", epilog)):
        path = tmp_path / name
        line = f'echo {name} $SLURM_JOB_ID $SLURM_JOB_NODELIST $SLURM_SCRIPT_CONTEXT $SLURM_JOB_EXIT_CODE2 >> "{said}"'
        path.write_text(f"#!/bin/sh\n{line}\n{script}\n")
        path.chmod(0o755)
    config = {"controller_prolog": str(tmp_path / "prolog"), "controller_epilog": str(tmp_path / "epilog"), **hooks}
    return make_site(config={"hooks": config})


def lines(tmp_path: Path) -> list[str]:
    path = tmp_path / "said"
    return path.read_text().splitlines() if path.exists() else []


def test_each_runs_once_around_a_job(make_site: MakeSite, tmp_path: Path) -> None:
    site = hooked(make_site, tmp_path)
    with Agent(site) as agent:
        number = site.user(1000).submit()
        run = agent.wait_launched(number)
        assert lines(tmp_path) == [f"prolog {number} n1 prolog_slurmctld"]
        agent.finish(run, 7 << 8)
        site.user().wait_job(number, completing=False)
        assert lines(tmp_path)[1:] == [f"epilog {number} n1 epilog_slurmctld 7:0"]


def test_a_prolog_that_fails_sends_the_job_back_and_then_holds_it(make_site: MakeSite, tmp_path: Path) -> None:
    site = hooked(make_site, tmp_path, prolog="echo broken >&2; exit 3")
    with Agent(site) as agent:
        number = site.user(1000).submit()
        wait_for(lambda: site.user().job(number).held, "the job is held", explain=site.controller.tail)
        info = site.user().job(number)
        assert (info.state, info.reason, info.attempt) == (common_pb2.PENDING, "JobHoldMaxRequeue", 6)
        assert not agent.calls
        reason = site.controller.events("hook_failed")[0]["reason"]
        assert reason == f"{tmp_path}/prolog: exited with 3: broken"
        assert site.user().nodes()["n1"].cpus_allocated == 0


def test_an_epilog_that_fails_changes_nothing(make_site: MakeSite, tmp_path: Path) -> None:
    site = hooked(make_site, tmp_path, epilog="exit 1")
    with Agent(site) as agent:
        number = site.user(1000).submit()
        agent.finish(agent.wait_launched(number))
        info = site.user().wait_job(number, completing=False)
        assert info.state == common_pb2.COMPLETED


def test_one_that_hangs_is_killed_with_its_children(make_site: MakeSite, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    hang = f'sleep 1000 & echo $! > "{pid}"; wait'
    site = hooked(make_site, tmp_path, epilog=hang, epilog_timeout_secs=0.5)
    with Agent(site) as agent:
        number = site.user(1000).submit()
        agent.finish(agent.wait_launched(number))
        site.user().wait_job(number, completing=False)
        child = int(pid.read_text())
        wait_for(lambda: not _runs(child), "its child is gone")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_one_that_is_not_there_is_a_failure(make_site: MakeSite, tmp_path: Path) -> None:
    site = hooked(make_site, tmp_path)
    (tmp_path / "prolog").unlink()
    with Agent(site):
        number = site.user(1000).submit()
        wait_for(lambda: site.user().job(number).held, "the job is held", explain=site.controller.tail)


def test_one_that_was_interrupted_by_a_kill_is_not_repeated(make_site: MakeSite, tmp_path: Path) -> None:
    site = hooked(make_site, tmp_path, epilog="sleep 2")
    with Agent(site) as agent:
        number = site.user(1000).submit()
        agent.finish(agent.wait_launched(number))
        wait_for(lambda: len(lines(tmp_path)) == 2, "the epilog runs")
        site.controller.kill()
        site.hang_up()
        site.start()
        site.user().wait_job(number, completing=False)
        assert len(lines(tmp_path)) == 2
        assert site.controller.events("hook_interrupted")[0]["hook"] == "epilog"
