"""The agent as a whole, with real supervisors: a run from its launch to its release."""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Callable

import grpc
import pytest

from spur.auth import Identity, Kind, claimed
from spur.pb import common_pb2, spurctld_pb2, spurd_pb2, spurd_pb2_grpc
from tests.patience import wait_for
from tests.spurd.conftest import Stand
from tests.spurd.registry import Phase, launch_request

HOLD = "sleep 1000"


def run_id(job: int, attempt: int = 1) -> common_pb2.RunId:
    return common_pb2.RunId(job_id=job, attempt=attempt)


def test_a_run_is_launched_ended_reported_and_released(stand: Stand) -> None:
    """R13: the record goes when all is discharged, not before the answer."""
    reply = stand.launch(7, "echo hello; exit 7")
    assert not reply.already_here
    assert list(reply.grant.cpus) == [0]
    assert stand.ended(7).wait_status == 7 << 8
    stand.wait_released(7)
    assert stand.output(7) == "hello\n"
    assert [one.phase for one in stand.registry.reports_of(7)][-2:] == [Phase.FINISHED, Phase.RELEASED]


def test_registration_tells_what_the_node_has(stand: Stand) -> None:
    told = stand.registry.registrations[-1]
    assert (told.node, told.cpus, told.memory_mb, told.sockets) == ("n1", 8, 8000, 8)
    assert told.address == stand.address
    assert told.boot_id and told.incarnation and told.boot_at > 0 and told.arch


def test_a_launch_is_idempotent(stand: Stand) -> None:
    first = stand.launch(3, HOLD)
    again = stand.launch(3, HOLD)
    assert again.already_here
    assert again.grant == first.grant
    stand.terminate(3)
    stand.wait_released(3)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        stand.launch(3, HOLD)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_concurrent_launches_of_one_run_make_one(stand: Stand) -> None:
    calls = [
        stand.registry.call_later(stand.address, "LaunchRun", launch_request(4, "echo once", work_dir="/tmp"))
        for _ in range(8)
    ]
    replies = [call.result(30) for call in calls]
    assert sorted(reply.already_here for reply in replies) == [False] + [True] * 7
    stand.wait_released(4)


def test_what_does_not_fit_is_refused_and_leaves_nothing(stand: Stand) -> None:
    """R30, R35"""
    for fields in ({"cpus": 9}, {"memory_mb": 8001}):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            stand.launch(5, HOLD, **fields)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    stand.launch(5, HOLD, cpus=8)
    with pytest.raises(grpc.aio.AioRpcError, match=r"held by 5\.1"):
        stand.launch(6, HOLD)
    stand.terminate(5)
    stand.wait_released(5)
    stand.launch(6, "exit 0")
    stand.wait_released(6)


def test_a_user_without_an_account_is_refused_by_name(stand: Stand) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=r"uid 4000000 \(ghost\) has no account on node n1"):
        stand.launch(5, HOLD, uid=4000000, gid=4000000, user="ghost")
    assert stand.agent.runs == []


def test_an_older_attempt_is_refused_and_a_newer_one_waits_for_the_end_of_the_older(stand: Stand) -> None:
    """R18, R32: the older run is ended as stale; nothing of it is left when the newer one starts."""
    stand.launch(8, HOLD, attempt=2)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        stand.launch(8, HOLD, attempt=1)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        stand.launch(8, HOLD, attempt=3)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert stand.registry.wait_report(8, Phase.FINISHED, 2).status.verdict.kind == common_pb2.VERDICT_STALE
    stand.wait_released(8, 2)
    stand.launch(8, "exit 3", attempt=3)
    assert stand.ended(8, 3).wait_status == 3 << 8
    stand.wait_released(8, 3)


def test_a_run_that_may_not_start_waits_for_its_permission(stand: Stand) -> None:
    stand.launch(9, "exit 4", may_start=False)
    stand.registry.wait_report(9, Phase.READY)
    assert not stand.registry.reports_of(9, Phase.STARTED)
    stand.call("StartRun", spurd_pb2.StartRunRequest(run=run_id(9)))
    stand.call("StartRun", spurd_pb2.StartRunRequest(run=run_id(9)))
    assert stand.ended(9).wait_status == 4 << 8
    stand.wait_released(9)


