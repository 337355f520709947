"""Amounts of memory against what sbatch --mem of Slurm 22.05 took and scontrol and squeue printed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spur.memory import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size_mb", "printed"),
    [
        ("50", 50, "50M"),
        ("50m", 50, "50M"),
        ("50MB", 50, "50M"),
        ("1G", 1024, "1G"),
        ("1024", 1024, "1G"),
        ("1536M", 1536, "1.50G"),
        ("4000", 4000, "4000M"),
        ("1K", 1, "1M"),
        ("1000K", 1, "1M"),
        ("1025K", 2, "2M"),
        ("1TB", 1048576, "1T"),
        ("1572864", 1572864, "1.50T"),
        ("10485760", 10485760, "10T"),
        ("2047", 2047, "2047M"),
        ("100000", 100000, "100000M"),
        (" 5", 5, "5M"),
        ("0", 0, "0"),
    ],
)
def test_reads_and_prints_as_slurm_does(text: str, size_mb: int, printed: str) -> None:
    assert parse_size(text) == size_mb
    assert format_size(size_mb) == printed


@pytest.mark.parametrize("text", ["", "G", "1.5G", "1P", "-5", "5X", "5B", "1GiB", "1e3", "9999999999999999T", "5\n"])
def test_refuses_what_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match="memory"):
        parse_size(text)


@settings(derandomize=True)
@given(st.integers(0, 2**40))
def test_what_is_printed_is_exact(size_mb: int) -> None:
    printed = format_size(size_mb)
    unit = {"M": 1, "G": 1024, "T": 1024**2, "P": 1024**3, "0": 0}[printed[-1]]
    assert float(printed.rstrip("MGTP")) * unit == size_mb
