"""The site's programs that run beside the controller, around each run: PrologSlurmctld and EpilogSlurmctld in Slurm.

That a hook is under way is stored before it starts, so each runs once; one that was interrupted by our death is not
repeated. What a hook leaves running in its process group dies with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import structlog

from spur import hostlist
from spur.config import Config
from spurctld.core.events import HookEnded
from spurctld.core.instructions import RunHook
from spurctld.core.records import Job, Run
from spurctld.core.states import HookKind
from spurctld.engine import stamp

MAX_AT_ONCE = 64
_OUTPUT_LIMIT = 2000
_LAST_WORDS_S = 1.0

log = structlog.get_logger()


class Hooks:
    """Owns the children. Lives as long as the daemon."""

    def __init__(self, config: Config, tell: Callable[[HookEnded], None]) -> None:
        self._config, self._tell = config, tell
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(MAX_AT_ONCE)

    def start(self, hook: RunHook, environment: dict[str, str]) -> None:
        task = asyncio.create_task(self._run(hook, environment), name=f"{hook.kind.value} {hook.run}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Ends those that run; they are found interrupted at the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, hook: RunHook, environment: dict[str, str]) -> None:
        async with self._room:
            path, timeout_s = self._program(hook.kind)
            problem = "there is none in the configuration any more" if path is None else None
            if path is not None:
                problem = await _carry_out(path, timeout_s, environment)
        if problem:
            log.warning("hook_failed", hook=hook.kind.value, job=hook.run.job, attempt=hook.run.attempt, reason=problem)
        ok = problem is None or path is None
        self._tell(HookEnded(run=hook.run, kind=hook.kind, ok=ok, detail=problem or "", **stamp()))

    def _program(self, kind: HookKind) -> tuple[Path | None, float]:
        hooks = self._config.hooks
        if kind is HookKind.PROLOG:
            return hooks.controller_prolog, hooks.prolog_timeout_secs
        return hooks.controller_epilog, hooks.epilog_timeout_secs


async def _carry_out(path: Path, timeout_s: float, environment: dict[str, str]) -> str | None:
    """Runs the program to its end. What went wrong, in one line; None: nothing."""
    try:
        child = await asyncio.create_subprocess_exec(
            str(path),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            cwd="/",
            start_new_session=True,  # its children are killed with it
        )
    except OSError as error:
        return f"{path}: {error.strerror}"
    reading = asyncio.create_task(_read_some(child))
    try:
        async with asyncio.timeout(timeout_s):
            status = await child.wait()
    except TimeoutError:
        return f"{path}: took longer than {timeout_s:g} s and was killed"
    finally:
        await _end(child)
        await asyncio.wait([reading], timeout=_LAST_WORDS_S)
        reading.cancel()
    said = reading.result() if reading.done() and not reading.cancelled() else ""
    if status == 0:
        return None
    how = f"was killed by signal {-status}" if status < 0 else f"exited with {status}"
    return f"{path}: {how}{f': {said}' if said else ''}"


async def _read_some(child: asyncio.subprocess.Process) -> str:
    """The beginning of what it says on stderr, on one line; the rest is read and dropped."""
    assert child.stderr is not None
    kept = b""
    while part := await child.stderr.read(4096):
        kept = (kept + part)[:_OUTPUT_LIMIT]
    return " ".join(kept.decode(errors="replace").split())


async def _end(child: asyncio.subprocess.Process) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)  # what is left of its session's first group
    except ProcessLookupError:
        pass
    await child.wait()


def environment_of(config: Config, hook: RunHook, job: Job, run: Run, work_dir: str) -> dict[str, str]:
    """What Slurm gives its controller's hooks (prolog_epilog.shtml), for what there is here."""
    nodes = hostlist.compress(run.parts)
    values = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "SLURM_CLUSTER_NAME": config.cluster_name,
        "SLURM_JOB_ACCOUNT": job.spec.account,
        "SLURM_JOB_GID": str(job.spec.gid),
        "SLURM_JOB_GROUP": job.spec.group,
        "SLURM_JOB_ID": str(job.id),
        "SLURM_JOBID": str(job.id),
        "SLURM_JOB_NAME": job.spec.name,
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_JOB_PARTITION": job.spec.partition,
        "SLURM_JOB_UID": str(job.spec.uid),
        "SLURM_JOB_USER": job.spec.user,
        "SLURM_JOB_WORK_DIR": work_dir,
        "SLURM_RESTART_COUNT": str(job.restarts),
        "SLURM_SCRIPT_CONTEXT": f"{hook.kind.value}_slurmctld",
    }
    if hook.kind is HookKind.EPILOG:
        exit_raw = job.exit_raw if run.exit is None or run.exit.status is None else run.exit.status
        code, number = (0, exit_raw & 0x7F) if exit_raw & 0x7F else (exit_raw >> 8 & 0xFF, 0)
        values |= {
            "SLURM_JOB_EXIT_CODE": str(exit_raw),
            "SLURM_JOB_EXIT_CODE2": f"{code}:{number}",
            "SLURM_JOB_DERIVED_EC": "0",
        }
    return values
