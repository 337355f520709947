"""sbatch: submit a batch script."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from spur import batchscript, client, jobenvironment, submission, times
from spur.batchscript import DirectiveError, ScriptError
from spur.client import ControllerError
from spur.console import Console, Environ, Failure, read_options, refusal, run
from spur.jobview import JobState, JobView, decode
from spur.numerals import number
from spur.options import Given, OptionError, Support, Takes, parse
from spur.sbatchoptions import NOT_IN_SCRIPTS, OPTIONS
from spur.submission import Origin, Request, Script

if TYPE_CHECKING:
    from spur.pb.common_pb2 import JobDescription
    from spur.pb.spurctld_pb2 import SubmitJobReply

USAGE = "Usage: sbatch [OPTIONS...] [SCRIPT [ARGUMENTS...]]"
DESCRIPTION = """\
Submit a batch script: a file, or what comes from standard input. Options may also stand in #SBATCH lines before the
script's first command, or in SBATCH_ variables; those win over the lines, and the command line wins over both."""
BAD_OPTION_CODE = 255
MAX_SCRIPT_BYTES = 256 * 2**20  # more than any controller may be told to take; /dev/zero is no script
WAIT_INTERVAL_S = (0.2, 5.0)  # how often --wait asks at first, and at the longest


def main() -> None:
    sys.exit(run("sbatch", sbatch))


def sbatch(words: Sequence[str], environ: Environ, console: Console) -> int:
    try:
        return _sbatch(words, environ, console)
    except Failure as failure:
        code = number(environ.get("SLURM_EXIT_ERROR", ""), 255)
        if failure.code == 1 and code is not None:
            failure.code = code
        raise


def _sbatch(words: Sequence[str], environ: Environ, console: Console) -> int:
    on_line, rest = read_options(
        console,
        words,
        OPTIONS,
        permute=False,
        usage=USAGE,
        description=DESCRIPTION,
        bad_option_code=BAD_OPTION_CODE,
    )
    script = read_script(submission.read([on_line]), rest, environ, console)
    in_script = () if any(one.name == "wrap" for one in on_line) else from_script(script, rest)
    given = [*in_script, *from_environment(environ), *on_line]
    request = submission.read([in_script, list(from_environment(environ)), on_line])
    submission.check(request)
    if batchscript.has_pbs_lines(script.content) and all(one.name != "ignore-pbs" for one in given):
        console.say("sbatch: warning: #PBS lines are not read; --ignore-pbs says that this is meant")
    if request.verbose and not request.quiet:
        _tell_options(given, console)
    job = submission.message(request, script, _origin(request, words), _environment(request, environ, script))
    try:
        reply = _submit(job, request.test_only, environ)
    except ControllerError as error:
        says = "allocation failure" if request.test_only else "sbatch: error: Batch job submission failed"
        client.tell(console, error, f"{says}: {error.text}")
        raise Failure(plain=True) from None
    if request.test_only:
        return _tell_estimate(reply, environ, console)
    if reply.warning:
        console.say(f"sbatch: {reply.warning}")
    if not request.quiet:
        console.print(f"{reply.job_id}" if request.parsable else f"Submitted batch job {reply.job_id}")
        console.stdout.flush()
    return wait(reply.job_id, environ, console) if request.wait else 0


def _submit(job: JobDescription, test_only: bool, environ: Environ) -> SubmitJobReply:
    from spur.pb.spurctld_pb2 import SubmitJobRequest

    with client.connect(environ) as controller:
        return controller.call(controller.stub.SubmitJob, SubmitJobRequest(job=job, test_only=test_only))


def read_script(request: Request, rest: Sequence[str], environ: Environ, console: Console) -> Script:
    """The script that the words name, wrap or pipe in. Failure: it cannot be read, or is none."""
    if request.wrap is not None:
        if rest:
            raise Failure("Script arguments not permitted with --wrap option")
        return Script(batchscript.wrap(os.fsencode(request.wrap)), (), "", "wrap")
    path = _find(rest[0], environ) if rest else ""
    try:
        content = _content(path) if rest else console.stdin.read(MAX_SCRIPT_BYTES + 1)
    except OSError:
        raise Failure(f"Unable to open file {path}") from None
    if len(content) > MAX_SCRIPT_BYTES:
        raise Failure(f"Batch script is larger than {MAX_SCRIPT_BYTES} bytes")
    try:
        batchscript.check(content)
    except ScriptError as error:
        raise Failure(*error.lines) from None
    name = os.path.basename(path) if rest else "sbatch"
    return Script(content, tuple(rest[1:]), os.path.abspath(path) if rest else "", name)


def _find(name: str, environ: Environ) -> str:
    """The file that `name` means: one here, or else, as a shell finds programs, one on PATH."""
    if "/" in name or os.path.exists(name):
        return name
    for directory in environ.get("PATH", "").split(":"):
        path = os.path.join(directory or ".", name)
        if os.path.isfile(path) and os.access(path, os.R_OK):
            return path
    return name


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_SCRIPT_BYTES + 1)
    except IsADirectoryError:
        return b""


