"""Who dies beside the agent: supervisors, launchers, both; and those who live but do not answer (R50, M4)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from spur.pb import common_pb2, spurd_pb2
from tests.patience import wait_for
from tests.spurd.conftest import Stand
from tests.spurd.registry import Phase

WAIT = "while [ ! -e go ]; do sleep 0.02; done"
SEEN = (common_pb2.WITNESS, common_pb2.KERNEL, common_pb2.WAITID)


def go(stand: Stand) -> None:
    (stand.root / "work" / "go").touch()


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send it and, for KILL, wait until the process is dead."""
    fd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(fd, number)
        if number == signal.SIGKILL:
            wait_for(lambda: _is_dead(pid), f"{pid} is dead")
    finally:
        os.close(fd)


def _is_dead(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except FileNotFoundError:
        return True


def started(stand: Stand, job: int, script: str = WAIT + "; exit 7") -> int:
    """Launch it, wait until it runs; the pid of its supervisor."""
    stand.launch(job, script)
    stand.wait_running(job)
    return stand.agent.supervisor_pid(job)


def test_a_dead_supervisor_is_succeeded_and_the_run_goes_on(stand: Stand) -> None:
    first = started(stand, 1)
    leader = stand.agent.leader_pid(1)
    kill(first)
    second = wait_for(lambda: (pid := stand.agent.supervisor_pid(1)) != first and pid, "a successor")
    assert stand.agent.wait_event("supervisor_died", job=1)["how"] in ("was killed by SIGKILL", "unknown")
    assert stand.agent.leader_pid(1) == leader
    assert second != first
    go(stand)
    assert stand.ended(1).wait_status == 7 << 8
    stand.wait_released(1)


def test_a_dead_launcher_is_replaced_and_its_runs_go_on(stand: Stand) -> None:
    started(stand, 2)
    [launcher] = stand.agent.launcher_pids()
    kill(launcher)
    stand.agent.wait_event("launcher_lost")
    go(stand)
    ended = stand.ended(2)
    assert (ended.wait_status, ended.source) == (7 << 8, common_pb2.WAITID)
    stand.wait_released(2)
    stand.launch(3, "exit 5")
    assert stand.ended(3).wait_status == 5 << 8
    stand.wait_released(3)


@pytest.mark.parametrize("ends_first", [False, True], ids=["leader-lives", "leader-ends"])
def test_supervisor_and_launcher_die_and_the_exit_is_exact(stand: Stand, ends_first: bool) -> None:
    """The agent is the witness: it holds the leader and reaps it."""
    supervisor = started(stand, 4)
    [launcher] = stand.agent.launcher_pids()
    for pid in (supervisor, launcher):
        kill(pid, signal.SIGSTOP)
    if ends_first:
        leader = stand.agent.leader_pid(4)
        go(stand)
        wait_for(lambda: _is_dead(leader), "the leader has ended")
    kill(launcher)
    kill(supervisor)
    go(stand)
    ended = stand.ended(4)
    assert ended.wait_status == 7 << 8
    assert ended.source in SEEN
    stand.wait_released(4)


def test_supervisor_and_launcher_die_while_the_agent_is_away(stand: Stand) -> None:
    """The next agent holds the leader from its start and passes it on."""
    supervisor = started(stand, 5)
    stand.agent.kill()
    [launcher] = stand.agent.launcher_pids()
    kill(launcher)
    kill(supervisor)
    stand.agent.start()
    stand.agent.wait_event("supervisor_connected", job=5)
    go(stand)
    ended = stand.ended(5)
    assert ended.wait_status == 7 << 8
    assert ended.source == common_pb2.KERNEL
    stand.wait_released(5)


def test_everything_dies_and_the_exit_is_said_to_be_unknown(stand: Stand) -> None:
    supervisor = started(stand, 6)
    leader = stand.agent.leader_pid(6)
    stand.agent.kill()
    [launcher] = stand.agent.launcher_pids()
    for pid in (launcher, supervisor, leader):
        kill(pid)
    wait_for(lambda: not os.path.exists(f"/proc/{leader}"), "the leader is reaped")
    stand.agent.start()
    ended = stand.ended(6)
    assert ended.source == common_pb2.UNKNOWN_EXIT
    assert not ended.HasField("wait_status")
    assert ended.detail
    stand.wait_released(6)


def test_a_launch_survives_the_death_of_its_launcher(stand: Stand) -> None:
    """R09: claimed and on disk, no supervisor yet."""
    (stand.faults / "supervisor-forked").write_text("kill")
    stand.launch(7, "exit 3")
    assert stand.ended(7).wait_status == 3 << 8
    stand.wait_released(7)
    wait_for(lambda: len(stand.agent.events("launcher_started")) == 2, "another launcher", explain=stand.agent.tail)


def test_a_wedged_supervisor_is_left_alone_until_it_is_needed(make_stand: Callable[..., Stand]) -> None:
    stand = make_stand(patience="1.5")
    supervisor = started(stand, 8)
    kill(supervisor, signal.SIGSTOP)
    stand.agent.restart(signal.SIGKILL)
    stand.wait_heartbeat(lambda beat: len(beat.runs) == 1, "a heartbeat with the run")
    assert not stand.agent.events("supervisor_killed")
    stand.terminate(8)
    assert stand.agent.wait_event("supervisor_killed", job=8)["pid"] == supervisor
    status = stand.registry.wait_report(8, Phase.FINISHED).status
    assert status.verdict.kind == common_pb2.VERDICT_CANCELLED
    assert status.exit.wait_status == signal.SIGTERM
    stand.wait_released(8)


def test_a_supervisor_that_recovers_in_time_is_not_killed(make_stand: Callable[..., Stand]) -> None:
    stand = make_stand(patience="20")
    supervisor = started(stand, 9)
    kill(supervisor, signal.SIGSTOP)
    call = stand.registry.call_later(
        stand.address,
        "TerminateRun",
        spurd_pb2.TerminateRunRequest(
            run=common_pb2.RunId(job_id=9, attempt=1), verdict=common_pb2.Verdict(kind=common_pb2.VERDICT_CANCELLED)
        ),
    )
    stand.wait_heartbeat(lambda beat: True, "time to pass")
    kill(supervisor, signal.SIGCONT)
    call.result(30)
    stand.wait_released(9)
    assert not stand.agent.events("supervisor_killed")


def test_the_deadline_is_enforced_over_a_wedged_supervisor_without_a_controller(
    make_stand: Callable[..., Stand],
) -> None:
    stand = make_stand(patience="1")
    stand.launch(10, "sleep 1000", time_limit_s=1)
    stand.wait_running(10)
    stand.registry.stop()
    kill(stand.agent.supervisor_pid(10), signal.SIGSTOP)
    stand.agent.wait_event("supervisor_killed", job=10)
    stand.registry.start()
    status = stand.registry.wait_report(10, Phase.FINISHED).status
    assert status.verdict.kind == common_pb2.VERDICT_TIMEOUT
    stand.wait_released(10)


def test_a_wedged_launcher_is_replaced_when_it_is_needed(make_stand: Callable[..., Stand]) -> None:
    stand = make_stand(patience="1")
    started(stand, 11)
    [launcher] = stand.agent.launcher_pids()
    kill(launcher, signal.SIGSTOP)
    stand.launch(12, "exit 6")
    assert stand.agent.wait_event("launcher_killed")["pid"] == launcher
    assert stand.ended(12).wait_status == 6 << 8
    go(stand)
    assert stand.ended(11).wait_status == 7 << 8
    for job in (11, 12):
        stand.wait_released(job)


def test_a_supervisor_that_dies_of_its_release_is_succeeded_and_released(stand: Stand) -> None:
    """R41"""
    (stand.faults / "released").write_text("kill")
    stand.launch(13, "exit 0")
    stand.wait_released(13)
    assert not stand.agent.events("supervisor_killed")


def test_supervisor_and_launcher_die_before_the_agent_has_met_the_leader(stand: Stand) -> None:
    """The leader stands in the record alone; the agent, its subreaper by then, recognises it when it reaps it."""
    (stand.faults / "supervisor-forked").write_text("wait")
    stand.launch(14, WAIT + "; exit 7")
    leader = stand.agent.leader_pid(14)
    wait_for(lambda: os.path.basename(os.readlink(f"/proc/{leader}/exe")) != "python3.11", "the script runs")
    [launcher] = stand.agent.launcher_pids()
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (launcher, stand.agent.supervisor_pid(14)):
            os.kill(pid, number)
    go(stand)
    ended = stand.ended(14)
    assert (ended.wait_status, ended.source) in ((7 << 8, common_pb2.WITNESS), (7 << 8, common_pb2.KERNEL))
    stand.wait_released(14)
