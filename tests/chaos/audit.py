"""Whether a chaos run kept its promises: a pure judgement over what was found when everything had come to rest.

Nothing here looks at a process or a file. `Facts` is all that was seen; `audit` says what in it must not be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tests.chaos.jobs import Ending, JobPlan, Outcome, ended_codes, natural_end


class Fate(Enum):
    """What became of a request of ours."""

    NONE = "not asked"
    TAKEN = "taken"
    REFUSED = "refused"  # as over already, or as never wanted
    UNCLEAR = "no answer came"


@dataclass(frozen=True, slots=True)
class Shown:
    """A job as the controller shows it in the end. `source`: who saw the exit."""

    number: int
    state: str
    exit_code: str
    reason: str
    source: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A line that a script or a hook wrote: `word` of what, by which run, on which node, seconds after boot."""

    who: str  # script, prolog, epilog
    word: str  # begin, end
    job: int
    run: str
    node: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Job:
    """A job that was asked for, and every record that bears its name."""

    plan: JobPlan
    submitted: Fate
    cancelled: Fate
    shown: tuple[Shown, ...]


@dataclass(frozen=True, slots=True)
class Silence:
    """Between these seconds after boot a node could not be heard of, or only with luck."""

    node: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Death:
    """Of a process that can be a witness of an exit."""

    node: str
    victim: str  # spurd, launcher, supervisor
    at_s: float


@dataclass(frozen=True, slots=True)
class Facts:
    jobs: Sequence[Job]
    traces: Sequence[Trace]
    drains: Sequence[tuple[str, str]]  # node and reason, of every drain that was recorded
    silences: Sequence[Silence] = ()
    deaths: Sequence[Death] = ()
    leftovers: Sequence[str] = ()
    surprises: Sequence[str] = ()  # daemons that died by themselves, drains without a reason, claims that stay
    strangers: Sequence[Shown] = ()  # records whose names nobody asked for


class Fault(Enum):
    """What can be wrong. The last two are not: they are counted and told."""

    EXIT = "exits wrong"
    EPILOG = "epilogs wrong"
    PROLOG = "prologs wrong"
    RAN = "runs wrong"
    LOST = "jobs lost"
    DOUBLED = "jobs doubled"
    LEFTOVER = "leftovers"
    SURPRISE = "surprises"
    UNEXPLAINED = "unknown without cause"
    UNKNOWN = "unknown"
    NODE_LOST = "given up with their node"

    @property
    def wrong(self) -> bool:
        return self not in (Fault.UNKNOWN, Fault.NODE_LOST)


@dataclass(frozen=True, slots=True)
class Finding:
    fault: Fault
    job: int | None
    text: str

    def __str__(self) -> str:
        return f"{self.fault.value}: {'' if self.job is None else f'job {self.job}: '}{self.text}"


@dataclass(frozen=True, slots=True)
class Verdict:
    findings: tuple[Finding, ...]
    outcomes: Mapping[str, int] = field(default_factory=dict)

    @property
    def counts(self) -> dict[Fault, int]:
        return {fault: sum(one.fault is fault for one in self.findings) for fault in Fault}

    @property
    def right(self) -> bool:
        return not any(one.fault.wrong for one in self.findings)


WITNESSES = frozenset({"spurd", "launcher", "supervisor"})
AT_ONCE_S = 1.0
TOGETHER_S = 15.0  # deaths of all witnesses within so long may lose an exit
LOST_WITH_NODE = ("does not respond", "launch was not answered")
_ENDED_BY_US = {"CANCELLED", "TIMEOUT"}


