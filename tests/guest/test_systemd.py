"""The Debian package on a clean Debian, and what systemd may do to spurd: tests/guest/inside, in the guest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .machine import Machine

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        os.environ.get("SPUR_GUEST_TESTS") != "all",
        reason="half an hour and more under emulation; SPUR_GUEST_TESTS=all runs it",
    ),
]

INSIDE = """#!/bin/sh
cd checkout && exec python3 -m pytest -n0 -p no:cacheprovider -o timeout=1800 -q --durations=20 {tests}
"""


def run_inside(guest: Machine, package: Path, tests: str) -> None:
    result = guest.run(INSIDE.format(tests=tests), {"spur.deb": package}, timeout_s=3300)
    print(result.output)
    assert result.exit_code == 0, result.output
    assert "skipped" not in result.output, result.output


def test_jobs_live_through_all_that_systemd_does_to_spurd(guest: Machine, package: Path) -> None:
    run_inside(guest, package, "tests/guest/inside")


def test_an_exit_that_nobody_alive_has_seen_comes_out_of_the_descriptor_store(
    recent_guest: Machine, package: Path
) -> None:
    run_inside(recent_guest, package, "tests/guest/inside/test_witness.py")


REBOOT = """#!/bin/sh
cd checkout && exec python3 -m tests.guest.inside.reboot
"""


def test_a_run_is_concluded_after_the_machine_lost_its_power_under_it(guest: Machine, package: Path) -> None:
    result = guest.run(REBOOT, {"spur.deb": package}, timeout_s=3300, reboots=True)
    assert result.exit_code == 0, result.output