def test_terminate_tells_a_run_that_was_never_here_from_one_that_has_ended(stand: Stand) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        stand.terminate(11)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        stand.launch(11, HOLD)  # a launch that was overtaken
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    stand.launch(12, HOLD)
    stand.wait_running(12)
    assert not stand.terminate(12).already_ended
    ended = stand.registry.wait_report(12, Phase.FINISHED).status
    assert ended.verdict.kind == common_pb2.VERDICT_CANCELLED
    assert ended.exit.wait_status == signal.SIGTERM
    stand.wait_released(12)


def test_signals_reach_the_shell_alone_or_all(stand: Stand) -> None:
    stand.launch(13, "trap 'echo usr1; exit 5' USR1; touch ready; while :; do sleep 0.05; done")
    wait_for((stand.root / "work" / "ready").exists, "the trap is set")
    stand.call("SignalRun", spurd_pb2.SignalRunRequest(run=run_id(13), signal=signal.SIGUSR1, scope="batch"))
    assert stand.ended(13).wait_status == 5 << 8
    stand.wait_released(13)


def test_a_caller_who_is_not_the_controller_is_refused(stand: Stand) -> None:
    with grpc.insecure_channel(stand.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = spurd_pb2_grpc.AgentStub(channel)
        for who in (Identity(Kind.USER, 0, 0), Identity(Kind.AGENT, 0, 0, "n1")):
            with pytest.raises(grpc.RpcError) as refused:
                stub.Ping(spurd_pb2.AgentPingRequest(), metadata=claimed(who), timeout=10)
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.RpcError) as refused:
            stub.Ping(spurd_pb2.AgentPingRequest(), timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_lost_report_is_sent_until_it_is_answered(stand: Stand) -> None:
    """R14: the controller is away when the job ends."""
    stand.launch(20, "while [ ! -e go ]; do sleep 0.02; done; exit 9")
    stand.wait_running(20)
    stand.registry.stop()
    (stand.root / "work" / "go").touch()
    wait_for(lambda: stand.agent.manifest(20)["exit"], "the exit is recorded", explain=stand.agent.tail)
    stand.registry.start()
    assert stand.ended(20).wait_status == 9 << 8
    stand.wait_released(20)


@pytest.mark.parametrize("answer", ["STALE_ATTEMPT", "UNKNOWN_JOB", "ALREADY_RECORDED"])
def test_every_answer_discharges_the_report(stand: Stand, answer: str) -> None:
    stand.registry.answer = lambda _: spurctld_pb2.ReportRunReply.Answer.Value(answer)
    stand.launch(21)
    stand.wait_released(21)


def test_an_idle_agent_deregisters_at_once(stand: Stand) -> None:
    """R01"""
    assert stand.agent.stop() == 0
    assert [one.incarnation for one in stand.registry.farewells] == [stand.registry.registrations[-1].incarnation]


def test_a_busy_agent_leaves_without_a_word(stand: Stand) -> None:
    """R02: with a run."""
    stand.launch(22, HOLD)
    stand.wait_running(22)
    leader = stand.agent.leader_pid(22)
    assert stand.agent.stop() == 0
    assert not stand.registry.farewells
    assert stand.agent.runs == ["22.1"]
    stand.agent.start()
    assert [one.run for one in stand.registry.registrations[-1].runs] == [run_id(22)]
    assert stand.agent.leader_pid(22) == leader


def test_an_unreported_completion_keeps_the_agent_from_deregistering(stand: Stand) -> None:
    """R02: with a report that is owed."""
    stand.registry.answer = lambda _: spurctld_pb2.ReportRunReply.ANSWER_UNSPECIFIED
    stand.launch(23, "exit 6")
    stand.registry.wait_report(23, Phase.FINISHED)
    assert stand.agent.stop() == 0
    assert not stand.registry.farewells
    stand.registry.answer = lambda _: spurctld_pb2.ReportRunReply.RECORDED
    stand.agent.start()
    stand.wait_released(23)


def test_the_agent_registers_again_when_told(stand: Stand) -> None:
    stand.registry.knows_node = False
    wait_for(lambda: len(stand.registry.registrations) == 2, "a second registration", explain=stand.agent.tail)


def test_starting_does_not_wait_for_the_controller(make_stand: Callable[..., Stand]) -> None:
    """R21"""
    stand = make_stand(start=False)
    stand.registry.stop()
    stand.agent.start(wait=False)
    stand.agent.wait_event("listening")
    stand.registry.start()
    stand.agent.wait_event("registered")


def test_no_socket_is_left_when_the_agent_goes(stand: Stand) -> None:
    assert stand.agent.stop() == 0
    assert not list(stand.agent.runtime_dir.glob("*.sock"))


def test_two_agents_do_not_share_a_state_directory(stand: Stand) -> None:
    stand.agent._process, kept = None, stand.agent._process
    try:
        stand.agent.start(wait=False)
        assert stand.agent.wait() == 1
        assert "another spurd uses" in stand.agent.tail()
    finally:
        stand.agent._process = kept


def test_an_agent_tries_each_address_of_its_controller(make_stand: Callable[..., Stand]) -> None:
    stand = make_stand(start=False)
    addresses = f'["127.0.0.1:1", "{stand.registry.address}"]'
    text = stand.conf.read_text().replace(f'["{stand.registry.address}"]', addresses)
    stand.conf.write_text(text)
    stand.agent.start()
    stand.launch(24, "exit 2")
    assert stand.ended(24).wait_status == 2 << 8
    stand.wait_released(24)


def test_a_hanging_controller_delays_nothing_here(stand: Stand) -> None:
    """R07, R08: heartbeats go on, nothing is undone; reports come when it answers again."""
    gate = threading.Event()
    stand.registry.answer = lambda _: gate.wait(30) and spurctld_pb2.ReportRunReply.RECORDED
    stand.launch(25, "exit 8")
    stand.launch(26, "exit 9")
    for job in (25, 26):
        wait_for(lambda job=job: stand.agent.manifest(job)["exit"], "the exit is recorded", explain=stand.agent.tail)
    gate.set()
    for job in (25, 26):
        stand.wait_released(job)


def test_sockets_work_below_a_path_that_is_too_long_for_an_address(make_stand: Callable[..., Stand]) -> None:
    stand = make_stand(start=False)
    deep = stand.root / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    stand.agent.state_dir, stand.agent.runtime_dir = deep / "n1", deep / "n1" / "run"
    stand.agent.start()
    stand.launch(27, HOLD)
    stand.wait_running(27)
    stand.agent.restart(signal.SIGKILL)
    stand.agent.wait_event("supervisor_connected", job=27)
    stand.terminate(27)
    stand.wait_released(27)


@pytest.mark.parametrize("point", ["launch-accepted", "launch-claimed"])
def test_a_launch_in_flight_is_completed_or_undone(stand: Stand, point: str) -> None:
    """R09: the agent dies in the middle of it."""
    (stand.faults / point).write_text("kill")
    with pytest.raises(grpc.aio.AioRpcError):
        stand.launch(28, "exit 6")
    stand.agent.wait()
    stand.agent.start()
    runs = [one.run for one in stand.registry.registrations[-1].runs]
    assert runs == ([run_id(28)] if point == "launch-claimed" else [])
    if runs:
        assert stand.ended(28).wait_status == 6 << 8
        stand.wait_released(28)


def test_a_launch_in_flight_keeps_the_agent_from_deregistering(stand: Stand) -> None:
    """R02: the order to stop comes while it is being taken."""
    (stand.faults / "launch-accepted").write_text("delay 1")
    call = stand.registry.call_later(stand.address, "LaunchRun", launch_request(29, HOLD))
    wait_for(lambda: not (stand.faults / "launch-accepted").exists(), "the launch is in flight")
    assert stand.agent.stop() == 0
    assert call.exception(30) is not None or stand.agent.runs == ["29.1"]
    assert not stand.registry.farewells


def test_a_job_has_the_limits_that_it_brought_and_not_those_of_the_agent(stand: Stand) -> None:
    stand.launch(60, "ulimit -n; ulimit -c", limits={"NOFILE": 777, "CORE": 0})
    stand.wait_released(60)
    assert stand.output(60) == "777\n0\n"
    stand.launch(61, "ulimit -Sn; ulimit -Hn")
    stand.wait_released(61)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert stand.output(61) == f"{soft}\n{hard}\n"
