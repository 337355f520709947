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
from dataclasses import dataclass
from pathlib import Path

import structlog

from spurd.channel import Channel, ChannelLost, Refused, Values
from spurstepd.ids import RunId
from spurstepd.ledger import LedgerError, Record
from spurstepd.rundir import NodeDirs

_INTERFACE = "org.spur.Launcher"
_START_PATIENCE_S = 20.0
_ANSWER_PATIENCE_S = 5.0
_SUPERVISE_PATIENCE_S = 15.0
_LONGEST_PAUSE_S = 10.0
_PROBE_S = 0.02

log = structlog.get_logger()


class LauncherFailed(Exception):
    """No supervisor could be started; one line. It is worth trying again."""


class NoSuchRun(Exception):
    """The launcher finds no directory for the run."""


@dataclass(frozen=True, slots=True)
class Leader:
    """What we know of the leader of a run whose supervisor died: a pidfd that we kept, the status if we reaped it."""

    pid: int
    pidfd: int | None
    status: int | None


@dataclass(slots=True)
class Launcher:
    """One that answers."""

    pid: int
    channel: Channel

    async def holds(self, run: RunId) -> bool:
        """Whether it supervises `run` or is about to again. ChannelLost, Refused, TimeoutError, LedgerError."""
        async with asyncio.timeout(_ANSWER_PATIENCE_S):
            reply = Record(await self.channel.call(f"{_INTERFACE}.ListChildren"), "reply")
        return any((one.integer("job"), one.integer("attempt")) == (run.job, run.attempt)
                   for one in reply.records("children"))  # fmt: skip

    async def supervise(self, run: RunId, leader: Leader | None) -> int:
        """The pid of the supervisor of `run`, which holds its lock. Refused, ChannelLost, TimeoutError, LedgerError."""
        parameters: Values = {"job": run.job, "attempt": run.attempt}
        fds: tuple[int, ...] = ()
        if leader is not None and leader.status is not None:
            parameters |= {"leader_pid": leader.pid, "leader_status": leader.status}
        if leader is not None and leader.pidfd is not None:
            parameters["leader_fd"], fds = 0, (leader.pidfd,)
        async with asyncio.timeout(_SUPERVISE_PATIENCE_S):
            reply = await self.channel.call(f"{_INTERFACE}.Supervise", parameters, fds)
        return Record(reply, "reply").integer("pid", least=1)


class Launchers:
    """All launchers of this node. `program` gives the command line that starts one.

    `on_trouble` is told why there is no launcher of ours, and with None that there is one again.
    """

    def __init__(
        self, dirs: NodeDirs, program: Callable[[], tuple[str, ...]], on_trouble: Callable[[str | None], None]
    ) -> None:
        self._dirs = dirs
        self._program = program
        self._on_trouble = on_trouble
        self._others: dict[int, Launcher] = {}
        self._own: Launcher | None = None
        self._own_changed = asyncio.Event()
        self._starting: asyncio.Task[Launcher] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    async def find(self) -> None:
        """Connect to what earlier agents left; sockets that nobody listens on any more are removed."""
        for path in sorted(self._dirs.launchers.glob("*.sock")):
            try:
                async with asyncio.timeout(_ANSWER_PATIENCE_S):
                    channel = await Channel.connect(path)
            except TimeoutError:
                log.warning("launcher_not_answering", socket=str(path))
                continue
            except ChannelLost:
                path.unlink(missing_ok=True)
                continue
            self._others[channel.peer_pid()] = Launcher(channel.peer_pid(), channel)
            log.info("launcher_found", pid=channel.peer_pid())

    async def keep_own(self) -> None:
        """Have a launcher of ours, for as long as this is awaited; a new one whenever it dies."""
        pause = 0.1
        while True:
            began = time.monotonic()
            self._starting = asyncio.create_task(self._start())
            try:
                own = await asyncio.shield(self._starting)
            except (LauncherFailed, OSError) as error:
                log.error("launcher_not_started", reason=str(error))
                self._on_trouble(f"spurd cannot start its launcher: {error}")
            else:
                self._become(own)
                await own.channel.wait_lost()
                self._become(None)
                self._socket(own.pid).unlink(missing_ok=True)
                log.warning("launcher_lost", pid=own.pid)
                pause = 0.1 if time.monotonic() - began > _LONGEST_PAUSE_S else pause
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _become(self, own: Launcher | None) -> None:
        if self._own is not None:
            self._own.channel.close()
        self._own = own
        if own is None:
            self._own_changed.clear()
            return
        self._on_trouble(None)
        self._own_changed.set()
        log.info("launcher_started", pid=own.pid)

    async def ready(self, patience_s: float) -> bool:
        """Whether there is a launcher of ours within that time."""
        try:
            async with asyncio.timeout(patience_s):
                await self._own_changed.wait()
        except TimeoutError:
            return False
        return True

    async def _start(self) -> Launcher:
        """Start the program and wait for its socket. LauncherFailed: it ended, or took too long and was ended."""
        # A log file of its own and not our stderr: it outlives us, and whoever reads our stderr waits for its end.
        command = self._program()
        with open(self._dirs.log, "ab", opener=_private) as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", start_new_session=True
            )
        self._process = process
        path = self._socket(process.pid)
        try:
            async with asyncio.timeout(_START_PATIENCE_S):
                channel = await self._reach(process, path)
                await channel.call(f"{_INTERFACE}.Attach")
        except (TimeoutError, ChannelLost, Refused) as error:
            process.kill()
            raise LauncherFailed(str(error) or f"no answer within {_START_PATIENCE_S:.0f} s") from None
        return Launcher(process.pid, channel)

    def _socket(self, pid: int) -> Path:
        return self._dirs.launchers / f"{pid}.sock"

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
            launcher.channel.close()
            del self._others[launcher.pid]
            log.info("launcher_gone", pid=launcher.pid)

    async def supervise(self, run: RunId, leader: Leader | None) -> int:
        """Have our launcher start a supervisor on the directory of `run`; its pid, or that of one that is there.

        LauncherFailed: there is none, and why. NoSuchRun: there is no directory.
        """
        if not await self.ready(_START_PATIENCE_S) or self._own is None:
            raise LauncherFailed("the launcher is not up")
        try:
            return await self._own.supervise(run, leader)
        except Refused as error:
            return _refused(error)
        except (ChannelLost, LedgerError, TimeoutError) as error:
            raise LauncherFailed(str(error) or "the launcher does not answer") from None

    def reaped(self, pid: int) -> bool:
        """Whether the child `pid`, which has ended, is the program that we started; it is reaped then."""
        if self._process is None or self._process.pid != pid:
            return False
        self._process.poll()
        return True

    async def close(self) -> None:
        """Drop all connections. Launchers without supervisors leave by themselves, when they have been attached to."""
        if self._starting is not None and not self._starting.done():
            with suppress(LauncherFailed, OSError):
                self._become(await self._starting)
        for other in self._others.values():
            other.channel.close()
        self._others.clear()
        if self._own is not None:
            self._own.channel.close()


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
