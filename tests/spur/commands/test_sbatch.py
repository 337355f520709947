"""sbatch: what it asks of the controller, and what it makes of the answer."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from spur.options import Support, Takes
from spur.pb import common_pb2
from spur.pb import spurctld_pb2 as pb
from spur.sbatchoptions import OPTIONS
from spur.times import UNLIMITED
from tests.spur.controllerserver import BIN, ControllerServer, Refusal, Result

SCRIPT = b"#!/bin/sh\nexit 0\n"
Submit = Callable[..., Any]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_bytes(SCRIPT)
    return tmp_path


@pytest.fixture
def submit(here: Path) -> Submit:
    """Submits with these options, and tells what reached the controller."""

    def submitted(*words: str, env: dict[str, str] | None = None, stdin: bytes = b"") -> Any:
        with ControllerServer() as server:
            result = server.run(here, "sbatch", *words, env=env, stdin=stdin)
            assert (result.stderr, result.code) == ("", 0)
            (request,) = server.requests
            return request.job

    return submitted


def test_a_script_reaches_the_controller_as_it_is_with_where_it_came_from(submit: Submit, here: Path) -> None:
    job = submit("job.sh", "a", "b c")
    assert job.script == SCRIPT
    assert list(job.arguments) == ["a", "b c"]
    assert (job.name, job.command, job.work_dir) == ("job.sh", str(here / "job.sh"), str(here))
    assert job.submit_host == socket.gethostname().partition(".")[0]
    assert job.session_id == os.getsid(0)
    assert job.submit_line == "sbatch job.sh a 'b c'"


def test_what_was_not_asked_for_is_not_there(submit: Submit) -> None:
    job = submit("job.sh")
    for field in ("time_limit_s", "tasks", "cpus_per_task", "memory_mb", "memory_per_cpu_mb", "gpus", "gpus_per_task"):
        assert not job.HasField(field), field
    for field in ("requeue", "nodes", "tasks_per_node"):
        assert not job.HasField(field), field
    assert (job.partition, job.stdout_path, job.export_spec, job.nice) == ("", "", "", 0)


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["-J", "x y"], "name", "x y"),
        (["--job-name="], "name", ""),
        (["-o", "o%j"], "stdout_path", "o%j"),
        (["-o", "none"], "stdout_path", "/dev/null"),
        (["-e", "e"], "stderr_path", "e"),
        (["-i", "i"], "stdin_path", "i"),
        (["-p", "main"], "partition", "main"),
        (["-t", "90"], "time_limit_s", 5400),
        (["-t", "1:01"], "time_limit_s", 120),
        (["-t", "2-3"], "time_limit_s", 51 * 3600),
        (["-t", "0"], "time_limit_s", UNLIMITED),
        (["-c4"], "cpus_per_task", 4),
        (["-n", "3"], "tasks", 3),
        (["-N2"], "nodes", 2),
        (["-N", "1-3"], "nodes", 1),
        (["--ntasks-per-node=3", "-N2"], "tasks", 6),
        (["--mem=2G"], "memory_mb", 2048),
        (["--mem", "0"], "memory_mb", 0),
        (["--mem-per-cpu=100"], "memory_per_cpu_mb", 100),
        (["-G", "2"], "gpus", 2),
        (["--gpus-per-task=1", "-n2"], "gpus_per_task", 1),
        (["-H"], "hold", True),
        (["--requeue"], "requeue", True),
        (["--no-requeue"], "requeue", False),
        (["--requeue", "--no-requeue"], "requeue", False),
        (["--open-mode=append"], "append", True),
        (["--nice"], "nice", 100),
        (["--nice=-5"], "nice", -5),
        (["-A", "proj"], "account", "proj"),
        (["--comment", "a b"], "comment", "a b"),
        (["-w", "n[1-2]"], "node_list", "n[1-2]"),
        (["-x", "n3"], "exclude", "n3"),
        (["-D", "/tmp/"], "work_dir", "/tmp"),
        (["--export=NONE"], "export_spec", "NONE"),
        (["--propagate=NONE"], "limits", {}),
    ],
)
def test_options_become_the_job(submit: Submit, words: list[str], field: str, value: object) -> None:
    job = submit(*words, "job.sh")
    if job.DESCRIPTOR.fields_by_name[field].has_presence:
        assert job.HasField(field)
    assert getattr(job, field) == value


@pytest.mark.parametrize(
    ("words", "gres"),
    [
        (["--gres=gpu:2"], [("gpu", "", 2)]),
        (["--gres=gres:gpu:a100:2,shard"], [("gpu", "a100", 2), ("shard", "", 1)]),
        (["--gres=none"], []),
        (["--gpus-per-node=a100:2"], [("gpu", "a100", 2)]),
        (["-G", "a100:4"], [("gpu", "a100", 4)]),
    ],
)
def test_generic_resources_are_those_of_each_node(submit: Submit, words: list[str], gres: list[Any]) -> None:
    job = submit(*words, "job.sh")
    assert [(one.name, one.type, one.count) for one in job.gres_per_node] == gres
    assert not job.HasField("gpus")


def test_the_directory_is_relative_to_the_own_one(submit: Submit, here: Path) -> None:
    assert submit("-D", "sub/dir", "job.sh").work_dir == f"{here}/sub/dir"


def test_the_command_line_wins_over_the_environment_and_that_over_the_script(submit: Submit, here: Path) -> None:
    (here / "job.sh").write_text("#!/bin/sh\n#SBATCH -J script -p script -t 1 --mem=7\n")
    env = {"SBATCH_JOB_NAME": "environment", "SBATCH_PARTITION": "environment", "SBATCH_MEM_PER_CPU": "9"}
    job = submit("-J", "line", "job.sh", env=env)
    assert (job.name, job.partition, job.time_limit_s) == ("line", "environment", 60)
    assert job.memory_per_cpu_mb == 9 and not job.HasField("memory_mb")


@pytest.mark.parametrize(("value", "held"), [("", True), ("yes", True), ("1", True), ("no", False), ("0", False)])
def test_a_variable_gives_an_option_without_argument_only_with_certain_values(
    submit: Submit, value: str, held: bool
) -> None:
    job = submit("job.sh", env={"SBATCH_NO_REQUEUE": value})
    assert job.HasField("requeue") == held


def test_a_script_comes_from_standard_input_or_is_wrapped(submit: Submit) -> None:
    piped = submit(stdin=b"#!/bin/sh\n#SBATCH -c 3\n\xff\n")
    assert (piped.name, piped.command, piped.cpus_per_task) == ("sbatch", "", 3)
    assert piped.script.endswith(b"\xff\n")
    wrapped = submit("--wrap", "echo a b")
    assert (wrapped.name, wrapped.command) == ("wrap", "")
    assert wrapped.script.endswith(b"\necho a b\n")


def test_a_script_is_found_on_the_path_but_here_first(submit: Submit, here: Path) -> None:
    (here / "bin").mkdir()
    (here / "bin" / "job.sh").write_bytes(SCRIPT)
    (here / "bin" / "other.sh").write_bytes(SCRIPT)
    path = {"PATH": f"/none:{here}/bin"}
    assert submit("job.sh", env=path).command == str(here / "job.sh")
    assert submit("other.sh", env=path).command == str(here / "bin" / "other.sh")


def test_the_environment_is_taken_along_with_where_it_was_submitted(submit: Submit, here: Path) -> None:
    job = submit("-D", "/tmp", "job.sh", env={"FOO": "b\udcffr=", "SLURM_UMASK": "0077"})
    entries = dict(entry.split(b"=", 1) for entry in job.environment)
    assert entries[b"FOO"] == b"b\xffr="
    assert entries[b"SLURM_SUBMIT_DIR"] == bytes(here)
    assert entries[b"SLURM_JOB_NAME"] == b"job.sh"
    assert entries[b"SLURM_SUBMIT_HOST"] == job.submit_host.encode()
    assert b"SLURM_PRIO_PROCESS" in entries


def test_the_umask_of_a_process_is_the_jobs(here: Path) -> None:
    with ControllerServer() as server:
        server.process(here, "sbatch", "job.sh", umask=0o027, cwd=here)
        server.process(here, "sbatch", "job.sh", umask=0o027, cwd=here, env={"SLURM_UMASK": "0077"})
        assert [request.job.umask for request in server.requests] == [0o027, 0o077]


def test_a_name_that_is_no_utf8_is_refused(here: Path) -> None:
    with ControllerServer() as server:
        result = server.process(here, "sbatch", "-J", os.fsdecode(b"\xff"), "job.sh", cwd=here)
        assert result.code == 1
        assert result.stderr.startswith("sbatch: error: name of the job is not UTF-8")
        assert not server.requests


REFUSED = [option for option in OPTIONS if option.support is Support.REFUSED]


@pytest.mark.parametrize("option", REFUSED, ids=lambda option: option.name)
def test_what_slurm_has_and_spur_does_not_is_refused_wherever_it_is_asked_for(here: Path, option: Any) -> None:
    word = f"--{option.name}" + ("" if option.takes is Takes.NOTHING else "=x")
    (here / "asks.sh").write_text(f"#!/bin/sh\n#SBATCH {word}\n")
    with ControllerServer() as server:
        results = [server.run(here, "sbatch", word, "job.sh"), server.run(here, "sbatch", "asks.sh")]
        if option.variable:
            results.append(server.run(here, "sbatch", "job.sh", env={option.variable: "1"}))
        assert not server.requests
    for result in results:
        assert result.code == 1
        assert f"--{option.name} is not supported by Spur" in result.stderr
        assert result.stderr.count("\n") == 1


def test_what_is_accepted_without_effect_submits(submit: Submit) -> None:
    submit("--wckey=x", "--spread-job", "--contiguous", "--time-min=3", "--wait-all-nodes=1", "job.sh")


def test_a_file_without_end_is_no_script(here: Path) -> None:
    with ControllerServer() as server:
        result = server.run(here, "sbatch", "/dev/zero")
    assert result == Result("", "sbatch: error: Batch script is larger than 268435456 bytes\n", 1)


def test_lines_of_another_batch_system_are_not_passed_over_in_silence(here: Path) -> None:
    (here / "pbs.sh").write_text("#!/bin/sh\n#PBS -N x\n")
    with ControllerServer() as server:
        assert "#PBS lines are not read" in server.run(here, "sbatch", "pbs.sh").stderr
        assert server.run(here, "sbatch", "--ignore-pbs", "pbs.sh").stderr == ""
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("words", "printed"),
    [([], "Submitted batch job 42\n"), (["--parsable"], "42\n"), (["-Q"], ""), (["-Q", "--parsable"], "")],
)
def test_the_number_of_the_job_is_printed(here: Path, words: list[str], printed: str) -> None:
    with ControllerServer() as server:
        assert server.run(here, "sbatch", *words, "job.sh") == Result(printed, "", 0)


def test_a_refusal_is_told_in_slurms_words_with_the_note_before_it(here: Path) -> None:
    refusal = Refusal("Invalid partition name specified", note="invalid partition specified: nopart")
    with ControllerServer(refusals={"SubmitJob": refusal}) as server:
        assert server.run(here, "sbatch", "-p", "nopart", "job.sh") == Result(
            "",
            "sbatch: error: invalid partition specified: nopart\n"
            "sbatch: error: Batch job submission failed: Invalid partition name specified\n",
            1,
        )
        assert server.run(here, "sbatch", "--test-only", "job.sh").stderr.endswith(
            "allocation failure: Invalid partition name specified\n"
        )
        assert server.run(here, "sbatch", "job.sh", env={"SLURM_EXIT_ERROR": "77"}).code == 77


def test_test_only_says_where_and_when(here: Path) -> None:
    reply = pb.SubmitJobReply(job_id=5, start_at=1796119200, num_cpus=2, nodes="n1", partition="main")
    with ControllerServer(submitted=reply) as server:
        result = server.run(here, "sbatch", "--test-only", "job.sh", env={"SLURM_TIME_FORMAT": "%s"})
        assert (
            result.stderr == "sbatch: Job 5 to start at 1796119200 using 2 processors on nodes n1 in partition main\n"
        )
        assert (result.stdout, result.code) == ("", 0)
        assert server.requests[0].test_only


def _ended(state: int, raw: int) -> pb.JobInfo:
    return pb.JobInfo(job_id=42, state=state, exit_code=raw)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "raw", "code"),
    [
        (common_pb2.COMPLETED, 0, 0),
        (common_pb2.FAILED, 7 << 8, 7),
        (common_pb2.FAILED, 255 << 8, 255),
        (common_pb2.FAILED, 9, 1),
        (common_pb2.CANCELLED, 15, 1),
        (common_pb2.CANCELLED, 0, 1),
        (common_pb2.TIMEOUT, 0, 1),
        (common_pb2.NODE_FAIL, 1, 1),
        (common_pb2.OUT_OF_MEMORY, 253, 1),
    ],
)
def test_wait_ends_as_the_job_did(here: Path, state: int, raw: int, code: int) -> None:
    with ControllerServer(jobs=[_ended(state, raw)]) as server:
        assert server.run(here, "sbatch", "--wait", "job.sh") == Result("Submitted batch job 42\n", "", code)


def test_wait_stays_while_the_job_runs_and_while_the_controller_is_away(here: Path) -> None:
    running = pb.JobInfo(job_id=42, state=common_pb2.RUNNING)
    completing = pb.JobInfo(job_id=42, state=common_pb2.FAILED, exit_code=3 << 8, completing=True)
    with ControllerServer(jobs=[running]) as server:
        looks: list[str] = []

        def change(method: str) -> None:
            looks.append(method)
            match looks.count("ListJobs"):
                case 2:
                    server.jobs = [completing]
                case 3:
                    server.refusals = {"ListJobs": Refusal("restarting", grpc.StatusCode.UNAVAILABLE)}
                case 4:
                    server.refusals, server.jobs = {}, [_ended(common_pb2.FAILED, 3 << 8)]
                case _:
                    pass

        server.before = change
        result = server.run(here, "sbatch", "-W", "job.sh")
    assert (result.code, looks) == (3, ["SubmitJob", *["ListJobs"] * 4])
    assert result.stderr == "sbatch: error: Currently unable to load job state information, retrying\n"


def test_a_job_whose_record_is_gone_is_no_success(here: Path) -> None:
    with ControllerServer() as server:
        result = server.run(here, "sbatch", "-W", "job.sh")
    assert result.code == 1
    assert "exit code is lost" in result.stderr


def test_wait_ends_like_any_program_on_a_signal(here: Path) -> None:
    with ControllerServer(jobs=[pb.JobInfo(job_id=42, state=common_pb2.RUNNING)]) as server:
        process = subprocess.Popen(
            [BIN / "sbatch", "-W", "job.sh"],
            env=server.environ(here),
            cwd=here,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        timer = threading.Timer(60, process.kill)
        timer.start()
        assert process.stdout.readline() == b"Submitted batch job 42\n"
        process.send_signal(2)
        _, stderr = process.communicate()
        timer.cancel()
    assert (process.returncode, stderr) == (-2, b"")


def test_help_lists_what_is_there_and_what_is_without_effect(here: Path) -> None:
    with ControllerServer() as server:
        text = server.run(here, "sbatch", "--help").stdout
    assert "--cpus-per-task=NUMBER" in text
    assert "Accepted, without effect:" in text and "--wckey=KEY" in text
    assert "--array" not in text
    assert all(len(line) <= 120 for line in text.splitlines())
