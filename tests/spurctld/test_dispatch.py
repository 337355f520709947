"""Calls to agents: a node that is dead, slow, full or broken delays nobody else, and nothing is given up too early."""

from __future__ import annotations

import threading
import time

import grpc

from spur.pb import common_pb2
from tests.patience import wait_for
from tests.spurctld.agent import PHASE, Agent
from tests.spurctld.conftest import MakeSite
from tests.spurctld.site import Site

FAST = {"controller": {"agent_timeout_secs": 0.5}}


def refuse(code: grpc.StatusCode, times: int = 1000):  # type: ignore[no-untyped-def]
    left = [times]

    def answer(run, context):  # type: ignore[no-untyped-def]
        left[0] -= 1
        if left[0] >= 0:
            context.abort(code, "cannot")

    return answer


def test_a_hanging_node_delays_no_other(make_site: MakeSite) -> None:
    """Field report 51."""
    site, hang = make_site(nodes=2), threading.Event()
    with Agent(site, "n1") as slow, Agent(site, "n2") as quick:
        slow.launch = lambda run, context: hang.wait(20) and None
        first = site.user().submit(cpus_per_task=4)
        slow.wait_call("LaunchRun", (first, 1))
        began = time.monotonic()
        for _ in range(20):
            number = site.user().submit(cpus_per_task=4)
            run = quick.wait_launched(number)
            quick.finish(run)
        assert time.monotonic() - began < 10
        hang.set()


def test_a_launch_that_was_not_answered_is_said_again(make_site: MakeSite) -> None:
    site = make_site(config=FAST)
    with Agent(site) as agent:
        slow = [1.0, 1.0]
        agent.launch = lambda run, context: time.sleep(slow.pop()) if slow else None
        number = site.user().submit()
        run = agent.wait_launched(number)
        wait_for(lambda: agent.calls.count(("LaunchRun", run)) >= 3, "the launch is said again")
        wait_for(lambda: site.user().job(number).runs[0].phase == "accepted", "an answer arrives")
        assert site.user().job(number).attempt == 1


def test_a_node_that_comes_back_is_told_at_once(make_site: MakeSite) -> None:
    """Its heartbeat cuts the waiting for the next try short."""
    site = make_site(config=FAST)
    with Agent(site) as agent:
        agent.hang_up()
        number = site.user().submit()
        wait_for(lambda: len(site.controller.events("node_not_reached")) >= 4, "it was tried for a while", pause_s=0.1)
        agent.serve()
        began = time.monotonic()
        agent.beat()
        agent.wait_launched(number)
        assert time.monotonic() - began < 2


def test_an_agent_at_another_address_is_found(site: Site) -> None:
    with Agent(site) as agent:
        agent.hang_up()
        number = site.user().submit()
        agent.address = "127.0.0.1:0"
        agent.serve()
        agent.register()
        agent.wait_launched(number)


def test_a_full_node_is_left_alone_for_a_while(make_site: MakeSite) -> None:
    """Field reports 49, 50."""
    site = make_site(nodes=2)
    with Agent(site, "n1") as full, Agent(site, "n2") as free:
        full.launch = refuse(grpc.StatusCode.RESOURCE_EXHAUSTED)
        number = site.user().submit()
        full.wait_call("LaunchRun", (number, 1))
        free.wait_launched(number, 2)
        info = site.user().job(number)
        assert (info.attempt, info.restarts, info.state) == (2, 0, common_pb2.RUNNING)


def test_a_broken_agent_is_asked_again_and_then_made_to_clean_up(site: Site) -> None:
    """An answer that says nothing of what became of the run: it may be there all the same."""
    with Agent(site) as agent:
        agent.launch = refuse(grpc.StatusCode.INTERNAL)
        number = site.user().submit()
        agent.wait_call("TerminateRun", (number, 1))
        assert agent.calls.count(("LaunchRun", (number, 1))) == 3
        agent.launch = lambda run, context: None
        agent.wait_launched(number, 2)


def test_what_is_the_users_fault_fails_the_job(site: Site) -> None:
    with Agent(site) as agent:
        agent.launch = refuse(grpc.StatusCode.INVALID_ARGUMENT)
        info = site.user().wait_job(site.user().submit())
        assert (info.state, info.reason, info.state_desc) == (common_pb2.FAILED, "JobLaunchFailure", "cannot")


def test_an_end_overtakes_a_launch_that_has_not_left(site: Site) -> None:
    with Agent(site) as agent:
        agent.hang_up()
        number = site.user().submit()
        site.controller.wait_event("node_not_reached")
        site.user().cancel(number)
        agent.serve()
        agent.beat()
        wait_for(lambda: not site.user().job(number).completing, "the job is gone")
        assert agent.calls == [("TerminateRun", (number, 1))]
        assert site.user().nodes()["n1"].cpus_allocated == 0


def test_an_end_is_said_until_it_is_heard(make_site: MakeSite) -> None:
    site = make_site(config=FAST)
    with Agent(site) as agent:
        number = site.user().submit()
        run = agent.wait_launched(number)
        agent.report(run, PHASE.STARTED)
        slow = [1.0, 1.0]
        agent.terminate = lambda run, context: time.sleep(slow.pop()) if slow else None
        site.user().cancel(number)
        wait_for(lambda: run in agent.verdicts and agent.calls.count(("TerminateRun", run)) >= 3, "it was heard")


def test_a_silent_nodes_job_moves_and_its_old_run_is_ended_when_the_node_returns(make_site: MakeSite) -> None:
    """R08."""
    site = make_site(nodes=2, config={"controller": {"heartbeat_timeout_secs": 1.0}})
    with Agent(site, "n1") as one, Agent(site, "n2") as two:
        two.keep_beating()
        number = site.user().submit()
        old = one.wait_launched(number)
        one.report(old, PHASE.STARTED)
        new = two.wait_launched(number, 2)
        two.report(new, PHASE.STARTED)
        info = site.user().job(number)
        assert (info.nodes, info.restarts, info.failed_node) == ("n2", 1, "n1")
        one.runs[old] = "running"
        one.register()
        one.wait_call("TerminateRun", old)
        assert one.verdicts[old] == common_pb2.VERDICT_STALE
        assert site.user().job(number).state == common_pb2.RUNNING
        one.runs.clear()
        one.report(old, PHASE.RELEASED)
        assert site.user().nodes()["n1"].cpus_allocated == 0


def test_a_node_that_returns_in_time_keeps_its_run(make_site: MakeSite) -> None:
    """R07: nowhere else to go, so the run is still its job's."""
    site = make_site(config={"controller": {"heartbeat_timeout_secs": 0.6}})
    with Agent(site) as agent:
        number = site.user().submit()
        run = agent.wait_launched(number)
        agent.report(run, PHASE.STARTED)
        agent.runs[run] = "running"
        wait_for(lambda: site.user().nodes()["n1"].down, "n1 is down")
        assert site.user().job(number).state == common_pb2.PENDING
        agent.register()
        agent.keep_beating()
        info = site.user().job(number)
        assert (info.state, info.attempt, info.restarts) == (common_pb2.RUNNING, 1, 0)
        agent.finish(run, 0)
        assert site.user().job(number).state == common_pb2.COMPLETED
        assert agent.calls.count(("LaunchRun", run)) == 1
