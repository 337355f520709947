"""The agent as a whole: what it starts with, in which order, and how it leaves.

The order is a promise: claims are restored before anything is served, so that nothing is granted twice (R33); nothing
waits for the controller (R21); and nothing of a run depends on this process being there.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc
import structlog

from spur import addresses
from spur.callers import Gate
from spur.config import Config, NodeConfig
from spur.credentials import Credentials
from spur.localtoken import AGENT_SOCKET
from spur.pb import spurctld_pb2, spurd_pb2_grpc
from spur.servicemanager import KeptDescriptor, Notifier
from spur.tokensocket import TokenSocket
from spurd import gpus, identity, inventory, recovery, rundirs, scope, site, witness
from spurd.admission import Admission
from spurd.caretaker import Caretaker, Company
from spurd.controller import Controller, Unanswered
from spurd.drains import Drains
from spurd.identity import Identity
from spurd.launchers import Launchers
from spurd.messages import Here
from spurd.presence import Node, Presence
from spurd.roster import Roster
from spurd.service import AgentService
from spurstepd import manifest
from spurstepd.rundir import NodeDirs
from spurstepd.title import become_subreaper

_LAUNCHER_PATIENCE_S = 10.0
_FAREWELL_S = 3.0
_GRACE_S = 2.0
_AFTER_FAILURE_S = 5.0

log = structlog.get_logger()


class CannotStart(Exception):
    """One line for the person who started it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration and what the command line said on top of it."""

    config: Config
    credentials: Credentials
    controller: tuple[str, ...]
    listen: str
    node: str
    dirs: NodeDirs
    program: str  # of the launcher
    notifier: Notifier
    kept: tuple[KeptDescriptor, ...]  # by the service manager, for us
    origin: scope.Origin


class Daemon:
    """Lives from `run` to its end."""

    def __init__(self, settings: Settings, declared: NodeConfig) -> None:
        self._settings = settings
        self._boot_id = manifest.boot_id()
        self._incarnation = secrets.token_hex(8)
        self._drains = Drains()
        self._witness = witness.Witness(settings.notifier, settings.kept)
        self._controller = Controller(settings.controller, lambda: settings.credentials.as_agent(settings.node))
        self._launchers = Launchers(
            settings.dirs,
            self._launcher_command,
            self._launcher_trouble,
            settings.config.agent.supervisor_timeout_secs,
        )
        self._machine = inventory.measure()
        self._resolution = gpus.resolve(declared.gres, declared.gpus, gpus.discover(), gpus.hardware())
        self._declared = declared
        self._site = site.of_node(settings.config, self._resolution.devices)
        site.lift_descriptor_limit()
        self._stop = asyncio.Event()
        self._was_idle = False
        self._background: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. CannotStart."""
        loop = asyncio.get_running_loop()
        become_subreaper()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        found = self._recover()
        await self._launchers.find()
        self._spend("launcher", self._launchers.keep_own)
        if not await self._launchers.ready(_LAUNCHER_PATIENCE_S):
            log.error("launcher_late", after_s=_LAUNCHER_PATIENCE_S)
        server, port = self._bind()
        tokens = await self._open_tokens()
        # All runs are known before the first call is answered: "no such run" must be true when it is said.
        self._take_care(found)
        self._admission.open()
        await server.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._leave)
        loop.add_signal_handler(signal.SIGHUP, lambda: log.info("hangup_ignored"))
        log.info("listening", address=addresses.join(addresses.split(self._settings.listen)[0], port))
        settings = self._settings
        # Not when the controller has answered: a restart must not hang or fail because it is away (R21).
        settings.notifier.ready(f"node {settings.node}, {len(self._roster)} runs, not registered yet")
        self._spend("presence", self._presence(port).keep_up)
        self._spend("watchdog", self._feed_watchdog)
        await self._stop.wait()
        await self._wind_down(server, tokens)

    def _spend(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Have `work` done beside everything else, again after a failure that nobody expected."""
        self._background.append(asyncio.create_task(_persist(name, work), name=name))

    # -- before anything is served

    def _recover(self) -> recovery.Found:
        """Claims first."""
        settings = self._settings
        try:
            before = identity.load(settings.dirs.state / "node.json", settings.node)
        except identity.WrongNode as error:
            raise CannotStart(str(error)) from None
        declared = self._declared
        now = inventory.inventory(self._machine, self._resolution.devices, declared.cpus, declared.memory_mb)
        found = recovery.recover(settings.dirs, now, before.inventory if before else None, self._boot_id, self._witness)
        try:
            identity.store(settings.dirs.state / "node.json", Identity(settings.node, self._boot_id, now))
        except OSError as error:  # a full disk must not keep the node from ending its runs
            log.error("identity_not_stored", reason=str(error))
        self._inventory = now
        self._roster = Roster(found.restoration.claims)
        for number, reason in enumerate(self._resolution.reasons):
            self._drains.owe(f"gres {number}", reason)
        for source, reason in recovery.drains(found):
            self._drains.owe(source, reason)
        log.info("claims_restored", runs=len(found.known), conflicts=len(found.restoration.conflicts))
        return found

    def _take_care(self, found: recovery.Found) -> None:
        for known in found.known:
            self._roster.admit(Caretaker(known, self._company))
        self._roster.end_conflicts((one.lost, one.reason) for one in found.restoration.conflicts)

    def _bind(self) -> tuple[grpc.aio.Server, int]:
        settings = self._settings
        self._company = Company(
            node=settings.node,
            dirs=settings.dirs,
            launchers=self._launchers,
            witness=self._witness,
            controller=self._controller,
            drains=self._drains,
            patience_s=settings.config.agent.supervisor_timeout_secs,
            on_gone=self._roster.gone,
        )
        constrained = settings.config.agent.constrain_devices
        self._admission = Admission(
            self._roster,
            self._company,
            self._site,
            self._boot_id,
            lambda grant: gpus.visibility(grant, self._inventory.gpus, constrained),
        )
        here = Here(settings.node, socket.gethostname(), str(settings.config.path))
        # Never shared: a port that two agents listen on would lose every second call.
        server = grpc.aio.server(
            interceptors=[Gate(settings.credentials.verify)],
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)],
        )
        service = AgentService(here, self._incarnation, self._roster, self._admission)
        spurd_pb2_grpc.add_AgentServicer_to_server(service, server)
        try:
            port = server.add_insecure_port(settings.listen)
        except RuntimeError:
            raise CannotStart(f"cannot listen on {settings.listen}: is another spurd running there?") from None
        return server, port

    async def _open_tokens(self) -> TokenSocket | None:
        sign = self._settings.credentials.sign_for_user
        if sign is None:
            return None
        path = self._settings.dirs.runtime / AGENT_SOCKET
        try:
            return await TokenSocket.open(path, sign)
        except OSError as error:
            raise CannotStart(f"cannot listen on {path}: {error.strerror}") from None

    def _presence(self, port: int) -> Presence:
        settings = self._settings
        node = Node(
            name=settings.node,
            hostname=socket.gethostname(),
            address=_reachable(settings.listen, port, settings.controller[0]),
            boot_id=self._boot_id,
            incarnation=self._incarnation,
            started_at=time.time(),
            machine=self._machine,
            inventory=self._inventory,
            declared_cpus=self._declared.cpus,
            devices=self._resolution.devices,
        )
        return Presence(
            node,
            self._controller,
            self._roster,
            self._drains,
            settings.config.agent.heartbeat_interval_secs,
            lambda: void(settings.notifier.status(f"node {node.name}, {len(self._roster)} runs")),
        )

    # -- children

    def _launcher_command(self) -> tuple[str, ...]:
        settings = self._settings
        command = (
            settings.program,
            "--state-dir", str(settings.dirs.state),
            "--runtime-dir", str(settings.dirs.runtime),
            "--cgroup", settings.config.agent.cgroup.value,
            "--node", settings.node,
            *(f"--plugin={name}" for name in settings.config.hooks.plugins),
        )  # fmt: skip
        if scope.needed(settings.origin):
            return scope.scoped(command, settings.node, scope.number_now())
        return command

    def _launcher_trouble(self, reason: str | None) -> None:
        self._drains.owe("launcher", reason)

    def _reap(self) -> None:
        witness.reap(self._launchers.reaped, self._saw_orphan)

    def _saw_orphan(self, pid: int, status: int) -> None:
        """A child of a supervisor and a launcher that have both died; perhaps before we heard of it."""
        seen = self._witness.saw(pid, status)
        for run, leader in () if seen else self._roster.unmet_leaders():
            if leader.pid == pid:
                self._witness.hold(run, leader)
                seen = self._witness.saw(pid, status)
        if seen is not None:
            witness.write_down(self._settings.dirs, *seen)

    async def _feed_watchdog(self) -> None:
        notifier = self._settings.notifier
        while notifier.watchdog_interval_s is not None:
            notifier.watchdog()
            await asyncio.sleep(notifier.watchdog_interval_s)

    # -- the end

    def _leave(self) -> None:
        """Decided in one step: from here on no launch is taken, so that idle stays idle (R02)."""
        if self._stop.is_set():
            return
        self._admission.close()
        self._was_idle = not len(self._roster) and not self._admission.is_busy
        log.info("stop_asked", idle=self._was_idle, runs=len(self._roster))
        self._settings.notifier.stopping("leaving")
        self._stop.set()

    async def _wind_down(self, server: grpc.aio.Server, tokens: TokenSocket | None) -> None:
        for task in self._background:
            if task.get_name() == "presence":
                task.cancel()  # a heartbeat after the farewell would bring the node back
        if self._was_idle:
            await self._say_farewell()
        await server.stop(_GRACE_S)
        await self._admission.settled()
        await self._roster.close()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if tokens is not None:
            await tokens.close()
        await self._controller.close()
        await self._launchers.close()
        self._witness.close()
        log.info("stopped")

    async def _say_farewell(self) -> None:
        """An idle node leaves at once (R01); one attempt, the heartbeat timeout is the backstop."""
        request = spurctld_pb2.DeregisterRequest(
            node=self._settings.node, incarnation=self._incarnation, reason="spurd was stopped"
        )
        try:
            await self._controller.deregister(request, _FAREWELL_S)
            log.info("deregistered")
        except Unanswered as error:
            log.warning("deregistration_not_answered", reason=str(error))


async def _persist(name: str, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await work()
            return
        except Exception:  # the node must not fall silent, or be without a launcher, because of one defect
            log.exception("task_failed", task=name)
            await asyncio.sleep(_AFTER_FAILURE_S)


def void(_: object) -> None:
    """For a call whose answer does not matter."""


def _reachable(listen: str, port: int, controller: str) -> str:
    """Host and port at which the controller reaches us: for a wildcard, the address that we reach it from."""
    host, _ = addresses.split(listen)
    if not addresses.is_wildcard(host):
        return addresses.join(host, port)
    try:
        family, kind, _, _, address = socket.getaddrinfo(*addresses.split(controller), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # of a datagram socket: chooses the route and sends nothing
            return addresses.join(probe.getsockname()[0], port)
    except OSError:
        return addresses.join(socket.gethostname(), port)


def lock_state_dir(dirs: NodeDirs) -> int:
    """The descriptor that makes this agent the only one of its state directory. CannotStart."""
    rundirs.prepare(dirs)
    path = dirs.state / "spurd.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise CannotStart(f"another spurd uses {dirs.state}") from None
    return fd
