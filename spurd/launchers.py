"""The launchers of this node: our own, which forks supervisors for us, and those that earlier agents left behind.

A launcher outlives the agent that started it for as long as it has supervisors, since it is their witness. Each has a
socket below launchers/, by which it is found. Only our own is told that we want it (Attach); the others go when their
last run has gone.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from spurd.channel import Channel, ChannelLost, Refused
from spurd.launcher import ANSWER_PATIENCE_S, INTERFACE, Launcher, Leader
from spurstepd.ids import RunId
from spurstepd.ledger import LedgerError, Record
from spurstepd.rundir import NodeDirs

_START_PATIENCE_S = 20.0
_CALLS_AT_ONCE = 64  # a launcher takes 128 connections
_LONGEST_PAUSE_S = 10.0
_PROBE_S = 0.02

log = structlog.get_logger()


class LauncherFailed(Exception):
    """No supervisor could be started; one line. It is worth trying again."""


class NoSuchRun(Exception):
    """The launcher finds no directory for the run."""


class Launchers:
    """All launchers of this node. `program` gives the command line that starts one.

    `on_trouble` is told why there is no launcher of ours, and with None that there is one again. `patience_s`: how
    long ours may not react before it is replaced.
    """

    def __init__(
        self,
        dirs: NodeDirs,
        program: Callable[[], tuple[str, ...]],
        on_trouble: Callable[[str | None], None],
        patience_s: float,
    ) -> None:
        self._dirs = dirs
        self._program = program
        self._patience_s = patience_s
        self._on_trouble = on_trouble
        self._others: dict[int, Launcher] = {}
        self._own: Launcher | None = None
        self._calls = asyncio.Semaphore(_CALLS_AT_ONCE)
        self._own_changed = asyncio.Event()
        self._starting: asyncio.Task[tuple[Launcher, Channel]] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    async def find(self) -> None:
        """See what earlier agents left; sockets that nobody listens on any more are removed."""
        for path in sorted(self._dirs.launchers.glob("*.sock")):
            try:
                async with asyncio.timeout(ANSWER_PATIENCE_S), Channel.open(path) as channel:
                    pid = channel.peer_pid()
            except TimeoutError:
                log.warning("launcher_not_answering", socket=str(path))
            except ChannelLost:
                path.unlink(missing_ok=True)
            else:
                self._others[pid] = Launcher(pid, path)
                log.info("launcher_found", pid=pid)

    async def keep_own(self) -> None:
        """Have a launcher of ours, for as long as this is awaited; a new one whenever it dies."""
        pause = 0.1
        while True:
            began = time.monotonic()
            self._starting = asyncio.create_task(self._start())
            try:
                own, attached = await asyncio.shield(self._starting)
            except (LauncherFailed, OSError) as error:
                log.error("launcher_not_started", reason=str(error))
                self._on_trouble(f"spurd cannot start its launcher: {error}")
            else:
                await self._have(own, attached)
                pause = 0.1 if time.monotonic() - began > _LONGEST_PAUSE_S else pause
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _have(self, own: Launcher, attached: Channel) -> None:
        """Until it is lost. `attached` is what keeps it from leaving when it has no supervisor."""
        self._own = own
        self._on_trouble(None)
        self._own_changed.set()
        log.info("launcher_started", pid=own.pid)
        try:
            await attached.wait_lost()
        finally:
            attached.close()
            self._own = None
            self._own_changed.clear()
        own.socket.unlink(missing_ok=True)
        log.warning("launcher_lost", pid=own.pid)

    async def ready(self, patience_s: float) -> bool:
        """Whether there is a launcher of ours within that time."""
        try:
            async with asyncio.timeout(patience_s):
                await self._own_changed.wait()
        except TimeoutError:
            return False
        return True

    async def _start(self) -> tuple[Launcher, Channel]:
        """Start the program and wait for its socket. LauncherFailed: it ended, or took too long and was ended."""
        # A log file of its own and not our stderr: it outlives us, and whoever reads our stderr waits for its end.
        command = self._program()
        with open(self._dirs.log, "ab", opener=_private) as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", start_new_session=True
            )
        self._process = process
        path = self._dirs.launchers / f"{process.pid}.sock"
        try:
            async with asyncio.timeout(_START_PATIENCE_S):
                channel = await self._reach(process, path)
                await channel.call(f"{INTERFACE}.Attach")
        except (TimeoutError, ChannelLost, Refused) as error:
            process.kill()
            raise LauncherFailed(str(error) or f"no answer within {_START_PATIENCE_S:.0f} s") from None
        return Launcher(process.pid, path), channel

    async def _reach(self, process: subprocess.Popen[bytes], path: Path) -> Channel:
        while True:
            if process.poll() is not None:
                raise LauncherFailed(f"it ended with {process.returncode}, see {self._dirs.log}")
            try:
                return await Channel.connect(path)
            except ChannelLost:
                await asyncio.sleep(_PROBE_S)

    async def is_held(self, run: RunId) -> bool:
        """Whether a launcher has `run` among its children, and will succeed its supervisor by itself."""
        launchers = [*self._others.values(), *([self._own] if self._own is not None else [])]
        for launcher in launchers:
            try:
                if await launcher.holds(run):
                    return True
            except (ChannelLost, Refused, LedgerError):
                self._drop(launcher)
            except TimeoutError:
                log.warning("launcher_not_answering", pid=launcher.pid)
        return False

    def _drop(self, launcher: Launcher) -> None:
        if self._others.get(launcher.pid) is launcher:
            launcher.socket.unlink(missing_ok=True)
            del self._others[launcher.pid]
            log.info("launcher_gone", pid=launcher.pid)

    async def supervise(self, run: RunId, leader: Callable[[], Leader | None]) -> int:
        """Have our launcher start a supervisor on the directory of `run`; its pid, or that of one that is there.

        `leader` is asked when there is a launcher: until then the leader may have ended, and been reaped by us.
        LauncherFailed: there is none, and why. NoSuchRun: there is no directory.
        """
        async with self._calls:
            if not await self.ready(_START_PATIENCE_S) or (own := self._own) is None:
                raise LauncherFailed("the launcher is not up")
            try:
                return await own.supervise(run, leader(), self._patience_s)
            except Refused as error:
                return _refused(error)
            except TimeoutError:
                await self._replace_wedged(own)
                raise LauncherFailed(f"no supervisor within {self._patience_s:.0f} s") from None
            except (ChannelLost, LedgerError) as error:
                raise LauncherFailed(str(error)) from None

    async def _replace_wedged(self, own: Launcher) -> None:
        """Kill a launcher of ours that reacts to nothing. Its supervisors live on, and we are their witness."""
        with suppress(ChannelLost, Refused, LedgerError):
            if await own.answers():
                return
        process = self._process
        if process is not None and process.pid == own.pid and self._own is own:
            log.error("launcher_killed", pid=own.pid, after_s=self._patience_s)
            process.kill()

    def reaped(self, pid: int) -> bool:
        """Whether the child `pid`, which has ended, is the program that we started; it is reaped then."""
        if self._process is None or self._process.pid != pid:
            return False
        self._process.poll()
        return True

    async def close(self) -> None:
        """Let a launcher that is being started go: it leaves once it was attached to. `keep_own` has ended before."""
        if self._starting is not None and not self._starting.done():
            with suppress(LauncherFailed, OSError):
                (await self._starting)[1].close()


def _refused(error: Refused) -> int:
    match error.name:
        case "AlreadySupervised":
            return Record(error.parameters, "reply").integer("pid")
        case "NoSuchRun":
            raise NoSuchRun from None
        case "Failed":
            raise LauncherFailed(str(error.parameters.get("reason"))) from None
    raise LauncherFailed(str(error)) from None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
