"""The Debian package on a clean Debian, and what systemd may do to spurd: tests/guest/inside, in the guest."""

from __future__ import annotations

from pathlib import Path

import pytest

from .machine import Machine

pytestmark = pytest.mark.timeout(1800)

INSIDE = """#!/bin/sh
cd checkout && exec python3 -m pytest -n0 -p no:cacheprovider -o timeout=900 -q --durations=20 {tests}
"""


def run_inside(guest: Machine, package: Path, tests: str) -> None:
    result = guest.run(INSIDE.format(tests=tests), {"spur.deb": package}, timeout_s=1700)
    print(result.output)
    assert result.exit_code == 0, result.output
    assert "skipped" not in result.output, result.output


def test_jobs_live_through_all_that_systemd_does_to_spurd(guest: Machine, package: Path) -> None:
    run_inside(guest, package, "tests/guest/inside")


def test_an_exit_that_nobody_alive_has_seen_comes_out_of_the_descriptor_store(
    recent_guest: Machine, package: Path
) -> None:
    run_inside(recent_guest, package, "tests/guest/inside/test_witness.py")
