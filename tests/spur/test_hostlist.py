"""Host lists against what `scontrol show hostnames` and `show hostlist` of Slurm 22.05 printed."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spur.hostlist import MAX_NAMES, HostlistError, compress, expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n[3,1,2]", ["n3", "n1", "n2"]),
        ("n[1-2,2]", ["n1", "n2", "n2"]),
        ("n[09-11]", ["n09", "n10", "n11"]),
        ("n[9-011]", ["n9", "n10", "n11"]),
        ("n[001,2]", ["n001", "n2"]),
        ("n[1-2]-[3-4]", ["n1-3", "n1-4", "n2-3", "n2-4"]),
        ("x[1-2][3-4]", ["x13", "x14", "x23", "x24"]),
        ("a[1-2]b[1]", ["a1b1", "a2b1"]),
        ("a,b,n[1-2]", ["a", "b", "n1", "n2"]),
        (",a,,b,", ["a", "b"]),
        ("a b", ["a", "b"]),
        ("[1-3]", ["1", "2", "3"]),
    ],
)
def test_expands_as_slurm_does(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("n3,n1,n2", "n[3,1-2]"),
        ("n01,n02,n10", "n[01-02,10]"),
        ("n1,n01", "n[1,01]"),
        ("n9,n10,n11", "n[9-11]"),
        ("n09,n10", "n[09-10]"),
        ("n099,n100", "n[099-100]"),
        ("n99,n100", "n[99-100]"),
        ("n08,n9,n10", "n[08,9-10]"),
        ("n001,n2,n003", "n[001,2,003]"),
        ("n0,n00,n000", "n[0,00,000]"),
        ("a,b", "a,b"),
        ("n1,n1", "n[1,1]"),
        ("n1,n2,n2,n3", "n[1-2,2-3]"),
        ("n1-3,n1-4,n2-3,n2-4", "n1-[3-4],n2-[3-4]"),
        ("a1b,a2b", "a1b,a2b"),
        ("n,n1", "n,n1"),
        ("n1,n", "n1,n"),
        ("n1,n3,n2,n4", "n[1,3,2,4]"),
        ("a1,b1,a2", "a1,b1,a2"),
        ("1,2,3", "[1-3]"),
        ("n33554432,n33554433", "n[33554432-33554433]"),
        ("", ""),
    ],
)
def test_compresses_as_slurm_does(names: str, text: str) -> None:
    assert compress(names.split(",") if names else []) == text


@pytest.mark.parametrize(
    "text",
    ["n[3-1]", "n[1-3]x", "n[a]", "n[1", "n1]", "n[]", "n[1,,2]", "n[-3]", "n[1-]", "n[[1]]", "n[1-2]n", "n[1 - 2]"],
)
def test_refuses_what_is_no_list_with_slurms_words(text: str) -> None:
    with pytest.raises(HostlistError) as refusal:
        expand(text)
    assert str(refusal.value) == f"Invalid hostlist: {text}"
    assert refusal.value.detail


@pytest.mark.parametrize(
    "text",
    [
        "n[1-999999999]",
        "n[1-65537]",
        "n[1-60000][1-60000]",
        "n[1-60000],m[1-60000]",
        "n[0-9]" + "[0-9]" * 40,
        "n[" + "1-60000," * 1000 + "1]",
        "n[" + "9" * 5000 + "]",
    ],
)
def test_refuses_a_hostile_list_before_it_makes_the_names(text: str) -> None:
    began = time.process_time()
    with pytest.raises(HostlistError):
        expand(text)
    assert time.process_time() - began < 1


def test_expands_the_largest_list_that_slurm_takes() -> None:
    assert len(expand(f"n[1-{MAX_NAMES}]")) == MAX_NAMES


def test_a_refusal_of_a_long_list_is_a_short_line() -> None:
    with pytest.raises(HostlistError) as refusal:
        expand("n[" + "x" * 100_000 + "]")
    assert len(str(refusal.value)) < 300


names = st.from_regex(r"[a-z][a-z0-9-]{0,6}", fullmatch=True)
numbered = st.builds(
    lambda prefix, number, width: f"{prefix}{str(number).zfill(width)}",
    st.sampled_from(["n", "gpu-", "r1c"]),
    st.integers(0, 130),
    st.integers(1, 4),
)


@settings(derandomize=True)
@given(st.lists(names | numbered, max_size=40))
def test_expanding_undoes_compressing(hosts: list[str]) -> None:
    assert expand(compress(hosts)) == hosts


@settings(derandomize=True)
@given(st.lists(numbered, max_size=40))
def test_compressing_again_changes_nothing(hosts: list[str]) -> None:
    once = compress(hosts)
    assert compress(expand(once)) == once


@settings(derandomize=True)
@given(st.text(alphabet="n1023[]-, x", max_size=20))
def test_any_text_is_a_list_or_a_hostlist_error(text: str) -> None:
    try:
        found = expand(text)
    except HostlistError:
        return
    assert all(found)
