"""The first command of the README, as a reader runs it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not (ROOT / ".venv/spur-stamp").exists(), reason="deploy/setup has not been run in this checkout")
@pytest.mark.skipif(os.geteuid() != 0, reason="root only")
def test_the_demonstration_shows_an_exact_exit_and_leaves_nothing() -> None:
    """R03, R22: same supervisor over kill -9 and SIGTERM of the agent, exit 7, output without a gap."""
    # Other tests use the environment meanwhile: it must not be made anew under them.
    env = {**os.environ, "SPUR_IS_SET_UP": "yes"}
    shown = subprocess.run(
        [ROOT / "deploy/demo"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        env=env,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "ExitCode=7:0" in shown.stdout
    assert "Nothing is left of it." in shown.stdout
