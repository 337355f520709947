"""squeue: the jobs of the cluster, as a table."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from spur import accounts, client, columns, hostlist, jobcolumns
from spur.client import Controller, ControllerError
from spur.columns import Format
from spur.console import Console, Environ, Failure, read_options, run
from spur.jobcolumns import Row
from spur.jobview import FLAGS, STATE_NAMES, JobState, JobView, decode
from spur.numerals import number
from spur.options import Given, Option, Support, Takes

USAGE = "Usage: squeue [OPTIONS...]"
DESCRIPTION = "Show the jobs that are waiting or running."
REFUSED, HARMLESS = Support.REFUSED, Support.HARMLESS
VALUE, MAYBE = Takes.VALUE, Takes.OPTIONAL

OPTIONS = (
    Option("account", VALUE, "A", ("accounts",), "SQUEUE_ACCOUNT", "ACCOUNTS", "only jobs of these accounts"),
    Option("all", letter="a", help="jobs of all partitions", support=HARMLESS),
    Option("array", letter="r", help="one line for each element of a job array", support=HARMLESS),
    Option("array-unique", help="one line for each waiting element of a job array", support=HARMLESS),
    Option("clusters", VALUE, "M", ("cluster",), metavar="NAMES", support=REFUSED),
    Option("federation", help="jobs of the federation", support=HARMLESS),
    Option("format", VALUE, "o", (), "SQUEUE_FORMAT", "FORMAT", "columns by letter: %[[.]WIDTH]LETTER"),
    Option("Format", VALUE, "O", (), "SQUEUE_FORMAT2", "FORMAT", "columns by name: NAME[:[.]WIDTH],..."),
    Option("help", help="show this help"),
    Option("hide", help="leave out hidden partitions", support=HARMLESS),
    Option("iterate", VALUE, "i", metavar="SECONDS", help="show it again and again, so far apart"),
    Option("jobs", MAYBE, "j", (), "", "IDS", "only these jobs"),
    Option("json", support=REFUSED),
    Option("licenses", VALUE, "L", (), "SQUEUE_LICENSES", "NAMES", "only jobs that use these licenses"),
    Option("local", help="jobs of this cluster", support=HARMLESS),
    Option("long", letter="l", help="more columns, and the time above them"),
    Option("me", help="only the caller's jobs"),
    Option("name", VALUE, "n", ("names",), "SQUEUE_NAMES", "NAMES", "only jobs of these names"),
    Option("noconvert", help="amounts as they were given", support=HARMLESS),
    Option("nodelist", VALUE, "w", ("nodes",), "", "NODES", "only jobs on these nodes"),
    Option("noheader", letter="h", help="no line of headers"),
    Option("partition", VALUE, "p", ("partitions",), "SQUEUE_PARTITION", "NAMES", "only jobs in these partitions"),
    Option("priority", letter="P", help="a job once for each of its partitions", support=HARMLESS),
    Option("qos", VALUE, "q", (), "SQUEUE_QOS", "NAMES", "only jobs of these qualities of service"),
    Option("reservation", VALUE, "R", metavar="NAME", help="only jobs in this reservation"),
    Option("sibling", help="jobs of sibling clusters", support=HARMLESS),
    Option("sort", VALUE, "S", (), "SQUEUE_SORT", "LETTERS", "order: letters of --format, each with + or - before it"),
    Option("start", help="when waiting jobs are expected to start"),
    Option("steps", MAYBE, "s", (), "", "IDS", "the steps of jobs instead of jobs"),
    Option("states", VALUE, "t", (), "SQUEUE_STATES", "STATES", "only jobs in these states, or all"),
    Option("usage", help="show how to call it"),
    Option("user", VALUE, "u", ("users",), "SQUEUE_USERS", "USERS", "only jobs of these users"),
    Option("verbose", letter="v", help="tell more", support=HARMLESS),
    Option("version", letter="V", help="show the version"),
    Option("yaml", support=REFUSED),
)


@dataclass(frozen=True, slots=True)
class Wish:
    """What to show. A filter that is None lets every job through."""

    jobs: tuple[int, ...] | None = None
    steps: tuple[str, ...] | None = None
    users: frozenset[int] | None = None
    states: frozenset[str] | None = None
    all_states: bool = False
    partitions: frozenset[str] | None = None
    accounts: frozenset[str] | None = None
    names: frozenset[str] | None = None
    nodes: frozenset[str] | None = None
    nothing_has_it: bool = False  # a filter on what no job of Spur has, such as a license
    by_step: bool = False
    header: bool = True
    long: bool = False
    start: bool = False
    iterate_s: int = 0
    letters: str | None = None
    names_format: str | None = None
    sort: str | None = None
    complaints: tuple[str, ...] = field(default=())


def main() -> None:
    sys.exit(run("squeue", squeue))


def squeue(words: Sequence[str], environ: Environ, console: Console) -> int:
    given, rest = read_options(console, words, OPTIONS, permute=True, usage=USAGE, description=DESCRIPTION)
    wish = read_wish([*from_environment(environ, given), *given], rest, console)
    for complaint in wish.complaints:
        console.complain(complaint)
    while True:
        try:
            with client.connect(environ) as controller:
                show(wish, controller, environ, console)
        except ControllerError as error:
            call = "slurm_get_job_steps" if wish.by_step else "slurm_load_jobs"
            client.tell(console, error, f"{call} error: {error.text}")
            if not wish.iterate_s:
                return 1
        if not wish.iterate_s:
            return 0
        console.print()
        console.stdout.flush()
        time.sleep(wish.iterate_s)


def from_environment(environ: Environ, given: Sequence[Given]) -> Iterator[Given]:
    """Options that the environment gives. A format on the command line, or -l, outdoes those of the environment."""
    on_line = {one.name for one in given}
    for option in OPTIONS:
        value = environ.get(option.variable) if option.variable else None
        if value is None or (option.name in ("format", "Format") and on_line & {"format", "Format", "long"}):
            continue
        yield Given(option, value)


def read_wish(given: Sequence[Given], rest: Sequence[str], console: Console) -> Wish:
    """What the options ask for. Failure: they contradict each other or cannot be read."""
    _refuse_contradictions([one.name for one in given])
    wish = Wish()
    for one in given:
        wish = _add(wish, one)
    left = list(rest)
    if left and (wish.jobs is not None or wish.by_step):
        ids = left.pop(0)
        wish = replace(wish, steps=_steps(ids)) if wish.by_step else replace(wish, jobs=_job_ids(ids))
    if left:
        console.print(USAGE)
        raise Failure(f"Unrecognized option: {left[0]}")
    return wish


def _refuse_contradictions(names: Sequence[str]) -> None:
    if "format" in names and "Format" in names:
        first, second = "-o (--format)", "-O (--Format)"
        if names.index("Format") < names.index("format"):
            first, second = second, first
        raise Failure(f"{second} is incompatible with {first}")
    if "long" in names and {"format", "Format"} & set(names):
        letter, name = ("o", "format") if "format" in names else ("O", "Format")
        raise Failure(
            f"squeue: fatal: Options -{letter}(--{name}) and -l(--long) are mutually exclusive. "
            "Please remove one and retry.",
            plain=True,
        )


def _add(wish: Wish, one: Given) -> Wish:
    """`wish` with one more option."""
    value = one.value or ""
    match one.name:
        case "account":
            return replace(wish, accounts=_words(value))
        case "format":
            return replace(wish, letters=value)
        case "Format":
            return replace(wish, names_format=value)
        case "iterate":
            return replace(wish, iterate_s=_seconds(value))
        case "jobs":
            return replace(wish, jobs=_job_ids(value))
        case "licenses" | "qos" | "reservation":
            return replace(wish, nothing_has_it=True)
        case "long":
            return replace(wish, long=True)
        case "me":
            return _with_users(wish, accounts.own_name())
        case "name":
            return replace(wish, names=_words(value))
        case "nodelist":
            return replace(wish, nodes=_hosts(value))
        case "noheader":
            return replace(wish, header=False)
        case "partition":
            return replace(wish, partitions=_words(value))
        case "sort":
            return replace(wish, sort=value)
        case "start":
            return replace(wish, start=True)
        case "states":
            return replace(wish, states=_states(value), all_states=value.lower() == "all")
        case "steps":
            return replace(wish, by_step=True, steps=_steps(value))
        case "user":
            return _with_users(wish, value)
        case _:
            return wish


def _words(text: str) -> frozenset[str]:
    return frozenset(word for word in text.split(",") if word)


def _seconds(text: str) -> int:
    seconds = number(text)
    if not seconds:
        raise Failure(f"--iterate={text}\n")
    return seconds


def _job_ids(text: str) -> tuple[int, ...]:
    ids = []
    for word in text.replace(" ", ",").split(","):
        if not word:
            continue
        job_id = number(word)
        if not job_id:
            raise Failure(f"Invalid job id: {word}")
        ids.append(job_id)
    return tuple(ids)


def _steps(text: str) -> tuple[str, ...] | None:
    steps = tuple(word for word in text.split(",") if word)
    for step in steps:
        job, dot, name = step.partition(".")
        if not job.isdigit() or not dot or not (name.isdigit() or name in ("batch", "extern", "interactive")):
            raise Failure(f"Invalid job_step id: {job}.??")
    return steps or None


def _hosts(text: str) -> frozenset[str]:
    try:
        return frozenset(hostlist.expand(text))
    except hostlist.HostlistError:
        raise Failure(f"Invalid node name {text}") from None


def _with_users(wish: Wish, text: str) -> Wish:
    """Who is not known is complained of, and left out."""
    found = {name: accounts.uid_of(name) for name in text.split(",") if name}
    complaints = tuple(f"Invalid user: {name}\n" for name, uid in found.items() if uid is None)
    users = frozenset(uid for uid in found.values() if uid is not None)
    return replace(wish, users=users, complaints=(*wish.complaints, *complaints))


def _states(text: str) -> frozenset[str]:
    """The long names of the states in `text`, which may be long or short and in any case."""
    if text.lower() == "all":
        return frozenset(STATE_NAMES)
    short = {state.value: state.name for state in JobState} | {letters: name for name, letters in FLAGS.items()}
    states = set()
    for word in text.split(","):
        name = short.get(word.upper(), word.upper())
        if word and name not in STATE_NAMES:
            raise Failure(
                f"Invalid job state specified: {word}", f"Valid job states include: {','.join(STATE_NAMES)}\n"
            )
        states.add(name)
    return frozenset(states)


def show(wish: Wish, controller: Controller, environ: Environ, console: Console) -> None:
    """Print the table once. ControllerError: the controller does not say."""
    jobs, now = load(controller, wish.jobs or ())
    if wish.nodes:
        _refuse_unknown_nodes(wish.nodes, controller)
    table = _format(wish)
    rows = [Row(job, now, environ, _cluster(wish, environ)) for job in jobs if selects(wish, job)]
    if wish.header and (wish.long or wish.iterate_s):
        console.print(time.strftime("%a %b %d %H:%M:%S %Y"))
    for unknown in table.unknown:
        console.complain(f"Invalid job {'step ' if wish.by_step else ''}format specification: {unknown}")
    if wish.header:
        console.print(table.header())
    for row in sort(rows, wish):
        console.print(table.line(row))


def load(controller: Controller, job_ids: Sequence[int]) -> tuple[list[JobView], float]:
    """These jobs, or all, and the controller's time. ControllerError: one alone was asked for and is not there."""
    from spur.pb.spurctld_pb2 import ListJobsRequest

    reply = controller.call(controller.stub.ListJobs, ListJobsRequest(job_ids=job_ids))
    if len(job_ids) == 1 and not reply.jobs:
        raise ControllerError("Invalid job id specified")
    return [decode(info) for info in reply.jobs], reply.at