def audit(facts: Facts) -> Verdict:
    """Every finding, job by job, then what belongs to none."""
    findings = [finding for job in facts.jobs for finding in _of_job(job, facts)]
    findings += [finding for run in _runs(facts.traces) for finding in _of_run(run, facts)]
    findings += [Finding(Fault.LEFTOVER, None, text) for text in facts.leftovers]
    findings += [Finding(Fault.SURPRISE, None, text) for text in facts.surprises]
    findings += [Finding(Fault.DOUBLED, one.number, "nobody submitted it") for one in facts.strangers]
    outcomes = Counter(one.state for job in facts.jobs for one in job.shown)
    return Verdict(tuple(findings), dict(sorted(outcomes.items())))


# -- jobs


def _of_job(job: Job, facts: Facts) -> Iterator[Finding]:
    if len(job.shown) > 1:
        numbers = ", ".join(str(one.number) for one in job.shown)
        yield Finding(
            Fault.DOUBLED, job.shown[0].number, f"{job.plan.name} was submitted once and is there as {numbers}"
        )
    if not job.shown and job.submitted is Fate.TAKEN:
        yield Finding(Fault.LOST, None, f"{job.plan.name} was taken and is not known any more")
    for shown in job.shown:
        yield from _of_end(job, shown, facts)


def _of_end(job: Job, shown: Shown, facts: Facts) -> Iterator[Finding]:
    """Whether the job's state and ExitCode are what its script and our requests allow."""
    found = Outcome(shown.state, shown.exit_code)
    wrong = Finding(Fault.EXIT, shown.number, f"{found} ({shown.reason}), {job.plan}; {_expected(job)}")
    match shown.state:
        case "CANCELLED" if job.cancelled in (Fate.TAKEN, Fate.UNCLEAR):
            if shown.exit_code not in _codes_when_ended(job.plan, shown, facts):
                yield wrong
        case "TIMEOUT" if job.plan.ending is Ending.OVERRUN and job.cancelled is not Fate.TAKEN:
            if shown.exit_code not in _codes_when_ended(job.plan, shown, facts):
                yield wrong
        case "NODE_FAIL" if job.cancelled is not Fate.TAKEN:
            yield _of_node_failure(job, shown, facts)
        case _ if job.cancelled is Fate.TAKEN or found != natural_end(job.plan):
            yield wrong
        case _:
            yield from _of_own_end(shown, facts)


def _expected(job: Job) -> str:
    natural = natural_end(job.plan)
    return f"cancel {job.cancelled.value}, by itself it would be {natural or 'there for ever'}"


def _codes_when_ended(plan: JobPlan, shown: Shown, facts: Facts) -> frozenset[str]:
    """0:0 only where no script was there to exit, or nobody saw its exit."""
    began = any(one.who == "script" and one.run == _run(shown) for one in facts.traces)
    codes = ended_codes(plan)
    return codes if began and shown.source not in ("unknown_exit", "") else codes | {"0:0"}


def _of_own_end(shown: Shown, facts: Facts) -> Iterator[Finding]:
    """A job that ended by itself ran its script to the end, in the attempt that is shown."""
    words = [one.word for one in facts.traces if one.who == "script" and one.run == _run(shown)]
    if "end" not in words:
        text = f"{shown.state} {shown.exit_code}, but the script of {_run(shown)} only said {words}"
        yield Finding(Fault.EXIT, shown.number, text)


def _of_node_failure(job: Job, shown: Shown, facts: Facts) -> Finding:
    nodes = {one.node for one in facts.traces if one.job == shown.number}
    times = [one.at_s for one in facts.traces if one.job == shown.number and one.who != "epilog"]
    began_s, ended_s = min(times, default=0.0), max(times, default=0.0)
    if any(text in shown.reason for text in LOST_WITH_NODE):
        if any(one.to_s >= began_s for one in facts.silences if not nodes or one.node in nodes):
            return Finding(Fault.NODE_LOST, shown.number, shown.reason)
        return Finding(Fault.UNEXPLAINED, shown.number, f"{shown.reason}, yet every node could be heard of: {job.plan}")
    if shown.source == "unknown_exit" and any(
        _all_witnesses_died(facts.deaths, node, began_s, ended_s) for node in nodes
    ):
        return Finding(Fault.UNKNOWN, shown.number, f"{shown.reason}: everybody who could have seen it was killed")
    return Finding(
        Fault.UNEXPLAINED, shown.number, f"NODE_FAIL, source {shown.source or 'none'}: {shown.reason}: {job.plan}"
    )


