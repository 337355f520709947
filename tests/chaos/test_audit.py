"""The audit finds what it is there to find, and does not cry wolf: what it calls right is exactly what may be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.audit import Death, Facts, Fate, Fault, Job, Shown, Silence, Trace, audit
from tests.chaos.jobs import Ending, JobPlan

EXITS_7 = JobPlan(0, Ending.EXIT, 7, 1.0)
POLITE = JobPlan(0, Ending.POLITE, 42, 1.0, cancel_after_s=2.0)
OVERRUN = JobPlan(0, Ending.OVERRUN, 0, 1.0)


def shown(state: str, exit_code: str, *, reason: str = "None", source: str = "waitid", attempt: int = 1) -> Shown:
    return Shown(5, state, exit_code, reason, source, attempt)


def job(plan: JobPlan, *records: Shown, cancelled: Fate = Fate.NONE, submitted: Fate = Fate.TAKEN) -> Job:
    return Job(plan, submitted, cancelled, records)


def traces(run: str = "5.1", node: str = "n1", at_s: float = 0.0, without: str = "") -> list[Trace]:
    """A whole run: prolog, script, epilog, one second each; without one of them."""
    names = [name for name in ("prolog", "script", "epilog") if name != without]
    return [
        Trace(name, word, int(run.partition(".")[0]), run, node, at_s + number + (word == "end"))
        for number, name in enumerate(names)
        for word in ("begin", "end")
    ]


def found(facts: Facts) -> list[Fault]:
    return [one.fault for one in audit(facts).findings]


def of(one: Job, **more: object) -> list[Fault]:
    return found(Facts(**{"jobs": [one], "traces": traces(), "drains": (), **more}))  # type: ignore[arg-type]


def test_an_exact_exit_is_right() -> None:
    verdict = audit(Facts([job(EXITS_7, shown("FAILED", "7:0"))], traces(), ()))
    assert (verdict.right, verdict.findings, verdict.outcomes) == (True, (), {"FAILED": 1})


@pytest.mark.parametrize(
    "record",
    [
        shown("FAILED", "1:0"),
        shown("COMPLETED", "0:0"),
        shown("FAILED", "0:7"),
        shown("CANCELLED", "7:0"),
        shown("TIMEOUT", "0:15"),
        shown("PENDING", "0:0"),
        shown("FAILED", "0:53", reason="JobLaunchFailure"),
    ],
    ids=str,
)
def test_any_other_end_is_wrong(record: Shown) -> None:
    assert of(job(EXITS_7, record)) == [Fault.EXIT]


def test_the_right_exit_without_a_script_that_came_to_its_end_is_wrong() -> None:
    assert of(job(EXITS_7, shown("FAILED", "7:0")), traces=traces(without="script")) == [Fault.EXIT]
    assert of(job(EXITS_7, shown("FAILED", "7:0", attempt=2))) == [Fault.EXIT]


def test_a_cancel_that_was_taken_allows_no_other_state() -> None:
    for code, faults in (("7:0", []), ("0:15", []), ("0:9", []), ("0:0", [Fault.EXIT]), ("1:0", [Fault.EXIT])):
        assert of(job(EXITS_7, shown("CANCELLED", code), cancelled=Fate.TAKEN)) == faults
    assert of(job(EXITS_7, shown("FAILED", "7:0"), cancelled=Fate.TAKEN)) == [Fault.EXIT]
    assert of(job(EXITS_7, shown("NODE_FAIL", "0:1"), cancelled=Fate.TAKEN)) == [Fault.EXIT]


def test_a_cancel_without_an_answer_allows_both_and_a_refused_one_only_the_jobs_own_end() -> None:
    for state, code in (("CANCELLED", "0:15"), ("FAILED", "7:0")):
        assert of(job(EXITS_7, shown(state, code), cancelled=Fate.UNCLEAR)) == []
    assert of(job(EXITS_7, shown("CANCELLED", "0:15"), cancelled=Fate.REFUSED)) == [Fault.EXIT]


def test_a_cancelled_job_has_no_exit_only_where_it_never_ran() -> None:
    never = shown("CANCELLED", "0:0", source="", attempt=0)
    assert of(job(EXITS_7, never, cancelled=Fate.TAKEN), traces=[]) == []


def test_a_polite_script_has_its_own_code_or_the_signals() -> None:
    for code, faults in (("42:0", []), ("0:15", []), ("0:9", []), ("7:0", [Fault.EXIT])):
        assert of(job(POLITE, shown("CANCELLED", code), cancelled=Fate.TAKEN)) == faults


def test_a_time_limit_is_for_those_who_overrun_it() -> None:
    assert of(job(OVERRUN, shown("TIMEOUT", "0:15", reason="TimeLimit"))) == []
    assert of(job(OVERRUN, shown("FAILED", "0:15"))) == [Fault.EXIT]
    assert of(job(OVERRUN, shown("TIMEOUT", "0:15"), cancelled=Fate.TAKEN)) == [Fault.EXIT]


def test_a_job_that_is_not_there_is_lost_unless_nobody_said_that_it_was_taken() -> None:
    assert of(job(EXITS_7), traces=[]) == [Fault.LOST]
    assert of(job(EXITS_7, submitted=Fate.UNCLEAR), traces=[]) == []


def test_a_job_that_is_there_twice_is_found_and_so_is_one_that_nobody_submitted() -> None:
    twice = job(EXITS_7, shown("FAILED", "7:0"), replace(shown("FAILED", "7:0"), number=6))
    assert of(twice, traces=[*traces(), *traces("6.1")]) == [Fault.DOUBLED]
    assert of(job(EXITS_7, shown("FAILED", "7:0")), strangers=[shown("COMPLETED", "0:0")]) == [Fault.DOUBLED]


def test_unknown_is_told_where_all_witnesses_died_and_wrong_where_one_lived() -> None:
    unknown = job(EXITS_7, shown("NODE_FAIL", "0:1", source="unknown_exit", reason="nobody is left"))
    deaths = [Death("n1", who, 2.0) for who in ("spurd", "launcher", "supervisor")]
    assert of(unknown, deaths=deaths) == [Fault.UNKNOWN]
    assert of(unknown, deaths=deaths[:2]) == [Fault.UNEXPLAINED]
    assert of(unknown, deaths=[*deaths[:2], Death("n2", "supervisor", 2.0)]) == [Fault.UNEXPLAINED]
    assert of(unknown, deaths=[*deaths[:2], Death("n1", "supervisor", 100.0)]) == [Fault.UNEXPLAINED]
    after = [*deaths[:1], Death("n1", "launcher", 4.0), deaths[2]]  # the script ended at 2.0
    assert of(unknown, deaths=after) == [Fault.UNEXPLAINED]
    assert not audit(Facts([unknown], traces(), ())).right


def test_a_node_may_be_given_up_only_where_it_could_not_be_heard_of() -> None:
    lost = job(EXITS_7, shown("NODE_FAIL", "0:1", source="", reason="node n1 does not respond"))
    assert of(lost, silences=[Silence("n1", 0.0, 30.0)]) == [Fault.NODE_LOST]
    assert of(lost, silences=[Silence("n2", 0.0, 30.0)]) == [Fault.UNEXPLAINED]
    vanished = job(EXITS_7, shown("NODE_FAIL", "0:1", source="", reason="node n1 lost the run"))
    assert of(vanished, silences=[Silence("n1", 0.0, 30.0)]) == [Fault.UNEXPLAINED]


RIGHT = job(EXITS_7, shown("FAILED", "7:0"))


@pytest.mark.parametrize("hook, fault", [("prolog", Fault.PROLOG), ("epilog", Fault.EPILOG)])
def test_a_hook_that_ran_twice_or_not_at_all_is_found(hook: str, fault: Fault) -> None:
    again = next(one for one in traces() if one.who == hook and one.word == "begin")
    assert of(RIGHT, traces=[*traces(), again]) == [fault]
    assert of(RIGHT, traces=traces(without=hook)) == [fault]


@pytest.mark.parametrize("hook, fault", [("prolog", Fault.PROLOG), ("epilog", Fault.EPILOG)])
def test_a_hook_that_was_interrupted_must_have_been_said_to_be(hook: str, fault: Fault) -> None:
    cut = [one for one in traces() if (one.who, one.word) != (hook, "end")]
    drain = ("n1", f"job 5: {hook} was interrupted, its outcome is unknown")
    assert of(RIGHT, traces=cut) == [fault]
    assert of(RIGHT, traces=cut, drains=[drain]) == []
    assert of(RIGHT, traces=traces(without=hook), drains=[drain]) == []
    assert of(RIGHT, traces=cut, drains=[(drain[0], drain[1].replace("5", "55"))]) == [fault]


def test_a_prolog_that_was_skipped_is_right_where_nothing_ran() -> None:
    cancelled = job(EXITS_7, shown("CANCELLED", "0:0", source="never_started"), cancelled=Fate.TAKEN)
    assert of(cancelled, traces=[one for one in traces() if one.who == "epilog"]) == []


def test_a_script_that_ran_twice_in_one_attempt_is_found() -> None:
    again = next(one for one in traces() if one.who == "script" and one.word == "begin")
    assert of(RIGHT, traces=[*traces(), again]) == [Fault.RAN]


def test_two_attempts_may_run_one_script_each() -> None:
    second = job(EXITS_7, shown("FAILED", "7:0", attempt=2))
    assert of(second, traces=[*traces("5.1"), *traces("5.2", node="n2", at_s=10.0)]) == []
    assert of(second, traces=[*traces("5.2"), *traces("5.2", node="n2")]).count(Fault.RAN) == 2


def test_an_epilog_before_the_end_of_its_script_is_found() -> None:
    early = [replace(one, at_s=0.5) if one.who == "epilog" else one for one in traces()]
    assert Fault.EPILOG in of(RIGHT, traces=early)
    late = [replace(one, at_s=one.at_s + 5) if one.who == "prolog" else one for one in traces()]
    assert Fault.PROLOG in of(RIGHT, traces=late)


def test_leftovers_and_surprises_are_wrong() -> None:
    assert of(RIGHT, leftovers=["process 4711 of job 5 lives"]) == [Fault.LEFTOVER]
    assert of(RIGHT, surprises=["spurd ended by itself with 1"]) == [Fault.SURPRISE]
    assert not audit(Facts([], [], (), leftovers=["a socket"])).right
