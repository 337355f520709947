"""scontrol: what it asks of the controller, and what it says. What it prints of records is held against Slurm's."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from spur.pb import common_pb2
from spur.pb import spurctld_pb2 as pb
from tests.spur.controllerserver import ControllerServer, Refusal, Result

GONE = "Invalid job id specified"


@pytest.mark.parametrize(
    ("words", "requests"),
    [
        (["hold", "7"], [pb.HoldJobRequest(job_id=7)]),
        (["hold", "7,8", "9"], [pb.HoldJobRequest(job_id=number) for number in (7, 8, 9)]),
        (["release", "jobid=7"], [pb.HoldJobRequest(job_id=7, release=True)]),
        (["requeue", "7"], [pb.RequeueJobRequest(job_id=7)]),
        (["requeuehold", "7"], [pb.RequeueJobRequest(job_id=7, hold=True)]),
        (["suspend", "7"], [pb.SuspendJobRequest(job_id=7)]),
        (["resume", "7"], [pb.SuspendJobRequest(job_id=7, resume=True)]),
        (["RELEASE", "7"], [pb.HoldJobRequest(job_id=7, release=True)]),
        (["-o", "requ", "7"], [pb.RequeueJobRequest(job_id=7)]),
        (
            ["update", "NodeName=n[1-2]", "State=DRAIN", "Reason=bad memory"],
            [pb.UpdateNodesRequest(node_list="n[1-2]", state="DRAIN", reason="bad memory")],
        ),
        (["update", "node=n1", "state=resume"], [pb.UpdateNodesRequest(node_list="n1", state="RESUME")]),
        (
            ["upd", "reason=x", "STATE=down", "nodename=ALL"],
            [pb.UpdateNodesRequest(node_list="ALL", state="DOWN", reason="x")],
        ),
        (["update", "nodename=n1", "state=und"], [pb.UpdateNodesRequest(node_list="n1", state="UNDRAIN")]),
        (["update", "nodename=n1", "reason=other"], [pb.UpdateNodesRequest(node_list="n1", reason="other")]),
    ],
)
def test_a_change_is_asked_for(words: list[str], requests: list[object], tmp_path: Path) -> None:
    with ControllerServer() as server:
        assert server.run(tmp_path, "scontrol", *words) == Result("", "", 0)
    assert server.requests == requests


@pytest.mark.parametrize(
    ("words", "method", "stderr"),
    [
        (["hold", "7"], "HoldJob", f"{GONE} for job 7\nslurm_suspend error: {GONE}\n"),
        (["release", "7"], "HoldJob", f"{GONE} for job 7\nslurm_suspend error: {GONE}\n"),
        (["requeue", "7"], "RequeueJob", f"{GONE} for job 7\n"),
        (["suspend", "7"], "SuspendJob", f"{GONE} for job 7\n"),
        (["update", "nodename=n9", "state=resume"], "UpdateNodes", f"slurm_update error: {GONE}\n"),
    ],
)
def test_a_refusal_is_told_in_slurms_words(words: list[str], method: str, stderr: str, tmp_path: Path) -> None:
    with ControllerServer(refusals={method: Refusal(GONE)}) as server:
        assert server.run(tmp_path, "scontrol", *words) == Result("", stderr, 1)
        assert server.run(tmp_path, "scontrol", "-Q", *words) == Result("", "", 1)


def test_a_word_that_is_no_job_is_refused_and_the_others_are_done(tmp_path: Path) -> None:
    with ControllerServer() as server:
        result = server.run(tmp_path, "scontrol", "requeue", "abc", "7")
    assert result == Result("", f"{GONE} for job abc\n", 1)
    assert server.requests == [pb.RequeueJobRequest(job_id=7)]


def test_jobs_are_held_by_name(tmp_path: Path) -> None:
    jobs = [
        pb.JobInfo(job_id=1, state=common_pb2.PENDING, job=common_pb2.JobDescription(name="x")),
        pb.JobInfo(job_id=2, state=common_pb2.RUNNING, job=common_pb2.JobDescription(name="x")),
        pb.JobInfo(job_id=3, state=common_pb2.PENDING, job=common_pb2.JobDescription(name="y")),
    ]
    with ControllerServer(jobs=jobs) as server:
        assert server.run(tmp_path, "scontrol", "hold", "jobname=x") == Result("", "", 0)
        assert server.run(tmp_path, "scontrol", "release", "JobName=z") == Result("", "", 0)
    assert [request for request in server.requests if isinstance(request, pb.HoldJobRequest)] == [
        pb.HoldJobRequest(job_id=1)
    ]


@pytest.mark.parametrize(
    ("words", "stderr"),
    [
        (["update", "nodename=n1", "state=foo"], "Invalid input: state=foo\nRequest aborted\n"),
        (["update", "nodename=n1", "state=dr", "reason=x"], "Invalid input: state=dr\nRequest aborted\n"),
        (["update", "nodename=n1", "state=down"], "You must specify a reason when DOWNING or DRAINING a node."),
        (
            ["update", "nodename=n1", "state=down", "reason=a", "b"],
            "scontrol: error: Invalid input: b  Request aborted\n",
        ),
        (["update", "jobid=7", "timelimit=5"], "scontrol: error: update jobid is not supported by Spur"),
        (["update", "partitionname=main", "state=up"], "scontrol: error: update partitionname is not supported"),
        (["reconfigure"], "scontrol: error: reconfigure is not supported by Spur"),
        (["show", "topology"], "scontrol: error: show topology is not supported by Spur"),
        (["show", "hostnames", "n[3-1]"], "Invalid hostlist: n[3-1]\n"),
        (["--json", "show", "job"], "scontrol: error: --json is not supported by Spur"),
    ],
)
def test_what_makes_no_sense_or_is_not_there_is_refused(words: list[str], stderr: str, tmp_path: Path) -> None:
    with ControllerServer() as server:
        result = server.run(tmp_path, "scontrol", *words)
    assert result.stdout == "" and result.stderr.startswith(stderr)
    assert not server.requests


SCRIPT = b"#!/bin/sh\n\xff\n"


def test_a_script_is_copied_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ControllerServer(jobs=[pb.JobInfo(job_id=7, state=common_pb2.RUNNING, script=SCRIPT)]) as server:
        assert (
            server.run(tmp_path, "scontrol", "write", "batch_script", "7", "-").stdout.encode(errors="surrogateescape")
            == SCRIPT
        )
        assert server.run(tmp_path, "scontrol", "write", "batch_script", "7") == Result(
            "batch script for job 7 written to slurm-7.sh\n", "", 0
        )
        assert server.run(tmp_path, "scontrol", "write", "batch", "7", "copy").code == 0
        nowhere = server.run(tmp_path, "scontrol", "write", "batch_script", "7", "/no/such/dir/x")
        gone = server.run(tmp_path, "scontrol", "write", "batch_script", "8", "-")
    assert server.requests[0] == pb.ListJobsRequest(job_ids=[7], with_script=True)
    assert (tmp_path / "slurm-7.sh").read_bytes() == (tmp_path / "copy").read_bytes() == SCRIPT
    assert nowhere == Result("", "failed to open file `/no/such/dir/x`: No such file or directory\n", 0)
    assert gone == Result("", f"job script retrieval failed: {GONE}\n", 0)


def test_a_script_of_somebody_else_is_not_given(tmp_path: Path) -> None:
    denied = Refusal("Access/permission denied", grpc.StatusCode.PERMISSION_DENIED)
    with ControllerServer(refusals={"ListJobs": denied}) as server:
        result = server.run(tmp_path, "scontrol", "write", "batch_script", "7", "-")
    assert result.stderr == "job script retrieval failed: Access/permission denied\n"


def test_the_configuration_is_listed_and_the_controller_pinged(tmp_path: Path) -> None:
    config = {"ClusterName": "lab", "AccountingStorageExternalHost": "(null)", "SLURM_VERSION": "0.1.0"}
    with ControllerServer(config=config, at=1796119200.0) as server:
        result = server.run(tmp_path, "scontrol", "show", "config", env={"SLURM_TIME_FORMAT": "%s"})
    assert result.stdout == (
        "Configuration data as of 1796119200\n"
        "AccountingStorageExternalHost = (null)\n"
        "ClusterName             = lab\n"
        "SLURM_VERSION           = 0.1.0\n"
        "\n"
        "Slurmctld(primary) at vm is UP\n"
    )


def test_jobs_on_their_way_out_are_listed(tmp_path: Path) -> None:
    job = pb.JobInfo(job_id=7, state=common_pb2.FAILED, completing=True, nodes="n[1-2]", ended_at=1796119200)
    with ControllerServer(jobs=[job, pb.JobInfo(job_id=8, state=common_pb2.RUNNING)], at=1796119265.0) as server:
        result = server.run(tmp_path, "scontrol", "completing", env={"SLURM_TIME_FORMAT": "%s"})
    assert result.stdout == "JobId=7 EndTime=1796119200 CompletingTime=00:01:05 Nodes(COMPLETING)=n[1-2] \n"


def test_hosts_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("n2\nn1,n1\nn3\n")
    with ControllerServer() as server:
        assert server.run(tmp_path, "scontrol", "show", "hostlist", f"{tmp_path}/hosts").stdout == "n[2,1,1,3]\n"
        assert server.run(tmp_path, "scontrol", "show", "hostlistsorted", f"{tmp_path}/hosts").stdout == "n[1,1-3]\n"


def test_hosts_of_the_own_job_need_no_argument(tmp_path: Path) -> None:
    with ControllerServer() as server:
        result = server.run(tmp_path, "scontrol", "show", "hostname", env={"SLURM_JOB_NODELIST": "n[1-2]"})
    assert result == Result("n1\nn2\n", "", 0)


def test_keywords_come_from_standard_input_where_none_is_given(tmp_path: Path) -> None:
    lines = b"show hostnames n[1-2]\n\nbogus\nhold 7\nupdate nodename=n1 state=drain reason='a b'\nquit\nhold 8\n"
    with ControllerServer() as server:
        result = server.run(tmp_path, "scontrol", stdin=lines)
        assert server.run(tmp_path, "scontrol", stdin=b"").code == 0
    assert (result.stderr, result.code) == ("invalid keyword: bogus\n", 1)
    assert result.stdout.startswith("scontrol: show hostnames n[1-2]\nn1\nn2\nscontrol: \nscontrol: bogus\n")
    assert server.requests == [
        pb.HoldJobRequest(job_id=7),
        pb.UpdateNodesRequest(node_list="n1", state="DRAIN", reason="a b"),
    ]
