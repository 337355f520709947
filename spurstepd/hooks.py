"""The site's programs around a run on this node: prolog and epilog, as root, children of the supervisor."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from spurstepd import faults, spawn
from spurstepd.launchplan import LaunchPlan
from spurstepd.ledger import Duty, Exit, Manifest
from spurstepd.plugins import Plugins
from spurstepd.reactor import Reactor
from spurstepd.rundir import RunDir
from spurstepd.spawn import Child, Step
from spurstepd.waitstatus import pair, sentence

_TAIL_BYTES = 200


def start(
    duty: Duty, plan: LaunchPlan, ledger: Manifest, run_dir: RunDir, plugins: Plugins, reactor: Reactor,
    enter: Callable[[], None],
) -> Child:  # fmt: skip
    """Fork the prolog or the epilog, at its gate. What it writes goes to a file, whose tail explains a failure."""
    program = plan.hooks.prolog if duty is Duty.PROLOG else plan.hooks.epilog
    environment = _environment(duty, plan, ledger)

    def execute() -> None:
        plugins.around_run(duty, environment)
        if program is None:
            os._exit(0)
        os.execve(program, [program], environment)

    steps = [
        Step("session", os.setsid),
        Step("signals", spawn.reset_signals),
        Step("out-of-memory score", spawn.reset_oom_score),
        Step("working directory", lambda: os.chdir("/")),
        Step("input and output", lambda: _open_files(output_file(run_dir, duty))),
    ]
    child = spawn.fork_child(reactor, enter, steps, execute, lambda: False)
    faults.point(f"{duty.value}-forked")
    return child


def output_file(run_dir: RunDir, duty: Duty) -> Path:
    return run_dir.path / f"{duty.value}.out"


def verdict_on(duty: Duty, plan: LaunchPlan, status: int, timed_out: bool, said: str, run_dir: RunDir) -> str:
    """Why the hook with raw wait status `status` failed, in one line; "" where it did not."""
    if status == 0 and not said:
        return ""
    limit = plan.hooks.prolog_timeout_s if duty is Duty.PROLOG else plan.hooks.epilog_timeout_s
    how = f"did not end within {limit:g} s" if timed_out else sentence(status)
    tail = said or _tail(output_file(run_dir, duty))
    return f"{duty.value} {how}" + (f": {tail}" if tail else "")


def _environment(duty: Duty, plan: LaunchPlan, ledger: Manifest) -> dict[str, str]:
    """slurm.conf(5), Prolog and Epilog: what the plan gives, the context, and for an epilog how the job ended."""
    environment = dict(entry.split("=", 1) for entry in plan.hooks.environment)
    environment["SLURM_SCRIPT_CONTEXT"] = f"{duty.value}_slurmd"
    if duty is Duty.EPILOG:
        environment |= _exit_variables(ledger.exit)
    return environment


def _exit_variables(exit: Exit | None) -> dict[str, str]:
    """Raw and as a pair, as waitid saw it; an exit that nobody knows has no code and is not given one."""
    if exit is None or exit.status is None:
        return {"SPUR_JOB_EXIT_SOURCE": exit.source.value if exit else "unknown"}
    return {
        "SLURM_JOB_EXIT_CODE": str(exit.status),
        "SLURM_JOB_EXIT_CODE2": pair(exit.status),
        "SLURM_JOB_DERIVED_EC": "0",
        "SPUR_JOB_EXIT_SOURCE": exit.source.value,
    }


def _open_files(output: Path) -> None:
    source = os.open("/dev/null", os.O_RDONLY)
    try:
        sink = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    except OSError:  # a full disk must not keep the epilog from running
        sink = os.open("/dev/null", os.O_WRONLY)
    for number, fd in enumerate((source, sink, sink)):
        os.dup2(fd, number, inheritable=True)


def _tail(output: Path) -> str:
    try:
        data = output.read_bytes()[-_TAIL_BYTES:]
    except OSError:
        return ""
    return " ".join(data.decode(errors="replace").split())