def from_script(script: Script, rest: Sequence[str]) -> list[Given]:
    """The options of the #SBATCH lines. Failure: they cannot be read, or ask for what Spur does not have."""
    name = rest[0] if rest else "stdin"
    try:
        words = batchscript.directives(script.content, name)
    except DirectiveError as error:
        raise Failure(f"sbatch: fatal: {error}", plain=True) from None
    try:
        given, left = parse(words, OPTIONS, permute=False)
    except OptionError as error:
        hint = 'Try "sbatch --help" for more information'
        raise Failure(f"sbatch: {error}", hint, code=BAD_OPTION_CODE, plain=True) from None
    if left:
        raise Failure(f"Invalid directive found in batch script: {left[0]}", code=BAD_OPTION_CODE)
    for one in given:
        if one.option.support is Support.REFUSED:
            raise refusal(one)
    return [one for one in given if one.name not in NOT_IN_SCRIPTS]


def from_environment(environ: Environ) -> Iterator[Given]:
    """Options that SBATCH_ variables give. One without an argument is given by an empty value, yes or a number."""
    for option in OPTIONS:
        value = environ.get(option.variable) if option.variable else None
        if value is None:
            continue
        if option.takes is Takes.NOTHING:
            if value and value.lower() != "yes" and not number(value):
                continue
            value = None
        given = Given(option, value)
        if option.support is Support.REFUSED:
            raise Failure(f"{option.variable}: {refusal(given).lines[0]}")
        yield given


def _tell_options(given: Sequence[Given], console: Console) -> None:
    line = f"sbatch: {'-' * 20} {'-' * 20}"
    console.say("sbatch: defined options")
    console.say(line)
    for name, value in sorted({one.name: "set" if one.value is None else one.value for one in given}.items()):
        console.say(f"sbatch: {name:<20}: {value}")
    console.say(line)
    console.say("sbatch: end of defined options")


def _origin(request: Request, words: Sequence[str]) -> Origin:
    try:
        directory = os.path.join(os.getcwd(), request.chdir or "")
    except OSError as error:
        if not os.path.isabs(request.chdir or ""):
            raise Failure(f"getcwd failed: {error.strerror}") from None
        directory = request.chdir or ""
    own = os.umask(0o077)
    os.umask(own)
    return Origin(
        directory=directory.rstrip("/") or "/",
        host=socket.gethostname().partition(".")[0],
        session_id=os.getsid(0),
        umask=jobenvironment.umask(os.environb, own),
        limits=jobenvironment.limits(request.propagate),
        line=shlex.join(["sbatch", *words]),
    )


def _environment(request: Request, environ: Environ, script: Script) -> list[bytes]:
    facts = {
        "SLURM_JOB_NAME": script.default_name if request.name is None else request.name,
        "SLURM_PRIO_PROCESS": str(os.getpriority(os.PRIO_PROCESS, 0)),
        "SLURM_SUBMIT_DIR": _own_directory(),
        "SLURM_SUBMIT_HOST": socket.gethostname().partition(".")[0],
    }
    return jobenvironment.environment(
        request.export,
        {os.fsencode(name): os.fsencode(value) for name, value in environ.items()},
        {os.fsencode(name): os.fsencode(value) for name, value in facts.items()},
    )


def _own_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"


def _tell_estimate(reply: SubmitJobReply, environ: Environ, console: Console) -> int:
    """What --test-only comes to, once the controller would take the job."""
    if not reply.start_at:
        console.say("sbatch: The job would be taken; when it would start is not known")
        return 0
    when = times.format_instant(reply.start_at, environ)
    console.say(
        f"sbatch: Job {reply.job_id} to start at {when} using {reply.num_cpus} processors "
        f"on nodes {reply.nodes} in partition {reply.partition}"
    )
    return 0


def wait(job_id: int, environ: Environ, console: Console) -> int:
    """Stay until the job has ended, however often the controller is away; its exit code.

    1 stands for an end by a signal, and for one that was no completion although nothing says so in the exit status.
    """
    interval_s, longest_s = WAIT_INTERVAL_S
    told = False
    while True:
        time.sleep(interval_s)
        interval_s = min(interval_s * 1.5, longest_s)
        try:
            job = _look(job_id, environ)
        except ControllerError as error:
            if error.text not in (client.NO_CONTACT, client.NO_ANSWER, client.NOT_PROVEN):
                raise
            if not told:
                console.complain("Currently unable to load job state information, retrying")
            told = True
            continue
        if job is None:
            console.complain(f"job {job_id} is not known any more, its exit code is lost")
            return 1
        if job.ended and not job.completing:
            code = os.WEXITSTATUS(job.exit_code) if os.WIFEXITED(job.exit_code) else 1
            return code or int(job.state is not JobState.COMPLETED)


def _look(job_id: int, environ: Environ) -> JobView | None:
    """The job as it stands. Each look has a token of its own: a job may take longer than one is good for."""
    from spur.pb.spurctld_pb2 import ListJobsRequest

    with client.connect(environ) as controller:
        jobs = controller.call(controller.stub.ListJobs, ListJobsRequest(job_ids=[job_id])).jobs
    return decode(jobs[0]) if jobs else None
