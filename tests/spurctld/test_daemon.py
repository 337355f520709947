"""The controller as a process: what it says when it cannot start, and that nothing it told is ever lost."""

from __future__ import annotations

import os
import random
import signal
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable

import grpc
import pytest

from spur.pb import common_pb2, spurctld_pb2
from tests.patience import wait_for
from tests.spurctld.agent import Agent
from tests.spurctld.conftest import MakeSite
from tests.spurctld.site import BIN, Site

RECORDED, ALREADY_RECORDED = spurctld_pb2.ReportRunReply.RECORDED, spurctld_pb2.ReportRunReply.ALREADY_RECORDED


def run_to_end(site: Site, *options: str) -> tuple[int, str]:
    command = [str(BIN / "spurctld"), "-f", str(site.conf), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stderr


# Starting


def test_says_where_it_listens(site: Site) -> None:
    assert site.address.startswith("127.0.0.1:")
    assert not site.address.endswith(":0")
    assert site.user().nodes()["n1"].unknown


def test_a_busy_port_is_one_line(make_site: MakeSite) -> None:
    site = make_site(start=False)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        address = f"127.0.0.1:{busy.getsockname()[1]}"
        code, said = run_to_end(site, "--listen", address)
    assert code == 1
    last = said.strip().splitlines()[-1]
    assert last == f"spurctld: error: cannot listen on {address}: is another spurctld running there?"


def test_a_second_controller_on_the_same_state_is_refused(site: Site) -> None:
    code, said = run_to_end(site, "--listen", "127.0.0.1:0")
    assert (code, said) == (1, f"spurctld: error: {site.state_dir}: another spurctld uses it\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("[controller]\nlisen = 'x'", "lisen"),
        ("[scheduler]\ninterval_secs = -1", "interval_secs"),
    ],
)
def test_a_configuration_that_cannot_be_is_one_line(make_site: MakeSite, change: str, said: str) -> None:
    site = make_site(start=False)
    site.conf.write_text(change)
    code, error = run_to_end(site)
    assert code == 1
    assert len(error.splitlines()) == 1
    assert said in error


def test_a_missing_key_is_one_line(make_site: MakeSite) -> None:
    site = make_site(start=False)
    site.key.unlink()
    code, error = run_to_end(site)
    assert code == 1
    assert error.startswith(f"spurctld: error: {site.key}: no key file")


def test_a_damaged_database_is_one_line_and_stays(make_site: MakeSite) -> None:
    site = make_site(start=False)
    site.state_dir.mkdir()
    path = site.state_dir / "spurctld.db"
    path.write_bytes(b"garbage" * 2000)
    code, error = run_to_end(site, "--listen", "127.0.0.1:0")
    assert code == 1
    assert error.startswith(f"spurctld: error: {path}: cannot be used:")
    assert len(error.splitlines()) == 1
    assert path.read_bytes() == b"garbage" * 2000


def test_a_short_heartbeat_timeout_is_warned_of(make_site: MakeSite) -> None:
    """R05."""
    site = make_site(config={"controller": {"heartbeat_timeout_secs": 5}})
    assert "heartbeat_timeout_secs is 5" in site.controller.wait_event("configuration_unwise")["text"]


# Leaving


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_leaves_promptly_even_while_an_agent_hangs(site: Site, number: int) -> None:
    hang = threading.Event()
    with Agent(site) as agent:
        agent.launch = lambda run, context: void(hang.wait(30))
        site.user().submit()
        agent.wait_call("LaunchRun", (1, 1))
        began = time.monotonic()
        assert site.controller.stop(number) == 0
        assert time.monotonic() - began < 5
        hang.set()


def void(_: object) -> None:
    return None


# Nothing told is lost


