"""The Debian package on a clean Debian, and what systemd may do to spurd: tests/guest/inside, in the guest."""

from __future__ import annotations

from pathlib import Path

import pytest

from .machine import Machine

pytestmark = pytest.mark.timeout(1800)

INSIDE = """#!/bin/sh
cd checkout && exec python3 -m pytest -n0 -p no:cacheprovider -o timeout=900 -q --durations=20 tests/guest/inside
"""


def test_jobs_live_through_all_that_systemd_does_to_spurd(guest: Machine, package: Path) -> None:
    result = guest.run(INSIDE, {"spur.deb": package}, timeout_s=1500)
    print(result.output)
    assert result.exit_code == 0, result.output
    assert "skipped" not in result.output, result.output
