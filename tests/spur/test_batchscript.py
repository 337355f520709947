"""Batch scripts: what is one, and what its #SBATCH lines say. Further cases are held against Slurm in test_goldens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spur.batchscript import DirectiveError, ScriptError, check, directives, has_pbs_lines, wrap


def words_of(*lines: bytes) -> list[str]:
    return directives(b"#!/bin/sh\n" + b"\n".join(lines) + b"\n", "job.sh")


def test_the_words_of_all_lines_before_the_first_command_make_one_command_line() -> None:
    lines = b"#SBATCH -J", b"", b"   ", b"# remark", b"#SBATCH name --mem=3", b"  # remark", b"echo", b"#SBATCH -J late"
    assert words_of(*lines) == ["-J", "name", "--mem=3"]


def test_lines_that_only_look_like_directives_are_remarks() -> None:
    assert words_of(b"##SBATCH -J x", b" #SBATCH -J y", b"#sbatch -J w", b"# SBATCH -J v") == []


def test_many_blanks_and_no_equals_sign_are_fine() -> None:
    assert words_of(b"#SBATCH --array               1-3", b"#SBATCH\t-t\t5  ") == ["--array", "1-3", "-t", "5"]


def test_bytes_that_are_no_utf8_survive() -> None:
    assert words_of(b"#SBATCH -J caf\xe9")[1].encode(errors="surrogateescape") == b"caf\xe9"


def test_a_quotation_that_is_not_closed_names_the_line() -> None:
    with pytest.raises(DirectiveError, match=r'^job.sh: line 3: Unmatched `"` in \[ "a b\]$'):
        words_of(b"# x", b'#SBATCH -J "a b')


@pytest.mark.parametrize("script", [b"", b" \n\t\n", b"echo\n", b"\n#!/bin/sh\n", b"#!/bin/sh\r\n", b"#!/bin/sh\n\0"])
def test_what_is_no_script_is_refused(script: bytes) -> None:
    with pytest.raises(ScriptError):
        check(script)


@pytest.mark.parametrize("script", [b"#!", b"#!/bin/sh", b"#!/bin/sh\necho '\r'\n", b"#!/bin/sh\n\xff\xfe\n"])
def test_any_other_script_is_taken(script: bytes) -> None:
    check(script)


def test_a_wrapped_command_is_a_script() -> None:
    script = wrap(b"echo a b")
    check(script)
    assert script.endswith(b"\necho a b\n") and script.startswith(b"#!/bin/sh\n")


def test_lines_of_another_batch_system_are_noticed_where_they_would_count() -> None:
    assert has_pbs_lines(b"#!/bin/sh\n#PBS -N x\n")
    assert not has_pbs_lines(b"#!/bin/sh\necho\n#PBS -N x\n")


@given(st.lists(st.text("ab\"'\\# \t=", min_size=1, max_size=12), max_size=4))
def test_no_line_makes_it_fail_in_another_way(lines: list[str]) -> None:
    try:
        words = words_of(*(b"#SBATCH " + line.encode() for line in lines))
    except DirectiveError:
        return
    assert all(words)


@given(st.lists(st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), min_size=1), max_size=4))
def test_quoted_words_come_back_as_they_were(words: list[str]) -> None:
    quoted = " ".join('"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"' for word in words)
    assert words_of(b"#SBATCH " + quoted.encode()) == words
