"""Prolog and epilog programs that write down when they ran, for tests that look at their order and number.

Each is a shell script: a line when it begins, what the test wants it to do, a line when it ends. The times are seconds
since boot, which a script of a job reads from the same place (`UPTIME`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

UPTIME = "read -r up rest < /proc/uptime"

_PROGRAM = """#!/bin/sh
trace() {{ {uptime}; echo "$1 $up" >> {work}/{name}.$SLURM_JOB_ID; }}
trace begin
[ -e {work}/{name}.does ] && . {work}/{name}.does
trace end
"""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds since boot of each begin and end, in the order in which they were written."""

    begins: tuple[float, ...]
    ends: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class HookTraces:
    """Hooks of a cluster at `root`; its configuration needs `config`, and `write` once its directories are there."""

    root: Path

    @property
    def config(self) -> dict[str, str]:
        return {name: str(self.root / name) for name in ("prolog", "epilog")}

    def write(self) -> None:
        for name, path in self.config.items():
            Path(path).write_text(_PROGRAM.format(uptime=UPTIME, work=self.root / "work", name=name))
            Path(path).chmod(0o755)

    def does(self, name: str, lines: str) -> None:
        """What the hook `name` does from now on, between its two lines."""
        new = self.root / "work" / f".{name}.does"
        new.write_text(f"{lines}\n")
        new.rename(self.root / "work" / f"{name}.does")

    def times(self, name: str, job: int) -> Times:
        try:
            lines = (self.root / "work" / f"{name}.{job}").read_text().split("\n")
        except FileNotFoundError:
            lines = []
        pairs = [line.split() for line in lines if line]
        return Times(
            tuple(float(at) for word, at in pairs if word == "begin"),
            tuple(float(at) for word, at in pairs if word == "end"),
        )