def test_every_job_that_was_answered_is_there_after_a_kill(site: Site) -> None:
    """kill -9 at random moments of a stream of submissions."""
    told: set[int] = set()
    rng = random.Random(7)
    for _ in range(5):
        stop = threading.Event()

        def submit(stop: threading.Event = stop) -> None:
            while not stop.is_set():
                try:
                    told.add(site.user().submit(script=b"#!/bin/sh\n" + os.urandom(8).hex().encode()))
                except grpc.RpcError:
                    return

        threads = [threading.Thread(target=submit) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(rng.uniform(0.05, 0.4))
        site.controller.kill()
        stop.set()
        for thread in threads:
            thread.join()
        site.hang_up()
        site.start()
        assert set(site.user().jobs()) >= told
    assert len(told) > 20
    new = site.user().submit()
    assert new not in told


def test_what_a_running_job_is_survives_a_kill(site: Site) -> None:
    """Same run, not launched again, its end recorded by the controller that comes after."""
    user = site.user(1000)
    with Agent(site) as agent:
        number = user.submit(time_limit_s=600)
        run = agent.wait_launched(number)
        agent.report(run, 2)
        agent.runs[run] = "running"
        before = user.job(number)
        site.controller.kill()
        site.hang_up()
        site.start()
        after = user.job(number)
        assert (after.state, after.started_at, after.attempt) == (common_pb2.RUNNING, before.started_at, 1)
        agent.beat()
        agent.finish(run, 7 << 8)
        assert user.job(number).exit_code == 7 << 8
        assert agent.calls.count(("LaunchRun", run)) == 1


def test_a_cancel_that_was_answered_is_carried_out_by_the_next_controller(site: Site) -> None:
    """The verdict is durable before the signal: R24."""
    user = site.user()
    with Agent(site) as agent:
        number = user.submit()
        run = agent.wait_launched(number)
        wait_for(lambda: user.job(number).runs[0].phase == "accepted", "the launch is taken")
        agent.hang_up()
        assert user.cancel(number) == {number: ""}
        site.controller.kill()
        site.hang_up()
        agent.serve()
        site.start()
        assert user.job(number).state == common_pb2.CANCELLED
        agent.wait_call("TerminateRun", run)
        assert agent.verdicts[run] == common_pb2.VERDICT_CANCELLED


def test_a_launch_that_was_under_way_is_sent_again_to_the_same_attempt(site: Site) -> None:
    """Field report 43: the intent is durable before the call."""
    hang = threading.Event()
    with Agent(site) as agent:
        agent.launch = lambda run, context: void(hang.wait(20))
        number = site.user().submit()
        agent.wait_call("LaunchRun", (number, 1))
        site.controller.kill()
        site.hang_up()
        agent.launch = lambda run, context: None
        hang.set()
        site.start()
        agent.wait_launched(number)
        assert {run for _, run in agent.calls} == {(number, 1)}


def killed_at(site: Site, point: str, call: Callable[[], object]) -> None:
    """kill -9 at a fault point while `call` is answered; then the next controller."""
    site.faults.order(point, "kill")
    with pytest.raises(grpc.RpcError):
        call()
    site.controller.wait()
    site.hang_up()
    site.start()


def test_what_was_decided_and_not_stored_never_was(site: Site) -> None:
    user = site.user()
    with Agent(site) as agent:
        run = agent.wait_launched(user.submit())
        agent.report(run, 2)
        killed_at(site, "turn-decided", lambda: user.submit(hold=True))
        assert set(user.jobs()) == {run[0]}
        killed_at(site, "turn-decided", lambda: user.cancel(run[0]))
        assert user.job(run[0]).state == common_pb2.RUNNING
        agent.runs[run] = "running"
        agent.beat()
        assert not agent.verdicts
        killed_at(site, "turn-decided", lambda: agent.report(run, 3, 7 << 8))
        assert agent.report(run, 3, 7 << 8) == RECORDED
        assert user.job(run[0]).exit_code == 7 << 8


def test_what_was_stored_is_carried_out_by_the_next_controller(site: Site) -> None:
    """Between the commit and its first effect: the caller was told nothing, and all of it holds."""
    user = site.user()
    with Agent(site) as agent:
        site.faults.order("turn-committed", "kill")
        with pytest.raises(grpc.RpcError):
            user.submit()
        site.controller.wait()
        site.hang_up()
        site.start()
        (number,) = user.jobs()
        run = agent.wait_launched(number)
        agent.report(run, 2)
        killed_at(site, "turn-committed", lambda: user.cancel(number))
        agent.wait_call("TerminateRun", run)
        assert agent.verdicts[run] == common_pb2.VERDICT_CANCELLED
        killed_at(site, "turn-committed", lambda: agent.report(run, 3, 15))
        assert agent.report(run, 3, 15) == ALREADY_RECORDED
        info = user.job(number)
        assert (info.state, info.exit_code) == (common_pb2.CANCELLED, 15)


def test_an_attempt_that_was_stored_is_the_one_that_is_launched(site: Site) -> None:
    """R09: killed between the decision to start a job and its launch, it is launched once, as the same attempt."""
    user = site.user()
    with Agent(site) as agent:
        number = user.submit(hold=True)
        site.faults.order("turn-committed", "wait")
        release = threading.Thread(target=lambda: quietly(user.call, "HoldJob", release_of(number)))
        release.start()
        site.faults.reached("turn-committed")
        site.faults.order("turn-committed", "kill")  # for the turn in which it is started
        site.faults.let_go("turn-committed")
        release.join()
        site.controller.wait()
        site.hang_up()
        site.start()
        agent.wait_launched(number)
        assert {run for _, run in agent.calls} == {(number, 1)}


def release_of(number: int) -> spurctld_pb2.HoldJobRequest:
    return spurctld_pb2.HoldJobRequest(job_id=number, release=True)


def quietly(call: Callable[..., object], *arguments: object) -> None:
    try:
        call(*arguments)
    except grpc.RpcError:
        pass


def test_the_database_can_be_read_by_a_person(site: Site) -> None:
    site.user(1000).submit(name="mine")
    with sqlite3.connect(f"file:{site.state_dir / 'spurctld.db'}?mode=ro", uri=True) as db:
        rows = db.execute(
            "SELECT id, json_extract(spec, '$.name'), json_extract(record, '$.state') FROM jobs"
        ).fetchall()
    db.close()
    assert rows == [(1, "mine", "PENDING")]
