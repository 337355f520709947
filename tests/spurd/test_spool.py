"""What may stand in the spool when the agent starts: R12, R15, R16, R20, R21, R31, R40, R41."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from spur.pb import common_pb2
from tests.patience import wait_for
from tests.spurd.conftest import Stand
from tests.spurd.registry import Phase

WAIT = "while [ ! -e go ]; do sleep 0.02; done"


def dead_run(stand: Stand, job: int) -> Path:
    """The directory of a run whose processes have all been killed, with the agent away."""
    stand.launch(job, WAIT)
    stand.wait_running(job)
    pids = [stand.agent.supervisor_pid(job), stand.agent.leader_pid(job)]
    stand.agent.kill()
    for pid in (*stand.agent.launcher_pids(), *pids):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "they are gone")
    return stand.agent.run_dir(job)


def as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def as_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_huge(path: Path) -> None:
    os.truncate(path, 1 << 30)


def as_torn(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def as_another(path: Path) -> None:
    path.write_text(path.read_text().replace('"job":40', '"job":41'))


def as_newer(path: Path) -> None:
    path.write_text(path.read_text().replace('"schema":1', '"schema":99'))


def as_writable(path: Path) -> None:
    path.chmod(0o666)


def as_missing(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    "spoil",
    [as_fifo, as_link, as_directory, as_huge, as_torn, as_another, as_newer, as_writable, as_missing],
    ids=lambda spoil: spoil.__name__,
)
def test_a_record_that_cannot_be_trusted_is_set_aside_and_the_run_ended(
    stand: Stand, spoil: Callable[[Path], None]
) -> None:
    """R12, R20, R21: the agent starts, shows it, and the controller gets an end that says that nobody knows."""
    directory = dead_run(stand, 40)
    spoil(directory / "manifest.json")
    stand.agent.start()
    stand.agent.wait_event("record_quarantined", record="40.1")
    report = stand.registry.wait_report(40, Phase.FINISHED)
    assert report.status.exit.source == common_pb2.UNKNOWN_EXIT
    assert report.status.verdict.kind == common_pb2.VERDICT_NODE_LOST
    assert "40.1" in report.drain_reason
    stand.wait_released(40)
    [aside] = (stand.agent.state_dir / "quarantine").iterdir()
    assert aside.name.startswith("40.1.")


def test_a_lost_launch_plan_costs_no_exit_that_was_recorded(stand: Stand) -> None:
    stand.registry.answer = lambda _: 0
    stand.launch(41, "exit 7")
    stand.registry.wait_report(41, Phase.FINISHED)
    directory = stand.agent.run_dir(41)
    supervisor = stand.agent.supervisor_pid(41)
    stand.agent.kill()
    for pid in (*stand.agent.launcher_pids(), supervisor):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not os.path.exists(f"/proc/{supervisor}"), "it is gone")
    as_torn(directory / "launch.json")
    stand.registry.reports.clear()
    stand.registry.answer = lambda _: 1
    stand.agent.start()
    assert stand.ended(41).wait_status == 7 << 8
    stand.wait_released(41)


def test_what_is_no_run_is_set_aside_too(make_stand: Callable[..., Stand]) -> None:
    stand = make_stand(start=False)
    runs = stand.agent.state_dir / "runs"
    runs.mkdir(parents=True)
    (runs / "lost+found").mkdir()
    (runs / "7.1").write_text("")
    (runs / "8.1").symlink_to("/etc")
    (runs / ".9.1.new").mkdir()
    stand.agent.start()
    assert len(stand.agent.events("record_quarantined")) == 3
    for job in (7, 8):
        stand.wait_released(job)
    assert stand.agent.runs == []
    assert (stand.agent.state_dir / "quarantine").stat().st_mode & 0o077 == 0
    assert not (runs / ".9.1.new").exists()


def test_a_living_run_is_not_taken_from_under_its_supervisor(stand: Stand) -> None:
    stand.launch(42, WAIT + "; exit 7")
    stand.wait_running(42)
    stand.agent.kill()
    as_torn(stand.agent.run_dir(42) / "manifest.json")
    stand.agent.start()
    stand.agent.wait_event("record_unreadable", record="42.1")
    (stand.root / "work" / "go").touch()
    assert stand.ended(42).wait_status == 7 << 8
    stand.wait_released(42)


def test_nobody_else_can_plant_or_read_a_record(stand: Stand) -> None:
    """R40"""
    stand.launch(43, WAIT, uid=65534, gid=65534, user="nobody")
    stand.wait_running(43)
    state, run = stand.agent.state_dir, stand.agent.run_dir(43)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (state / "runs", run, *run.iterdir())}
    assert modes[state / "runs"] == modes[run] == 0o711
    assert modes[run / "script"] == 0o500
    assert (run / "script").stat().st_uid == 65534
    assert {modes[run / name] for name in ("manifest.json", "launch.json", "exit", "lock")} == {0o600}
    assert all(path.stat().st_uid == 0 for path in modes if path.name != "script")


def test_of_two_records_that_claim_the_same_one_run_is_ended_with_a_reason(stand: Stand) -> None:
    """R31"""
    stand.launch(44, WAIT + "; exit 4", cpus=2)
    stand.wait_running(44)
    stand.launch(45, WAIT + "; exit 5", cpus=2)
    stand.wait_running(45)
    stand.agent.kill()
    path = stand.agent.run_dir(45) / "manifest.json"
    record = json.loads(path.read_text())
    record["granted"]["cpus"] = [1, 2]
    path.write_text(json.dumps(record))
    stand.agent.start()
    lost = stand.registry.wait_report(45, Phase.FINISHED).status
    assert lost.verdict.kind == common_pb2.VERDICT_CONFLICT
    assert "44.1" in lost.verdict.reason and "45.1" in lost.verdict.reason
    stand.wait_released(45)
    assert stand.agent.runs == ["44.1"]
    (stand.root / "work" / "go").touch()
    assert stand.ended(44).wait_status == 4 << 8


def test_a_failed_epilog_drains_the_node_and_the_drain_survives_a_restart(make_stand: Callable[..., Stand]) -> None:
    """R15, R16: once, and carried in every heartbeat until the controller has it."""
    stand = make_stand(start=False, hooks="")
    count = stand.root / "epilogs"
    epilog = stand.root / "epilog"
    epilog.write_text(f"#!/bin/sh\necho $SLURM_JOB_ID >> {count}\nexit 1\n")
    epilog.chmod(0o755)
    stand.conf.write_text(stand.conf.read_text().replace("[hooks]", f'[hooks]\nepilog = "{epilog}"'))
    stand.registry.notes_drains = False
    stand.registry.answer = lambda _: 0  # no answer that we know
    stand.agent.start()
    stand.launch(46, "exit 3")
    reason = stand.wait_heartbeat(lambda beat: list(beat.drain_reasons), "a drain reason")
    assert "epilog" in reason[0]
    stand.agent.restart(signal.SIGKILL)
    stand.registry.answer = lambda _: 1
    assert stand.wait_heartbeat(lambda beat: list(beat.drain_reasons), "the reason after a restart") == reason
    report = stand.registry.reports_of(46, Phase.FINISHED)[-1]
    assert (report.status.exit.wait_status, report.drain_reason) == (3 << 8, reason[0])
    stand.registry.notes_drains = True
    stand.wait_released(46)
    assert count.read_text() == "46\n"


def test_socket_of_a_dead_run_without_a_directory_is_removed(stand: Stand) -> None:
    """R41."""
    shutil.rmtree(dead_run(stand, 40))
    assert stand.agent.socket(40).exists()
    stand.agent.start()
    assert not stand.agent.socket(40).exists()


def test_nothing_is_left_of_ended_runs(stand: Stand) -> None:
    """R41"""
    for job in range(50, 60):
        stand.launch(job, "exit 0", cpus=0)
    for job in range(50, 60):
        stand.wait_released(job)
    assert os.listdir(stand.agent.state_dir / "runs") == []
    assert os.listdir(stand.agent.runtime_dir / "runs") == []


def test_after_a_reboot_all_of_a_run_is_dead_and_what_it_owes_is_still_owed(make_stand: Callable[..., Stand]) -> None:
    """R26: pids of another boot are nobody's; the same path as every recovery."""
    stand = make_stand(start=False)
    count = stand.root / "epilogs"
    epilog = stand.root / "epilog"
    epilog.write_text(f"#!/bin/sh\necho $SLURM_JOB_ID >> {count}\n")
    epilog.chmod(0o755)
    stand.conf.write_text(stand.conf.read_text().replace("[hooks]", f'[hooks]\nepilog = "{epilog}"'))
    stand.agent.start()
    path = dead_run(stand, 47) / "manifest.json"
    record = json.loads(path.read_text())
    record["boot_id"] = "11111111-2222-3333-4444-555555555555"
    record["leader"]["pid"] = record["supervisor"]["pid"] = 1  # somebody else's now
    path.write_text(json.dumps(record))
    stand.agent.start()
    ended = stand.ended(47)
    assert ended.source == common_pb2.UNKNOWN_EXIT
    assert "reboot" in ended.detail
    stand.wait_released(47)
    assert count.read_text() == "47\n"
    assert list(stand.launch(48, "exit 0", cpus=8).grant.cpus) == list(range(8))
    stand.wait_released(48)