def _refuse_unknown_nodes(nodes: Iterable[str], controller: Controller) -> None:
    from spur.pb.spurctld_pb2 import ListNodesRequest

    known = {node.name for node in controller.call(controller.stub.ListNodes, ListNodesRequest()).nodes}
    for name in sorted(nodes):
        if name not in known and name != "localhost":
            raise Failure(f"Invalid node name {name}")


def _cluster(wish: Wish, environ: Environ) -> str:
    """The cluster's name where it is a column; it stands in the configuration."""
    if "cluster" not in (wish.names_format or "").lower():
        return ""
    return client.read_config(environ).cluster_name


def selects(wish: Wish, job: JobView) -> bool:
    """Whether `job` passes every filter."""
    if wish.by_step:
        has_step = job.state in (JobState.RUNNING, JobState.SUSPENDED) and bool(job.batch_host)
        if not has_step or (wish.steps is not None and f"{job.job_id}.batch" not in wish.steps):
            return False
    elif not _state_passes(wish, job):
        return False
    return (
        not wish.nothing_has_it
        and (not wish.jobs or job.job_id in wish.jobs)
        and (wish.users is None or job.uid in wish.users)
        and (wish.partitions is None or job.partition in wish.partitions)
        and (wish.accounts is None or job.account in wish.accounts)
        and (wish.names is None or job.name in wish.names)
        and (wish.nodes is None or bool(_nodes_of(job) & wish.nodes))
    )