def _all_witnesses_died(deaths: Iterable[Death], node: str, began_s: float, ended_s: float) -> bool:
    """Whether supervisor, launcher and agent of the node died within a short time of each other while they were needed.

    A launcher that was there when the script ended has reaped it.
    """

    def matters(one: Death) -> bool:
        last_s = ended_s + (AT_ONCE_S if one.victim == "launcher" else TOGETHER_S)
        return one.node == node and began_s <= one.at_s <= last_s

    there = sorted(filter(matters, deaths), key=lambda one: one.at_s)
    return any(
        {one.victim for one in there if first.at_s <= one.at_s <= first.at_s + TOGETHER_S} >= WITNESSES
        for first in there
    )


def _run(shown: Shown) -> str:
    return f"{shown.number}.{shown.attempt}"


# -- runs


@dataclass(frozen=True, slots=True)
class _Run:
    """All that one attempt wrote."""

    job: int
    name: str
    traces: tuple[Trace, ...]

    def times(self, who: str, word: str) -> list[float]:
        return [one.at_s for one in self.traces if (one.who, one.word) == (who, word)]


def _runs(traces: Sequence[Trace]) -> Iterator[_Run]:
    for name in sorted({one.run for one in traces}):
        mine = tuple(one for one in traces if one.run == name)
        yield _Run(mine[0].job, name, mine)


def _of_run(run: _Run, facts: Facts) -> Iterator[Finding]:
    """Each of prolog, script and epilog once, one after the other; or an interruption, said out loud with a drain."""
    if len(nodes := {one.node for one in run.traces}) > 1:
        yield Finding(Fault.RAN, run.job, f"{run.name} ran on {', '.join(sorted(nodes))}")
    if (began := len(run.times("script", "begin"))) > 1:
        yield Finding(Fault.RAN, run.job, f"the script of {run.name} ran {began} times")
    yield from _of_hook(run, "prolog", Fault.PROLOG, facts)
    yield from _of_hook(run, "epilog", Fault.EPILOG, facts)
    yield from _of_order(run)


def _of_hook(run: _Run, hook: str, fault: Fault, facts: Facts) -> Iterator[Finding]:
    begun, ended = len(run.times(hook, "begin")), len(run.times(hook, "end"))
    interrupted = any(reason.startswith(f"job {run.job}: {hook} was interrupted") for _, reason in facts.drains)
    if begun > 1:
        yield Finding(fault, run.job, f"the {hook} of {run.name} ran {begun} times")
    elif not begun and not interrupted and not _not_owed(run, hook, facts):
        yield Finding(fault, run.job, f"the {hook} of {run.name} did not run")
    elif begun > ended and not interrupted:
        yield Finding(fault, run.job, f"the {hook} of {run.name} did not come to its end, and nobody says so")


def _not_owed(run: _Run, hook: str, facts: Facts) -> bool:
    """A prolog is skipped for a run that is ended before it, which then has no script either."""
    return hook == "prolog" and not run.times("script", "begin")


def _of_order(run: _Run) -> Iterator[Finding]:
    scripts = [one.at_s for one in run.traces if one.who == "script"]
    prologs, epilogs = run.times("prolog", "end"), run.times("epilog", "begin")
    if scripts and prologs and max(prologs) > min(scripts):
        yield Finding(Fault.PROLOG, run.job, f"the script of {run.name} began before its prolog had ended")
    if scripts and epilogs and min(epilogs) < max(scripts):
        yield Finding(Fault.EPILOG, run.job, f"the epilog of {run.name} began before its script had ended")
