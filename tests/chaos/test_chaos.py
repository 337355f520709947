"""The runner itself: a short run, so that it does not rot between the long ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = [sys.executable, "-m", "tests.chaos", "--seed", "3", "--minutes", "0.2", "--nodes", "2", "--job-every", "0.8"]


@pytest.mark.timeout(400)
def test_a_short_run_injects_faults_and_finds_nothing_wrong(tmp_path: Path) -> None:
    """R07, R14, R15, R22, R41, R50, with everything that this machine lets us break."""
    top = Path(__file__).parents[2]
    result = subprocess.run([*RUN, "--keep", tmp_path], cwd=top, text=True, capture_output=True, check=False)
    said = result.stdout + result.stderr
    assert result.returncode == 0, said
    [(faults, kills)] = re.findall(r"(\d+) faults, (\d+) agents killed", said)
    assert int(faults) > 0 and int(kills) > 0, said  # how many fit in depends on the machine's speed
    [jobs] = re.findall(r"(\d+) jobs, ", said)
    assert int(jobs) > 0, said
    assert (tmp_path / "spurctld.log").exists()
