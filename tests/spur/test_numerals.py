"""Whole numbers in options and arguments."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spur.numerals import MAX_ID, number
from tests.spur.controllerserver import run_here


@given(st.integers(0, 2 * MAX_ID), st.integers(0, 20))
def test_digits_are_a_number_as_far_as_it_is_not_too_large(value: int, zeros: int) -> None:
    assert number("0" * zeros + str(value)) == (value if value <= MAX_ID else None)


@pytest.mark.parametrize("text", ["", "-1", "+1", "1 ", "1.0", "0x1", "1_0", "²", "\u0661", "one"])
def test_anything_else_is_none(text: str) -> None:
    assert number(text) is None


@pytest.mark.parametrize(
    "argv",
    [
        ["squeue", "-j", "9" * 6000], ["squeue", "-u", "9" * 6000], ["squeue", "-i", "9" * 6000],
        ["squeue", "-s" + "9" * 6000 + ".0"], ["scancel", "-s", "9" * 6000, "1"], ["sbatch", "-n", "9" * 6000],
        ["sbatch", "-N", "9" * 6000], ["sbatch", "-t", "9" * 6000], ["sbatch", "--mem", "9" * 6000],
        ["sbatch", "--nice=-" + "9" * 6000], ["sbatch", "--gres=gpu:" + "9" * 6000],
        ["scontrol", "show", "hostnames", "n[1-" + "9" * 6000 + "]"], ["scontrol", "hold", "9" * 6000],
        ["squeue", "-o", "%" + "9" * 6000 + "i"],
    ],
    ids=lambda argv: argv[1],
)  # fmt: skip
def test_thousands_of_digits_are_an_error_like_any_other(argv: list[str], tmp_path: Path) -> None:
    config = tmp_path / "spur.toml"
    config.write_text('[auth]\nplugin = "none"\n[agent]\nlisten = "127.0.0.1:0"\ncontroller = ["127.0.0.1:1"]\n')
    assert run_here({"SPUR_CONF": str(config), "SPUR_CONNECT_SECS": "0"}, *argv).stderr != ""
