"""A command loads what it needs and no more: its start is most of what a user waits for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spur.controllerserver import BIN, ControllerServer

# Other than grpc and what that loads by itself (asyncio among it), nothing large may be loaded.
HEAVY = [
    "asyncvarlink",
    "jwt",
    "cryptography",
    "pyroute2",
    "structlog",
    "rich",
    "sqlite3",
    "psutil",
    "prctl",
    "argparse",
    "unittest",
    "xml",
    "spurctld",
    "spurd",
    "spurstepd",
    "spur.tokens",
    "spur.tokensocket",
    "spur.credentials",
    "spur.callers",
    "multiprocessing",
]
CALLS = [
    ["squeue"],
    ["sinfo"],
    ["scancel", "3"],
    ["scontrol", "show", "job"],
    ["sbatch", "--wrap", "true"],
    ["sbatch", "--test-only", "--wrap", "true"],
]
RUN = """
import importlib, sys
name, *words = sys.argv[1:]
sys.argv = [name, *words]
try:
    importlib.import_module(f"spur.commands.{name}").main()
except SystemExit as exit:
    assert exit.code == 0, exit.code
loaded = {module for module in sys.modules}
sys.stderr.write("\\n".join(sorted(loaded)))
"""


@pytest.mark.parametrize("argv", CALLS, ids=" ".join)
def test_nothing_heavy_is_loaded(argv: list[str], tmp_path: Path) -> None:
    with ControllerServer() as server:
        done = subprocess.run(
            [sys.executable, "-c", RUN, *argv],
            env=server.environ(tmp_path),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    loaded = set(done.stderr.split("\n"))
    assert done.returncode == 0, done.stderr
    assert "grpc" in loaded and "spur.client" in loaded
    assert not {name for name in HEAVY if name in loaded}


@pytest.mark.parametrize("argv", [["squeue", "--help"], ["sinfo", "--version"], ["sbatch", "--bogus"], ["scancel"]])
def test_what_needs_no_controller_does_not_even_load_grpc(argv: list[str], tmp_path: Path) -> None:
    code = RUN.replace("assert exit.code == 0, exit.code", "pass")
    with ControllerServer() as server:
        done = subprocess.run(
            [sys.executable, "-c", code, *argv], env=server.environ(tmp_path), capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
    assert "grpc" not in done.stderr.split("\n")
    assert not server.requests


def test_an_output_that_is_closed_ends_a_command_as_it_ends_others(tmp_path: Path) -> None:
    with ControllerServer() as server:
        script = (
            "import subprocess, sys; p = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE); p.stdout.close()\n"
        )
        script += "sys.exit(p.wait() + 200)"
        done = subprocess.run(
            [sys.executable, "-c", script, str(BIN / "squeue")], env=server.environ(tmp_path), capture_output=True,
            timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (200 - 13, b"")


def test_a_full_disk_below_the_output_is_an_error(tmp_path: Path) -> None:
    with ControllerServer() as server, open("/dev/full", "wb") as full:
        done = subprocess.run(
            [BIN / "squeue"], env=server.environ(tmp_path), stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert done.returncode == 1
    assert done.stderr == b"squeue: error: No space left on device\n"
