"""scancel: end jobs, or send them signals."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spur import accounts, client, hostlist, signals
from spur.client import Controller, ControllerError
from spur.console import Console, Environ, Failure, read_options, run
from spur.jobview import STATE_NAMES, JobState, JobView, decode
from spur.numerals import number
from spur.options import Given, Option, Support, Takes

USAGE = "Usage: scancel [OPTIONS...] [JOB...]"
DESCRIPTION = "End jobs, or send them a signal. With no job named, the options choose among all of them."
REFUSED, HARMLESS = Support.REFUSED, Support.HARMLESS
VALUE = Takes.VALUE

OPTIONS = (
    Option("account", VALUE, "A", (), "SCANCEL_ACCOUNT", "ACCOUNT", "only jobs of this account"),
    Option("batch", letter="b", variable="SCANCEL_BATCH", help="signal the batch script's shell alone"),
    Option("clusters", VALUE, "M", ("cluster",), metavar="NAMES", support=REFUSED),
    Option("ctld", variable="SCANCEL_CTLD", help="by way of the controller", support=HARMLESS),
    Option("full", letter="f", variable="SCANCEL_FULL", help="signal the script, what it started, and all steps"),
    Option("help", help="show this help"),
    Option("hurry", letter="H", variable="SCANCEL_HURRY", help="leave burst buffers as they are", support=HARMLESS),
    Option("interactive", letter="i", variable="SCANCEL_INTERACTIVE", help="ask before each job"),
    Option("me", help="only the caller's jobs"),
    Option("name", VALUE, "n", ("jobname",), "SCANCEL_NAME", "NAME", "only jobs of this name"),
    Option("nodelist", VALUE, "w", metavar="NODES", help="only jobs on these nodes"),
    Option("partition", VALUE, "p", (), "SCANCEL_PARTITION", "NAME", "only jobs in this partition"),
    Option("qos", VALUE, "q", (), "SCANCEL_QOS", "NAME", "only jobs of this quality of service"),
    Option("quiet", letter="Q", help="say nothing of jobs that have ended"),
    Option("reservation", VALUE, "R", metavar="NAME", help="only jobs in this reservation"),
    Option("sibling", VALUE, metavar="NAME", support=REFUSED),
    Option("signal", VALUE, "s", metavar="SIGNAL", help="send this instead of ending the job"),
    Option("state", VALUE, "t", ("states",), "SCANCEL_STATE", "STATE", "only jobs in this state"),
    Option("usage", help="show how to call it"),
    Option("user", VALUE, "u", (), "SCANCEL_USER", "USER", "only jobs of this user"),
    Option("verbose", letter="v", help="say what is done"),
    Option("version", letter="V", help="show the version"),
    Option("wckey", VALUE, variable="SCANCEL_WCKEY", metavar="KEY", help="only jobs with this key"),
)

NO_SUCH_JOB = "Invalid job id specified"
NO_SUCH_STEP = NO_SUCH_JOB  # what Slurm says of a step that is not there
ENDED_ALREADY = "Job/step already completing or completed"
# Slurm's scancel exits with the low byte of its error number.
EXIT_CODES = {
    "Access/permission denied": 2002 % 256,
    client.NO_CONTACT: 1800 % 256,
}
NO_SUCH_STEP_CODE = 2017 % 256


@dataclass(frozen=True, slots=True)
class Wish:
    """What to do, and to which jobs. A filter that is None lets every job through."""

    signal: int | None = None
    batch: bool = False
    full: bool = False
    interactive: bool = False
    verbose: bool = False
    account: str | None = None
    name: str | None = None
    nodes: str | None = None
    partition: str | None = None
    state: str | None = None
    user: str | None = None
    uid: int | None = None
    nothing_has: tuple[tuple[str, str], ...] = ()  # filters on what no job of Spur has

    @property
    def filters(self) -> bool:
        chosen = (self.account, self.name, self.nodes, self.partition, self.state, self.user)
        return any(one is not None for one in chosen) or bool(self.nothing_has)

    @property
    def ends_job(self) -> bool:
        """Whether the job itself is cancelled rather than signalled."""
        return self.signal in (None, signal.SIGKILL) and not self.batch and not (self.full and self.signal)


def main() -> None:
    sys.exit(run("scancel", scancel))


def scancel(words: Sequence[str], environ: Environ, console: Console) -> int:
    given, jobs = read_options(console, words, OPTIONS, permute=True, usage=USAGE, description=DESCRIPTION)
    wish = Wish()
    for one in (*from_environment(environ), *given):
        wish = _add(wish, one)
    for job in jobs:
        _check_id(job)
    if not jobs and not wish.filters:
        raise Failure("No job identification provided")
    targets = [word for job in jobs for word in job.split(",") if word]
    try:
        with client.connect(environ) as controller:
            if wish.filters or wish.interactive:
                return _choose_and_end(wish, targets, controller, console)
            return _end(wish, targets, controller, console)
    except ControllerError as error:
        return _tell_no_contact(wish, targets, error, console)


def from_environment(environ: Environ) -> Iterator[Given]:
    for option in OPTIONS:
        value = environ.get(option.variable) if option.variable else None
        if value is not None:
            yield Given(option, value)


def _add(wish: Wish, one: Given) -> Wish:
    """`wish` with one more option. Failure: it cannot be read."""
    value = one.value or ""
    match one.name:
        case "account":
            return replace(wish, account=value)
        case "batch":
            return replace(wish, batch=True)
        case "full":
            return replace(wish, full=True)
        case "interactive":
            return replace(wish, interactive=True)
        case "me":
            return _with_user(wish, accounts.own_name())
        case "name":
            return replace(wish, name=value)
        case "nodelist":
            return replace(wish, nodes=value)
        case "partition":
            return replace(wish, partition=value)
        case "qos" | "reservation" | "wckey":
            return replace(wish, nothing_has=(*wish.nothing_has, (one.name, value)))
        case "quiet":
            return replace(wish, verbose=False)
        case "signal":
            chosen = signals.number_of(value)
            if chosen is None:
                raise Failure(f"Unknown job signal: {value}", plain=True)
            return replace(wish, signal=chosen)
        case "state":
            return replace(wish, state=_state(value))
        case "user":
            return _with_user(wish, value)
        case "verbose":
            return replace(wish, verbose=True)
        case _:
            return wish


def _with_user(wish: Wish, name: str) -> Wish:
    uid = accounts.uid_of(name)
    if uid is None:
        raise Failure(f"Invalid user name: {name}")
    return replace(wish, user=name, uid=uid)


def _state(text: str) -> str:
    short = {state.value: state.name for state in JobState}
    name = short.get(text.upper(), text.upper())
    if name not in STATE_NAMES:
        raise Failure(
            f"Invalid job state specified: {text}", "Valid job states are PENDING, RUNNING, and SUSPENDED", plain=True
        )
    return name


def _check_id(word: str) -> None:
    """Failure: `word` is not of the form JOB, JOB_TASK, JOB_[TASKS] or JOB.STEP."""
    for one in word.split(",") or [""]:
        base = one.partition(".")[0].partition("_")[0]
        step = one.partition(".")[2]
        if not (base.isascii() and base.isdigit() and base.strip("0")) or ("." in one and not step.isdigit()):
            raise Failure(f"Invalid job id {one}")


def _end(wish: Wish, targets: Sequence[str], controller: Controller, console: Console) -> int:
    """Cancel or signal jobs by id; the exit code."""
    code = 0
    if wish.verbose:
        for target in targets:
            console.say(f"scancel: {_deed(wish, target)}")
    errors = _cancel(wish, targets, controller)
    for target in targets:
        if "." in target:
            console.complain(f"Kill job error on job step id {target.partition('.')[0]}: {NO_SUCH_STEP}")
            code = NO_SUCH_STEP_CODE
        else:
            code = _tell(wish, target, errors.get(target, NO_SUCH_JOB), console) or code
    return code


def _deed(wish: Wish, target: str) -> str:
    if "." in target:
        return f"Terminating step {target}"
    if wish.signal is None and not wish.batch:
        return f"Terminating job {target}"
    kind = "batch job" if wish.batch and not wish.full else "full job" if wish.full else "job"
    return f"Signal {wish.signal or int(signal.SIGKILL)} to {kind} {target}"


def _cancel(wish: Wish, targets: Sequence[str], controller: Controller) -> dict[str, str]:
    """By job, Slurm's text of why it could not be ended or signalled, empty where it was; in one call.

    Elements of arrays are not in it: Spur has none.
    """
    from spur.pb.spurctld_pb2 import CancelJobsRequest

    jobs = [target for target in dict.fromkeys(targets) if number(target) is not None]
    if not jobs:
        return {}
    scope = CancelJobsRequest.STEPS
    if wish.full:
        scope = CancelJobsRequest.FULL
    elif wish.batch:
        scope = CancelJobsRequest.BATCH
    sent = 0 if wish.ends_job else wish.signal or int(signal.SIGKILL)
    request = CancelJobsRequest(job_ids=[int(job) for job in jobs], signal=sent, scope=scope)
    errors = {
        str(result.job_id): result.error for result in controller.call(controller.stub.CancelJobs, request).results
    }
    return {job: errors.get(str(int(job)), "") for job in jobs}


def _tell(wish: Wish, target: str, error: str, console: Console) -> int:
    """What the end of a job came to; a job that is not there any more is no failure of ending it."""
    if not error:
        return 0
    gone = error in (NO_SUCH_JOB, ENDED_ALREADY)
    if not gone or wish.verbose or not wish.ends_job:
        console.complain(f"Kill job error on job id {target}: {error}")
    return 0 if gone and wish.ends_job else EXIT_CODES.get(error, 1)


def _tell_no_contact(wish: Wish, targets: Sequence[str], error: ControllerError, console: Console) -> int:
    if wish.filters or wish.interactive:
        client.tell(console, error, f"slurm_load_jobs error: {error.text}")
        return 1
    for target in targets:
        if wish.verbose:
            console.say(f"scancel: {_deed(wish, target)}")
        console.complain(f"Kill job error on job id {target}: {error.text}")
    if error.hint:
        console.say(f"scancel: {error.hint}")
    return EXIT_CODES.get(error.text, 1)


def _choose_and_end(wish: Wish, targets: Sequence[str], controller: Controller, console: Console) -> int:
    """End those of `targets`, or of all jobs, that pass the filters and that the caller agrees to; the exit code."""
    from spur.pb.spurctld_pb2 import ListJobsRequest

    code = 0
    jobs = [decode(info) for info in controller.call(controller.stub.ListJobs, ListJobsRequest()).jobs]
    fitting = {str(job.job_id): job for job in jobs if not job.ended and _passes(wish, job)}
    chosen = []
    for target in targets or fitting:
        if target in fitting:
            chosen.append(target)
            continue
        console.complain(f"Kill job error on job id {target}: {NO_SUCH_JOB}")
        code = 1
    if not chosen and wish.filters and wish.verbose:
        console.complain(f"No active jobs match ALL job filters, including: {_filter_text(wish)} ")
    agreed = [target for target in chosen if not wish.interactive or _agrees(fitting[target], console)]
    return _end(wish, agreed, controller, console) or code


def _passes(wish: Wish, job: JobView) -> bool:
    return (
        not wish.nothing_has
        and wish.account in (None, job.account)
        and wish.name in (None, job.name)
        and wish.partition in (None, job.partition)
        and wish.state in (None, job.state.name, job.state_name)
        and wish.uid in (None, job.uid)
        and (wish.nodes is None or bool(_hosts(wish.nodes) & _hosts(job.nodes)))
    )


def _hosts(text: str) -> frozenset[str]:
    try:
        return frozenset(hostlist.expand(text))
    except hostlist.HostlistError as error:
        raise Failure(str(error)) from None


def _filter_text(wish: Wish) -> str:
    filters = {
        "account": wish.account,
        "job_name": wish.name,
        "nodelist": wish.nodes,
        "partition": wish.partition,
        **dict(wish.nothing_has),
        "state": wish.state,
        "user_name": wish.user,
    }
    return " ".join(f"{key}={value}" for key, value in filters.items() if value is not None)


def _agrees(job: JobView, console: Console) -> bool:
    """Whether the caller answers y. The end of the input is a no."""
    while True:
        console.write(f"Cancel job_id={job.job_id} name={job.name} partition={job.partition} [y/n]? ")
        console.stdout.flush()
        answer = console.stdin.readline()
        if answer[:1] in (b"y", b"Y"):
            return True
        if answer[:1] in (b"n", b"N") or not answer:
            return False
