"""The node that the guest is, as an administrator and a user see it: by its commands, its files and systemctl."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SPOOL = Path("/var/lib/spur/spurd")
# The commands of the package, not those of the virtual environment that the tests run in.
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
PATIENCE_S = 240.0
_POLL_S = 0.2


def run(*command: str, timeout_s: float = PATIENCE_S) -> str:
    """The standard output of `command`, which must succeed."""
    done = subprocess.run(
        command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def until(what: str, holds: Callable[[], bool]) -> None:
    """Wait until `holds`; what is waited for are processes that no event of ours tells about."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(_POLL_S)


def unit(name: str, unit: str = "spurd.service") -> str:
    """One property of a unit."""
    return run("systemctl", "show", "--value", f"--property={name}", unit).strip()


def scopes() -> list[str]:
    """The scopes of launchers that live."""
    listed = run("systemctl", "list-units", "--plain", "--no-legend", "spur-runs-*.scope")
    return [line.split()[0] for line in listed.splitlines()]


@dataclass(frozen=True, slots=True)
class Job:
    """A job that waits to be told to end, and then ends as `ending` says."""

    number: int
    go: Path

    def end(self) -> None:
        self.go.touch()

    @property
    def directory(self) -> Path:
        return SPOOL / "runs" / f"{self.number}.1"

    def manifest(self) -> dict[str, dict[str, int]]:
        content: dict[str, dict[str, int]] = json.loads((self.directory / "manifest.json").read_text())
        return content

    def supervisor(self) -> int:
        return self.manifest()["supervisor"]["pid"]

    def has_leader(self) -> bool:
        return (self.directory / "manifest.json").exists() and bool(self.manifest().get("leader"))

    def has_recorded_exit(self) -> bool:
        return bool(self.manifest().get("exit"))

    def shown(self) -> dict[str, str]:
        words = run("scontrol", "show", "job", str(self.number)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def conclude(self) -> tuple[str, str]:
        """Wait until nothing is owed for it any more; its state and exit code."""
        until(f"the directory of job {self.number} is gone", lambda: not self.directory.exists())
        shown = self.shown()
        return shown["JobState"], shown["ExitCode"]


def submit(directory: Path, ending: str, *options: str) -> Job:
    """A running job."""
    go = directory / f"go-{time.monotonic_ns()}"
    script = f"while [ ! -e {go} ]; do sleep 0.1; done; {ending}"
    output = f"--output={directory}/out-%j"
    number = int(run("sbatch", "--parsable", output, *options, "--wrap", script))
    job = Job(number, go)
    until(f"job {number} has a leader", job.has_leader)
    return job
