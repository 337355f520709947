"""The processes of a cluster as victims: found by their titles, held by pidfds, so that nobody else is ever hit."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import Agent


@dataclass(frozen=True, slots=True)
class Held:
    """A process that was what we took it for when we took hold of it."""

    pid: int
    title: str
    fd: int

    def send(self, number: int) -> bool:
        """False: it has gone."""
        try:
            signal.pidfd_send_signal(self.fd, number)
        except ProcessLookupError:
            return False
        return True

    def let_go(self) -> None:
        os.close(self.fd)

    def __str__(self) -> str:
        return f"{self.title} ({self.pid})"


def hold(pid: int, title: str) -> Held | None:
    """The process, if its command line begins with `title`; None: it is not there, or is somebody else."""
    try:
        fd = os.pidfd_open(pid)
    except (ProcessLookupError, ValueError):
        return None
    if title in command_line(pid):
        return Held(pid, title, fd)
    os.close(fd)
    return None


def command_line(pid: int) -> str:
    """Empty where it has gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def parent(pid: int) -> int:
    """0 where it has gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def start_ticks(pid: int) -> str:
    """With the pid, this process and no other; empty where it has gone or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def launchers(agent: Agent) -> list[Held]:
    found = (hold(pid, "spurstepd: launcher") for pid in agent.launcher_pids())
    return [one for one in found if one is not None]


def supervisors(agent: Agent) -> list[Held]:
    """Those that the records name."""
    found = []
    for run in agent.runs:
        try:
            pid = agent.supervisor_pid(*map(int, run.split(".")))
        except (OSError, ValueError, TypeError, KeyError):
            continue  # its record is being made or removed
        held = hold(pid, f"spurstepd: {run}")
        if held is not None:
            found.append(held)
    return found
