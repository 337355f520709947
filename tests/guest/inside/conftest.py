"""A node from the Debian package, made once for all tests in the guest."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .node import run, until

PACKAGE = Path("/opt/guest/spur.deb")
# What systemd says when a process of the unit stayed behind, or its cgroup could not be used again.
BAD_SIGNS = ("left-over process", "status=219", "Failed to attach", "Failed with result 'timeout'")


@pytest.fixture(scope="session")
def node() -> None:
    """Installed and started with the two commands that the documentation names."""
    if subprocess.run(["dpkg", "--status", "spur"], capture_output=True).returncode != 0:
        run("dpkg", "--force-unsafe-io", "--install", str(PACKAGE), timeout_s=300)
    run("systemctl", "enable", "--now", "spurctld", "spurd", timeout_s=180)
    until("the node is idle", lambda: "idle" in run("sinfo", "--noheader", "--format=%t"))


@pytest.fixture(autouse=True)
def no_bad_signs(node: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """systemd found nothing wrong with the unit while a test ran."""
    mark = f"test {request.node.name} begins"
    subprocess.run(["systemd-cat", "--identifier=test"], input=mark, text=True, check=True)
    yield
    said = run("journalctl", "--no-pager", "--output=cat", "--boot").rpartition(mark)[2]
    signs = [line for line in said.splitlines() if any(sign in line for sign in BAD_SIGNS)]
    assert signs == []
