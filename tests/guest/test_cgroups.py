"""Runs on pure cgroup v2 with controllers: the tests of tests/spurstepd/cgroups, as they are, in the guest.

Inside a delegated scope, as a launcher lives under systemd, and inside a service together with other processes.
"""

from __future__ import annotations

import re

import pytest

from .machine import Machine

pytestmark = pytest.mark.timeout(900)

FILES = " ".join(f"checkout/tests/spurstepd/cgroups/test_{name}.py" for name in ("bare", "contained", "probe", "runs"))
TESTS = f"python -m pytest -n0 -p no:cacheprovider -q {FILES}"

IN_A_SCOPE = f"""#!/bin/sh
systemd-run --quiet --scope --property=Delegate=yes {TESTS}
"""

BESIDE_OTHERS = f"""#!/bin/sh
{TESTS}
"""


def test_runs_are_contained_in_a_delegated_scope(guest: Machine) -> None:
    result = guest.run(IN_A_SCOPE)
    assert result.exit_code == 0, result.output
    assert re.search(r"\b[1-9][0-9]* passed", result.output), result.output
    assert "SKIPPED" not in result.output, result.output


def test_runs_are_contained_beside_the_service_of_a_launcher_that_is_not_alone(guest: Machine) -> None:
    """Only what systemd has enabled in that slice limits there; the rest is skipped, memory and pids are not."""
    result = guest.run(BESIDE_OTHERS)
    assert result.exit_code == 0, result.output
    assert not re.search(r"no (memory|pids) controller", result.output), result.output
