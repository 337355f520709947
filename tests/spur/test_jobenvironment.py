"""What of the environment and the limits of a submitter reaches the job. The cases are Slurm 22.05's, tried on it."""

from __future__ import annotations

import resource

import pytest

from spur.jobenvironment import INFINITY, LIMITS, environment, export_spec, limits, split_export, umask

ENVIRON = {
    b"FOO": b"bar",
    b"PATH": b"/bin",
    b"SLURM_X": b"1",
    b"SLURM_JOB_ID": b"77",
    b"SLURM_UMASK": b"077",
    b"B": b"\xff=",
}
FACTS = {b"SLURM_SUBMIT_DIR": b"/here", b"SLURM_JOB_ID": b"fact"}


def of(export: str | None) -> dict[bytes, bytes]:
    entries = environment(export, ENVIRON, FACTS)
    found = dict(entry.split(b"=", 1) for entry in entries)
    assert len(found) == len(entries), "a name stands there twice"
    assert b"SLURM_UMASK" not in found
    return found


SLURMS = {b"SLURM_X": b"1", b"SLURM_SUBMIT_DIR": b"/here", b"SLURM_JOB_ID": b"fact"}
ALL = {b"FOO": b"bar", b"PATH": b"/bin", b"B": b"\xff=", **SLURMS}


@pytest.mark.parametrize("export", [None, "ALL", "all"])
def test_all_of_it_is_exported_unless_said_otherwise(export: str | None) -> None:
    assert of(export) == ALL
    assert export_spec(export) == ""


@pytest.mark.parametrize("export", ["NONE", "none", "NIL", ""])
def test_none_leaves_what_belongs_to_slurm(export: str) -> None:
    assert of(export) == SLURMS
    assert export_spec(export) == export


def test_names_are_taken_from_the_environment_and_may_be_given_values() -> None:
    assert of("FOO,NEW=x=y,MISSING") == {**SLURMS, b"FOO": b"bar", b"NEW": b"x=y"}
    assert export_spec("FOO,NEW=x=y,MISSING") == "FOO,NEW=x=y,MISSING"


def test_all_among_the_names_adds_everything() -> None:
    assert of("ALL,NEW=x,FOO=changed") == {**ALL, b"NEW": b"x", b"FOO": b"changed"}
    assert of("A=1,ALL") == {**ALL, b"A": b"1"}


def test_a_comma_in_quotes_belongs_to_the_value_and_the_quotes_stay() -> None:
    assert list(split_export("A=x y,B='c,d',C=\"e,'f\",D")) == ["A=x y", "B='c,d'", 'C="e,\'f"', "D"]


@pytest.mark.parametrize(("text", "mask"), [(b"077", 0o077), (b"27", 0o027), (b"", 0o22), (b"x9", 0o22)])
def test_slurm_umask_wins_over_the_own_one(text: bytes, mask: int) -> None:
    assert umask({b"SLURM_UMASK": text}, 0o022) == mask


def test_soft_limits_are_taken_along() -> None:
    found = limits(None)
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert set(found) == set(LIMITS)
    assert found["NOFILE"] == (INFINITY if soft == resource.RLIM_INFINITY else soft)


def test_which_limits_are_taken_along_can_be_chosen() -> None:
    assert set(limits("NOFILE,core,RLIMIT_STACK")) == {"NOFILE", "CORE", "STACK"}
    assert limits("NONE") == {}
    with pytest.raises(ValueError, match=r"^FOO$"):
        limits("CORE,FOO")
