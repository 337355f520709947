"""scancel: what it asks of the controller, and what it says. Texts and exit codes are Slurm 22.05's, tried on it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spur.pb import common_pb2
from spur.pb import spurctld_pb2 as pb
from tests.spur.controllerserver import ControllerServer, Result

STEPS, BATCH, FULL = pb.CancelJobsRequest.STEPS, pb.CancelJobsRequest.BATCH, pb.CancelJobsRequest.FULL
DENIED = "Access/permission denied"
GONE = "Invalid job id specified"
ENDED = "Job/step already completing or completed"


def job(number: int, **fields: object) -> pb.JobInfo:
    info = pb.JobInfo(job_id=number, state=common_pb2.RUNNING, uid=os.getuid(), partition="main", nodes="n[1-2]")
    info.job.name, info.job.account = "run", "proj"
    for name, value in fields.items():
        setattr(info.job if name in ("name", "account") else info, name, value)
    return info


JOBS = [
    job(1),
    job(2, name="other"),
    job(3, state=common_pb2.PENDING, nodes=""),
    job(4, uid=os.getuid() + 1),
    job(5, state=common_pb2.COMPLETED),
    job(6, partition="short", nodes="n3"),
    job(7, account="else"),
]


def cancelled(server: ControllerServer) -> list[int]:
    return [
        number for request in server.requests if isinstance(request, pb.CancelJobsRequest) for number in request.job_ids
    ]


@pytest.mark.parametrize(
    ("words", "signal", "scope"),
    [
        ([], 0, STEPS),
        (["-s", "KILL"], 0, STEPS),
        (["-s", "9"], 0, STEPS),
        (["-s", "USR1"], 10, STEPS),
        (["--signal=sigterm"], 15, STEPS),
        (["-b", "-s", "10"], 10, BATCH),
        (["-b"], 9, BATCH),
        (["-f"], 0, FULL),
        (["-f", "-s", "USR2"], 12, FULL),
        (["-f", "-b", "-s", "INT"], 2, FULL),
        (["-f", "-s", "KILL"], 9, FULL),
    ],
)
def test_a_job_is_ended_or_signalled(words: list[str], signal: int, scope: int, tmp_path: Path) -> None:
    with ControllerServer() as server:
        assert server.run(tmp_path, "scancel", "7", *words) == Result("", "", 0)
        (request,) = server.requests
    assert (list(request.job_ids), request.signal, request.scope) == ([7], signal, scope)


def test_several_jobs_may_be_named_with_options_behind_them(tmp_path: Path) -> None:
    with ControllerServer() as server:
        result = server.run(tmp_path, "scancel", "7", "8,9", "-v", "10", "--signal", "SIGTERM")
    assert cancelled(server) == [7, 8, 9, 10]
    assert len(server.requests) == 1
    assert result.stderr == "".join(f"scancel: Signal 15 to job {number}\n" for number in (7, 8, 9, 10))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Terminating job 7"),
        (["-s", "9"], "Signal 9 to job 7"),
        (["-b"], "Signal 9 to batch job 7"),
        (["-b", "-s", "CONT"], "Signal 18 to batch job 7"),
        (["-f", "-s", "CONT"], "Signal 18 to full job 7"),
    ],
)
def test_verbose_says_what_is_done(words: list[str], said: str, tmp_path: Path) -> None:
    with ControllerServer() as server:
        assert server.run(tmp_path, "scancel", "-v", "7", *words) == Result("", f"scancel: {said}\n", 0)


@pytest.mark.parametrize("error", [GONE, ENDED])
def test_a_job_that_is_gone_is_no_error_unless_it_was_to_be_signalled(error: str, tmp_path: Path) -> None:
    line = f"scancel: error: Kill job error on job id 7: {error}\n"
    with ControllerServer(errors={7: error}) as server:
        assert server.run(tmp_path, "scancel", "7") == Result("", "", 0)
        assert server.run(tmp_path, "scancel", "-v", "7") == Result("", f"scancel: Terminating job 7\n{line}", 0)
        assert server.run(tmp_path, "scancel", "-v", "-Q", "7") == Result("", "", 0)
        assert server.run(tmp_path, "scancel", "-s", "USR1", "7") == Result("", line, 1)


def test_a_job_of_somebody_else_is_an_error_of_its_own_but_the_others_are_ended(tmp_path: Path) -> None:
    with ControllerServer(errors={7: DENIED}) as server:
        result = server.run(tmp_path, "scancel", "7", "8")
    assert result == Result("", f"scancel: error: Kill job error on job id 7: {DENIED}\n", 210)
    assert cancelled(server) == [7, 8]


@pytest.mark.parametrize("word", ["abc", "0", "", "-", "12x", "[1-2]", "7.batch", "7.x"])
def test_one_id_that_is_none_stops_all_of_it(word: str, tmp_path: Path) -> None:
    with ControllerServer() as server:
        result = server.run(tmp_path, "scancel", "7", word)
    assert result == Result("", f"scancel: error: Invalid job id {word}\n", 1)
    assert not server.requests


@pytest.mark.parametrize("word", ["7_3", "7_[1-2]", "99999999999"])
def test_elements_of_arrays_are_jobs_that_are_not_there(word: str, tmp_path: Path) -> None:
    with ControllerServer() as server:
        assert server.run(tmp_path, "scancel", word) == Result("", "", 0)
    assert not server.requests


def test_steps_are_not_there(tmp_path: Path) -> None:
    with ControllerServer() as server:
        result = server.run(tmp_path, "scancel", "7.0")
    assert result == Result("", f"scancel: error: Kill job error on job step id 7: {GONE}\n", 225)


@pytest.mark.parametrize(
    ("words", "stderr"),
    [
        ([], "scancel: error: No job identification provided\n"),
        (["-s", "FOO", "7"], "Unknown job signal: FOO\n"),
        (["-s", "0", "7"], "Unknown job signal: 0\n"),
        (["-s", "", "7"], "Unknown job signal: \n"),
        (["-t", "foo"], "Invalid job state specified: foo\nValid job states are PENDING, RUNNING, and SUSPENDED\n"),
        (["-t", "R,PD"], "Invalid job state specified: R,PD\nValid job states are PENDING, RUNNING, and SUSPENDED\n"),
        (["-u", "nosuch"], "scancel: error: Invalid user name: nosuch\n"),
        (["-M", "x", "7"], "scancel: error: --clusters is not supported by Spur 0.1.0\n"),
        (["-1"], "scancel: invalid option -- '1'\nTry \"scancel --help\" for more information\n"),
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], stderr: str, tmp_path: Path) -> None:
    with ControllerServer() as server:
        assert server.run(tmp_path, "scancel", *words) == Result("", stderr, 1)
    assert not server.requests


@pytest.mark.parametrize(
    ("words", "jobs"),
    [
        (["-n", "run"], [1, 3, 4, 6, 7]),
        (["--me"], [1, 2, 3, 6, 7]),
        (["-u", str(os.getuid()), "-n", "other"], [2]),
        (["-p", "short"], [6]),
        (["-A", "else"], [7]),
        (["-t", "PENDING"], [3]),
        (["-t", "r", "-p", "main", "-A", "proj", "-n", "run"], [1, 4]),
        (["-w", "n3,n9"], [6]),
        (["-q", "normal"], []),
        (["-R", "maintenance"], []),
        (["-n", "run", "1", "3"], [1, 3]),
    ],
)
def test_filters_choose_among_the_jobs_that_have_not_ended(words: list[str], jobs: list[int], tmp_path: Path) -> None:
    with ControllerServer(jobs=JOBS) as server:
        assert server.run(tmp_path, "scancel", *words) == Result("", "", 0)
    assert cancelled(server) == jobs


def test_a_job_that_the_filters_leave_out_is_an_error(tmp_path: Path) -> None:
    with ControllerServer(jobs=JOBS) as server:
        result = server.run(tmp_path, "scancel", "-v", "-n", "nope", "-u", "root", "2", "99")
    assert result == Result(
        "",
        f"scancel: error: Kill job error on job id 2: {GONE}\n"
        f"scancel: error: Kill job error on job id 99: {GONE}\n"
        "scancel: error: No active jobs match ALL job filters, including: job_name=nope user_name=root \n",
        1,
    )
    assert cancelled(server) == []


def test_nobody_that_fits_is_no_error(tmp_path: Path) -> None:
    with ControllerServer(jobs=JOBS) as server:
        assert server.run(tmp_path, "scancel", "-n", "nope") == Result("", "", 0)
        assert server.run(tmp_path, "scancel", env={"SCANCEL_NAME": "nope"}) == Result("", "", 0)


def test_interactive_asks_for_each_job_until_it_has_an_answer(tmp_path: Path) -> None:
    with ControllerServer(jobs=JOBS) as server:
        result = server.run(tmp_path, "scancel", "-i", "1", "2", "6", stdin=b"x\n\ny\nn\n")
    ask = "Cancel job_id={} name={} partition={} [y/n]? "
    one, two, six = ask.format(1, "run", "main"), ask.format(2, "other", "main"), ask.format(6, "run", "short")
    assert result == Result(one * 3 + two + six, "", 0)
    assert cancelled(server) == [1]
