"""squeue, beyond what is held against Slurm's own output in test_goldens."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from spur.pb import common_pb2
from spur.pb import spurctld_pb2 as pb
from tests.spur.controllerserver import BIN, ControllerServer, Result


def job(number: int, state: int, **fields: object) -> pb.JobInfo:
    return pb.JobInfo(
        job_id=number,
        attempt=1,
        state=state,  # type: ignore[arg-type]
        uid=os.getuid(),
        user="somebody",
        partition="main",
        job=common_pb2.JobDescription(name="x"),
        **fields,  # type: ignore[arg-type]
    )


def test_only_what_is_asked_for_is_fetched(tmp_path: Path) -> None:
    with ControllerServer(jobs=[job(7, common_pb2.RUNNING)]) as server:
        server.run(tmp_path, "squeue", "-j", "7,9")
        server.run(tmp_path, "squeue")
    assert server.requests == [pb.ListJobsRequest(job_ids=[7, 9]), pb.ListJobsRequest()]


def test_own_jobs(tmp_path: Path) -> None:
    jobs = [job(1, common_pb2.RUNNING), job(2, common_pb2.RUNNING)]
    jobs[1].uid += 1
    with ControllerServer(jobs=jobs) as server:
        assert server.run(tmp_path, "squeue", "--me", "-h", "-o", "%i").stdout == "1\n"


@pytest.mark.parametrize(
    ("fields", "used"),
    [
        ({"started_at": 1000, "suspended_s": 100}, "1:40:00"),
        ({"started_at": 1000, "suspended_at": 4600, "suspended_s": 600}, "50:00"),
        ({"started_at": 8000}, "INVALID"),
        ({"started_at": 0}, "0:00"),
    ],
)
def test_time_in_suspension_is_not_used(fields: dict[str, float], used: str, tmp_path: Path) -> None:
    with ControllerServer(jobs=[job(1, common_pb2.RUNNING, **fields)], at=7100.5) as server:
        assert server.run(tmp_path, "squeue", "-h", "-o", "%M").stdout == f"{used}\n"


def test_a_job_that_gets_ready_is_configuring(tmp_path: Path) -> None:
    waiting = job(1, common_pb2.RUNNING, configuring=True, nodes="n[1-2]")
    with ControllerServer(jobs=[waiting]) as server:
        assert server.run(tmp_path, "squeue", "-h", "-o", "%t %T %R").stdout == "CF CONFIGURING n[1-2]\n"
        assert server.run(tmp_path, "squeue", "-h", "-t", "CF", "-o", "%i").stdout == "1\n"


def test_what_is_free_text_stands_in_place_of_the_reason(tmp_path: Path) -> None:
    held = job(1, common_pb2.PENDING, reason="JobHeldAdmin", state_desc="launch failed requeued held")
    with ControllerServer(jobs=[held]) as server:
        assert server.run(tmp_path, "squeue", "-h", "-o", "%r|%R").stdout == (
            "launch failed requeued held|(launch failed requeued held)\n"
        )


def test_an_account_that_is_not_there_is_shown_by_its_number(tmp_path: Path) -> None:
    nobody = job(1, common_pb2.RUNNING)
    nobody.user, nobody.group, nobody.uid, nobody.gid = "", "", 4242, 4343
    with ControllerServer(jobs=[nobody]) as server:
        assert server.run(tmp_path, "squeue", "-h", "-o", "%u %g").stdout == "4242 4343\n"


def test_patterns_of_files_are_shown_as_the_controller_expanded_them(tmp_path: Path) -> None:
    files = job(7, common_pb2.RUNNING)
    files.job.work_dir, files.job.stderr_path = "/work", "err.7"
    with ControllerServer(jobs=[files]) as server:
        result = server.run(tmp_path, "squeue", "-h", "-O", "STDOUT:|,STDERR:|,STDIN:|")
    assert result.stdout == "/work/slurm-7.out|/work/err.7|/dev/null|\n"


def test_a_state_that_is_not_known_here_is_not_guessed_at(tmp_path: Path) -> None:
    for state in (common_pb2.JOB_STATE_UNSPECIFIED, 99):
        with ControllerServer(jobs=[job(1, state)]) as server:
            result = server.run(tmp_path, "squeue")
        line = f"squeue: error: job 1 is in a state that this version does not know: {state}\n"
        assert result == Result("", line, 1)


def test_names_of_any_script_and_width_come_out_as_they_are(tmp_path: Path) -> None:
    named = job(1, common_pb2.RUNNING)
    named.job.name = "Größenmaß"
    with ControllerServer(jobs=[named]) as server:
        for environ in ({"LC_ALL": "C"}, {"LC_ALL": "en_US.ISO-8859-1"}, {"PYTHONIOENCODING": "ascii"}):
            assert server.process(tmp_path, "squeue", "-h", "-o", "%.5j|", env=environ).stdout == "Größe|\n"


@pytest.mark.parametrize("option", ["--json", "--yaml", "-M x"])
def test_what_is_not_there_is_refused(option: str, tmp_path: Path) -> None:
    with ControllerServer() as server:
        result = server.run(tmp_path, "squeue", *option.split())
    assert result.code == 1 and "is not supported by Spur" in result.stderr
    assert not server.requests


def test_iterate_shows_it_again_and_again(tmp_path: Path) -> None:
    with ControllerServer(jobs=[job(1, common_pb2.RUNNING)]) as server:
        process = subprocess.Popen(
            [BIN / "squeue", "-i", "1", "-o", "%i"], env=server.environ(tmp_path), stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(8)]
        process.terminate()
        process.wait()
        process.stdout.close()
    assert lines[1:4] == lines[5:8] == ["JOBID\n", "1\n", "\n"]
    assert lines[0].split()[3].count(":") == 2
