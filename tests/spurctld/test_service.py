"""What users' commands and agents are answered, over the wire."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import grpc
import pytest

from spur.auth import Identity, Kind
from spur.pb import common_pb2, spurctld_pb2, spurctld_pb2_grpc
from tests.patience import wait_for
from tests.spurctld.agent import PHASE, Agent
from tests.spurctld.conftest import MakeSite
from tests.spurctld.site import Site

ANN, BOB = 1001, 1002


def refused(call: Any, *arguments: Any, **options: Any) -> tuple[str, str, str]:
    """Code, text and note of the refusal."""
    with pytest.raises(grpc.RpcError) as error:
        call(*arguments, **options)
    answer: Any = error.value
    note = dict(answer.trailing_metadata() or ()).get("spur-note", "")
    return answer.code().name, answer.details(), unquote(note)


# Who calls


def test_a_call_without_proof_is_refused(site: Site) -> None:
    stub = spurctld_pb2_grpc.ControllerStub(site.channel)
    code, _, _ = refused(stub.ListJobs, spurctld_pb2.ListJobsRequest(), timeout=10)
    assert code == "UNAUTHENTICATED"


@pytest.mark.parametrize(
    ("service", "method", "kind"), [("Controller", "ListJobs", Kind.AGENT), ("Registry", "Heartbeat", Kind.USER)]
)
def test_each_service_answers_its_own_callers_alone(site: Site, service: str, method: str, kind: Kind) -> None:
    stub = getattr(spurctld_pb2_grpc, f"{service}Stub")(site.channel)
    who = Identity(kind, 0, 0, "n1" if kind is Kind.AGENT else "")
    request = getattr(spurctld_pb2, f"{method}Request")()
    code, _, _ = refused(getattr(stub, method), request, timeout=10, metadata=site.signer.metadata(who))
    assert code == "PERMISSION_DENIED"


def test_an_agent_speaks_for_its_own_node_alone(make_site: MakeSite) -> None:
    site = make_site(nodes=2)
    for method, request in (
        ("Register", spurctld_pb2.RegisterRequest(node="n2", address="127.0.0.1:1", boot_id="b", incarnation="i")),
        ("Heartbeat", spurctld_pb2.HeartbeatRequest(node="n2")),
        ("ReportRun", spurctld_pb2.ReportRunRequest(node="n2")),
        ("Deregister", spurctld_pb2.DeregisterRequest(node="n2")),
    ):
        code, text, _ = refused(site.registry, method, request, "n1")
        assert (code, text) == ("PERMISSION_DENIED", "the agent of node n1 cannot speak for node n2")


def test_the_submitter_is_who_the_token_says(site: Site) -> None:
    number = site.user(ANN).submit(name="mine")
    info = site.user(BOB).job(number)
    assert (info.uid, info.gid, info.user) == (ANN, ANN, str(ANN))


def test_only_owner_and_root_touch_or_read_a_job(site: Site) -> None:
    """Field report 67."""
    number = site.user(ANN).submit(script=b"#!/bin/sh\necho secret\n")
    bob = site.user(BOB)
    assert bob.cancel(number) == {number: "Access/permission denied"}
    for method, request in (
        ("HoldJob", spurctld_pb2.HoldJobRequest(job_id=number)),
        ("RequeueJob", spurctld_pb2.RequeueJobRequest(job_id=number)),
        ("SuspendJob", spurctld_pb2.SuspendJobRequest(job_id=number)),
        ("ListJobs", spurctld_pb2.ListJobsRequest(job_ids=[number], with_script=True)),
        ("UpdateNodes", spurctld_pb2.UpdateNodesRequest(node_list="n1", state="DRAIN", reason="x")),
    ):
        assert refused(bob.call, method, request)[:2] == ("PERMISSION_DENIED", "Access/permission denied"), method
    assert not bob.job(number).script
    for uid in (ANN, 0):
        assert site.user(uid).jobs(number, with_script=True)[number].script == b"#!/bin/sh\necho secret\n"


# Submission


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        (
            {"partition": "nopart"},
            ("INVALID_ARGUMENT", "Invalid partition name specified", "invalid partition specified: nopart"),
        ),
        (
            {"cpus_per_task": 5},
            (
                "INVALID_ARGUMENT",
                "Requested node configuration is not available",
                "CPU count per node can not be satisfied",
            ),
        ),
        ({"script": b""}, ("INVALID_ARGUMENT", "Batch script is empty!", "")),
        ({"cpus_per_task": 0}, ("INVALID_ARGUMENT", "cpus_per_task: 0 is not between 1 and 65535", "")),
        ({"node_list": "n[1-"}, ("INVALID_ARGUMENT", None, "")),
        (
            {"script": b"#!/bin/sh\n" + b"x" * 5000},
            (
                "INVALID_ARGUMENT",
                "Pathname of a file, directory or other parameter too long",
                "the script of the job has 5010 bytes, the most are 5000",
            ),
        ),
    ],
)
def test_refusals_carry_slurms_text_and_a_note(
    make_site: MakeSite, fields: dict[str, Any], answer: tuple[str, str | None, str]
) -> None:
    site = make_site(config={"limits": {"max_script_bytes": 5000}})
    code, text, note = refused(site.user(ANN).submit, **fields)
    assert (code, note) == (answer[0], answer[2])
    assert answer[1] is None or text == answer[1]
    assert site.user().jobs() == {}


def test_a_job_is_tested_without_being_taken(site: Site) -> None:
    request = spurctld_pb2.SubmitJobRequest(job=common_pb2.JobDescription(name="t"), test_only=True)
    assert site.user(ANN).call("SubmitJob", request).job_id == 0
    assert site.user().jobs() == {}


def test_the_description_comes_back_with_its_paths_filled_in(site: Site) -> None:
    fields = {
        "name": "deep",
        "work_dir": "/tmp",
        "stdout_path": "out-%j-%x",
        "arguments": ["a", "b c"],
        "comment": "why",
        "environment": [b"A=1"],
        "time_limit_s": 90,
        "memory_per_cpu_mb": 10,
        "cpus_per_task": 2,
    }
    info = site.user(ANN).job(site.user(ANN).submit(**fields))
    assert info.job.stdout_path == "out-1-deep"
    assert (list(info.job.arguments), info.job.comment) == (["a", "b c"], "why")
    assert not info.job.environment
    assert not info.job.script
    assert (info.time_limit_s, info.num_cpus, info.memory_mb, info.memory_is_per_cpu) == (90, 2, 10, True)
    assert (info.state, info.reason, info.attempt) == (common_pb2.PENDING, info.reason, 0)


def test_unknown_jobs_are_left_out_of_the_list(site: Site) -> None:
    assert site.user().jobs(99) == {}
    number = site.user().submit()
    assert list(site.user().jobs(99, number)) == [number]


# A life


def test_the_launch_carries_what_was_submitted(site: Site) -> None:
    with Agent(site) as agent:
        script, environment = b"#!/bin/sh\n\xff\xfe", [b"A=\xff", b"B="]
        number = site.user(ANN).submit(
            script=script, environment=environment, cpus_per_task=2, memory_mb=100, time_limit_s=60, umask=0o27
        )
        agent.wait_launched(number)
        launch = agent.launched[number, 1]
        assert (launch.job.script, list(launch.job.environment), launch.job.umask) == (script, environment, 0o27)
        assert (launch.uid, launch.gid, launch.cpus, launch.memory_mb, launch.tasks) == (ANN, ANN, 2, 100, 1)
        assert (launch.nodes, launch.node_index, launch.num_nodes, launch.may_start) == ("n1", 0, 1, True)
        assert (launch.time_limit_s, launch.partition, launch.cluster_name) == (60, "main", "test")
        assert (launch.tasks_per_node, launch.cpus_per_node) == ("1", "2")
        assert launch.stimulus


def test_a_job_runs_to_its_end(site: Site) -> None:
    user = site.user(ANN)
    with Agent(site) as agent:
        number = user.submit(cpus_per_task=3, time_limit_s=600)
        run = agent.wait_launched(number)
        agent.report(run, PHASE.STARTED)
        info = user.job(number)
        assert (info.state, info.nodes, info.batch_host, info.num_cpus) == (common_pb2.RUNNING, "n1", "n1", 3)
        assert info.ended_at == pytest.approx(info.started_at + 600)
        assert list(info.runs[0].grant.cpus) == [0, 1, 2]
        assert user.nodes()["n1"].cpus_allocated == 3
        assert agent.report(run, PHASE.ENDED, 7 << 8) == spurctld_pb2.ReportRunReply.RECORDED
        info = user.job(number)
        assert (info.state, info.completing, info.exit_code) == (common_pb2.FAILED, True, 7 << 8)
        assert (info.reason, info.exit.wait_status) == ("NonZeroExitCode", 7 << 8)
        assert user.nodes()["n1"].completing
        assert agent.report(run, PHASE.FINISHED, 7 << 8) == spurctld_pb2.ReportRunReply.RECORDED
        agent.runs.clear()
        assert agent.report(run, PHASE.RELEASED, 7 << 8) == spurctld_pb2.ReportRunReply.RECORDED
        assert agent.report(run, PHASE.RELEASED, 7 << 8) == spurctld_pb2.ReportRunReply.ALREADY_RECORDED
        assert not user.job(number).completing
        assert user.nodes()["n1"].cpus_allocated == 0


def test_two_nodes_start_together(make_site: MakeSite) -> None:
    site = make_site(nodes=2)
    with Agent(site, "n1") as one, Agent(site, "n2") as two:
        number = site.user(ANN).submit(nodes=2, tasks=3)
        run = one.wait_launched(number)
        two.wait_launched(number)
        assert (one.launched[run].nodes, one.launched[run].tasks_per_node) == ("n[1-2]", "2,1")
        assert [one.launched[run].node_index, two.launched[run].node_index] == [0, 1]
        assert not one.launched[run].may_start
        assert site.user().job(number).configuring
        two.report(run, PHASE.READY)
        one.report(run, PHASE.READY)
        one.wait_call("StartRun", run)
        assert ("StartRun", run) not in two.calls
        one.report(run, PHASE.STARTED)
        one.report(run, PHASE.ENDED, 0)
        two.wait_call("TerminateRun", run)
        for agent in (one, two):
            agent.runs.clear()
            agent.report(run, PHASE.RELEASED)
        assert not site.user().job(number).completing


def test_reports_that_cannot_be_name_their_field(site: Site) -> None:
    with Agent(site) as agent:
        for fields, said in (
            ({"phase": 9}, "phase: 9 is none"),
            ({"phase": 3, "status": spurctld_pb2.RunStatus()}, "run: no run is called 0.0"),
        ):
            request = spurctld_pb2.ReportRunRequest(
                node="n1", **{"status": spurctld_pb2.RunStatus(run=common_pb2.RunId(job_id=1, attempt=1)), **fields}
            )
            assert refused(agent.site.registry, "ReportRun", request)[:2] == ("INVALID_ARGUMENT", said)
        request = spurctld_pb2.ReportRunRequest(node="n1", phase=3)
        request.status.run.CopyFrom(common_pb2.RunId(job_id=1, attempt=1))
        request.status.exit.source = common_pb2.WAITID
        assert refused(agent.site.registry, "ReportRun", request)[1] == (
            "exit.wait_status: missing, though the source is waitid"
        )


def test_a_node_that_nobody_configured_cannot_register(site: Site) -> None:
    code, text, _ = refused(Agent(site, "n9").register)
    assert (code, text) == ("NOT_FOUND", "node n9 is not in the configuration")


def test_signals_and_suspensions_reach_the_node(site: Site) -> None:
    root = site.user()
    with Agent(site) as agent:
        number = root.submit()
        run = agent.wait_launched(number)
        agent.report(run, PHASE.STARTED)
        assert root.cancel(number, signal=10, scope=spurctld_pb2.CancelJobsRequest.BATCH) == {number: ""}
        agent.wait_call("SignalRun 10 batch", run)
        root.call("SuspendJob", spurctld_pb2.SuspendJobRequest(job_id=number))
        agent.wait_call("SuspendRun", run)
        assert root.job(number).state == common_pb2.SUSPENDED
        root.call("SuspendJob", spurctld_pb2.SuspendJobRequest(job_id=number, resume=True))
        agent.wait_call("ResumeRun", run)
        assert root.job(number).state == common_pb2.RUNNING


# Choosing jobs to cancel


def test_filters_choose_among_the_jobs_that_have_not_ended(site: Site) -> None:
    ann, bob, root = site.user(ANN), site.user(BOB), site.user()
    mine = [ann.submit(name="a"), ann.submit(name="b"), ann.submit(name="b")]
    theirs = bob.submit(name="b")
    assert ann.cancel(name="b", user=str(ANN)) == {mine[1]: "", mine[2]: ""}
    assert root.cancel(name="b") == {theirs: ""}
    assert root.cancel(state="pending", partition="main") == {mine[0]: ""}
    assert root.cancel(state="PD") == {}
    assert refused(root.cancel)[0] == "INVALID_ARGUMENT"


def test_a_name_that_does_not_pass_the_filter_is_left_alone(site: Site) -> None:
    root = site.user()
    number = root.submit(name="a")
    assert root.cancel(number, name="b") == {}
    assert root.cancel(number, 99, name="a") == {number: "", 99: "Invalid job id specified"}


# Nodes, partitions, configuration


def test_nodes_are_ordered_about(site: Site) -> None:
    root = site.user()
    with Agent(site):
        root.call("UpdateNodes", spurctld_pb2.UpdateNodesRequest(node_list="ALL", state="drain", reason="new fan"))
        node = root.nodes()["n1"]
        assert (node.drain, node.reason, node.reason_user) == (True, "new fan", "root")
        assert node.reason_at > 0
        root.call("UpdateNodes", spurctld_pb2.UpdateNodesRequest(node_list="n1", state="RESUME"))
        assert not root.nodes()["n1"].drain
        request = spurctld_pb2.UpdateNodesRequest(node_list="n1", state="flying", reason="x")
        assert refused(root.call, "UpdateNodes", request)[0] == "INVALID_ARGUMENT"
        request = spurctld_pb2.UpdateNodesRequest(node_list="n7", state="drain", reason="x")
        assert refused(root.call, "UpdateNodes", request)[1] == "Invalid node name specified"


def test_a_silent_node_is_shown_so(make_site: MakeSite) -> None:
    site = make_site(config={"controller": {"heartbeat_timeout_secs": 0.5}})
    with Agent(site):
        wait_for(lambda: site.user().nodes()["n1"].not_responding, "n1 does not respond")
        assert (site.user().nodes()["n1"].down, site.user().nodes()["n1"].reason) == (True, "Not responding")


def test_partitions_and_configuration_are_shown(site: Site) -> None:
    shown = site.user().call("ListPartitions", spurctld_pb2.ListPartitionsRequest()).partitions
    assert [(one.name, one.nodes, one.is_default, one.total_cpus) for one in shown] == [("main", "n1", True, 4)]
    entries = site.user().call("GetConfig", spurctld_pb2.GetConfigRequest()).entries
    assert entries["ClusterName"] == "test"
    assert entries["MinJobAge"] == "300 sec"
    assert entries["SlurmctldPort"] == site.address.rpartition(":")[2]
