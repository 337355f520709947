"""The jobs of a chaos run: what their scripts do, and how each of them must end.

Every script writes into `traces/script.JOB` when it begins and before it ends, with its run and the seconds since boot,
so that it can be told afterwards how often which attempt ran, and when.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

SHORT_LIMIT_S = 3  # of the jobs that overrun their time limit
FOREVER_S = 100_000


class Ending(Enum):
    """What a script does in the end."""

    EXIT = "exits"
    SIGNAL = "is ended by a signal of its own"
    CORE = "dumps core"
    SURVIVE = "survives a SIGTERM of its own, then exits"
    LEAVE = "leaves processes behind that detached themselves"
    POLITE = "runs until it is told to go, then exits with a code of its own"
    STUBBORN = "runs until it is killed"
    OVERRUN = "runs past its time limit"


NEVER_BY_ITSELF = frozenset({Ending.POLITE, Ending.STUBBORN, Ending.OVERRUN})


@dataclass(frozen=True, slots=True)
class Outcome:
    """A job's state and its ExitCode, as scontrol shows them."""

    state: str
    exit_code: str

    def __str__(self) -> str:
        return f"{self.state} {self.exit_code}"


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One job. `number` is an exit code or a signal; it is cancelled `cancel_after_s` after its submission."""

    index: int
    ending: Ending
    number: int
    lasts_s: float
    cpus: int = 1
    cancel_after_s: float | None = None
    requeue: bool | None = None

    @property
    def name(self) -> str:
        """What finds the job again where the answer to sbatch was lost."""
        return f"chaos-{self.index}"

    def __str__(self) -> str:
        cancelled = "" if self.cancel_after_s is None else f", cancelled after {self.cancel_after_s:.1f} s"
        return f"{self.name}: {self.lasts_s:.1f} s, {self.ending.value} ({self.number}){cancelled}"


def natural_end(job: JobPlan) -> Outcome | None:
    """How the job ends if nobody ends it; None: it does not."""
    match job.ending:
        case Ending.SIGNAL | Ending.CORE:
            return Outcome("FAILED", f"0:{job.number}")
        case Ending.EXIT | Ending.SURVIVE | Ending.LEAVE:
            return Outcome("FAILED" if job.number else "COMPLETED", f"{job.number}:0")
        case _:
            return None


def ended_codes(job: JobPlan) -> frozenset[str]:
    """The ExitCodes that its script may have when somebody ends it: by TERM, then KILL, or by itself just before."""
    codes = {"0:15", "0:9"}  # 15 also where the script had not come to its trap yet
    natural = natural_end(job)
    if natural is not None:
        codes.add(natural.exit_code)
    if job.ending is Ending.POLITE:
        codes.add(f"{job.number}:0")
    return frozenset(codes)


def options(job: JobPlan) -> list[str]:
    """Of sbatch."""
    words = ["-J", job.name, "-c", str(job.cpus), "-p", "brief" if job.ending is Ending.OVERRUN else "main"]
    if job.requeue is not None:
        words.append("--requeue" if job.requeue else "--no-requeue")
    return words


def script(job: JobPlan, traces: Path) -> str:
    """The batch script. Its own path, `.../runs/JOB.ATTEMPT/script`, tells it which attempt it is."""
    return "\n".join(["#!/bin/bash", *_begin(traces), *_body(job), ""])


def _begin(traces: Path) -> list[str]:
    return [
        "run=${0%/script}; run=${run##*/}",
        f'trace() {{ read -r up _ < /proc/uptime; echo "$* $run $SLURMD_NODENAME $up" >> {traces}/script.$SLURM_JOB_ID; }}',
        "trace begin",
    ]


def _body(job: JobPlan) -> list[str]:
    work, leave = f"sleep {job.lasts_s:.2f}", f"trace end; exit {job.number}"
    match job.ending:
        case Ending.EXIT:
            return [work, leave]
        case Ending.SIGNAL:
            return [work, "trace end", f"kill -{job.number} $$"]
        case Ending.CORE:
            return ["ulimit -c unlimited", work, "trace end", f"kill -{job.number} $$"]
        case Ending.SURVIVE:
            return ["trap 'trace survived' TERM", work, "kill -TERM $$", leave]
        case Ending.LEAVE:
            return [work, *_daemons(), leave]
        case Ending.POLITE:
            return [f"trap 'trace end; exit {job.number}' TERM", f"sleep {FOREVER_S} & wait"]
        case Ending.STUBBORN:
            return ["trap '' TERM", f"sleep {FOREVER_S}"]
        case Ending.OVERRUN:
            return [f"sleep {FOREVER_S}"]


def _daemons() -> list[str]:
    """Two that are of sessions of their own; one with nothing in its environment and nobody's child any more."""
    return [
        f"setsid sleep {FOREVER_S} < /dev/null > /dev/null 2>&1 & left=$!",
        'trace "left $left $(cut -d " " -f 22 /proc/$left/stat)"',
        f"left=$(cd /; env -i setsid sleep {FOREVER_S} < /dev/null > /dev/null 2>&1 & echo $!)",
        'trace "left $left $(cut -d " " -f 22 /proc/$left/stat)"',
    ]