def _nodes_of(job: JobView) -> frozenset[str]:
    return frozenset(hostlist.expand(job.nodes))


def _state_passes(wish: Wish, job: JobView) -> bool:
    if wish.all_states:
        return True
    if wish.states is None:
        return job.state is JobState.PENDING if wish.start else job.active
    return job.state_name in wish.states or (job.state.name in wish.states and not job.completing)


def _format(wish: Wish) -> Format[Row]:
    letters = jobcolumns.STEP_LETTERS if wish.by_step else jobcolumns.LETTERS
    if wish.names_format is not None:
        return columns.by_names(wish.names_format, jobcolumns.STEP_NAMES if wish.by_step else jobcolumns.NAMES)
    if wish.letters == "%all":
        return columns.by_letters(columns.all_letters(letters, jobcolumns.ALL_LETTERS), letters)
    if wish.letters is not None:
        return columns.by_letters(wish.letters, letters)
    if wish.by_step:
        return columns.by_letters(jobcolumns.STEPS, letters)
    if wish.start:
        return columns.by_letters(jobcolumns.START, letters)
    return columns.by_letters(jobcolumns.LONG if wish.long else jobcolumns.DEFAULT, letters)


def sort(rows: list[Row], wish: Wish) -> list[Row]:
    """The rows in the order of --sort. Failure: it names what nothing is ordered by."""
    order = wish.sort
    if order is None:
        order = "P,i" if wish.by_step else "S" if wish.start else jobcolumns.DEFAULT_SORT
    try:
        return jobcolumns.sort(rows, "" if order.strip("+-") == "cluster" else order)
    except ValueError as error:
        raise Failure(f"Invalid sort specification: {error}") from None
