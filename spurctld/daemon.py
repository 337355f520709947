"""The controller as a whole: what it starts with, in which order, and how it leaves.

The records are read before anything is served; what was owed when it died is owed again at once. It leaves promptly
on SIGTERM: nothing waits for a node, and what was decided is stored already.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from spur import addresses
from spur.callers import Gate
from spur.config import Config, SchedulerPlugin
from spur.credentials import Credentials
from spur.localtoken import CONTROLLER_SOCKET
from spur.pb import common_pb2, spurctld_pb2_grpc, spurd_pb2
from spur.servicemanager import Notifier
from spur.tokensocket import TokenSocket
from spurctld import launches
from spurctld.accounts import Accounts
from spurctld.core.cluster import Cluster
from spurctld.core.events import LaunchRefused
from spurctld.core.instructions import Instruction, LaunchRun, NodeInstruction, RunHook
from spurctld.core.machine import Core, Event
from spurctld.core.rows import RowError
from spurctld.core.states import Fault, NodeState, PartitionState, Phase
from spurctld.core.values import Gres, NodeSpec, PartitionSpec, Policy
from spurctld.dispatch import Dispatcher, NotWanted
from spurctld.engine import Engine, stamp
from spurctld.hooks import Hooks, environment_of
from spurctld.registry import RegistryService
from spurctld.service import ControllerService
from spurctld.store import Store, StoreError

_GRACE_S = 1.0  # for calls under way when it is told to leave

log = structlog.get_logger()


class CannotStart(Exception):
    """One line for the person who started it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration and what the command line said on top of it."""

    config: Config
    credentials: Credentials
    listen: str
    state_dir: Path
    runtime_dir: Path
    notifier: Notifier


class Daemon:
    """Lives from `run` to its end. It is the desk at which the dispatcher asks."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings, self._store = settings, store
        config = settings.config
        self._host = socket.gethostname().partition(".")[0]
        self._site = launches.Site(config.cluster_name, self._host, config.job.kill_wait_secs)
        self._accounts = Accounts()
        self._engine = Engine(store, lambda: Core(make_cluster(config)), self._carry_out, self._started_over)
        self._dispatcher = Dispatcher(self, config.controller.agent_timeout_secs)
        self._hooks = Hooks(config, self._engine.tell)
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. CannotStart."""
        config = self._settings.config
        for warning in config.warnings:
            log.warning("configuration_unwise", text=warning)
        try:
            self._engine.load()
        except (StoreError, RowError) as error:
            raise CannotStart(str(error)) from None
        server, port = await self._serve()
        tokens = await self._open_tokens()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        work = asyncio.create_task(self._engine.run(config.scheduler.interval_secs), name="engine")
        watchdog = asyncio.create_task(self._feed_watchdog(), name="watchdog")
        address = addresses.join(addresses.split(self._settings.listen)[0], port)
        jobs = len(self._engine.core.cluster.jobs)
        log.info("listening", address=address, jobs=jobs, pid=os.getpid())
        self._settings.notifier.ready(f"{address}, {jobs} jobs")
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait([stopping, work], return_when=asyncio.FIRST_COMPLETED)
        self._settings.notifier.stopping("storing")
        log.info("leaving")
        for task in (watchdog, stopping):
            task.cancel()
        await self._leave(server, tokens, work)

    async def _serve(self) -> tuple[grpc.aio.Server, int]:
        settings, config = self._settings, self._settings.config
        server = grpc.aio.server(
            interceptors=[Gate(settings.credentials.verify)],
            options=[
                ("grpc.so_reuseport", 0),  # two controllers on one port would each get every second call
                ("grpc.max_receive_message_length", _message_limit(config)),
                ("grpc.max_send_message_length", -1),
            ],
        )
        service = ControllerService(self._engine, self._accounts, config, self._host)
        registry = RegistryService(
            self._engine, config.cluster_name, config.agent.heartbeat_interval_secs, self._dispatcher.hurry
        )
        spurctld_pb2_grpc.add_ControllerServicer_to_server(service, server)
        spurctld_pb2_grpc.add_RegistryServicer_to_server(registry, server)
        try:
            port = server.add_insecure_port(settings.listen)
        except RuntimeError:
            raise CannotStart(f"cannot listen on {settings.listen}: is another spurctld running there?") from None
        service.listen = addresses.join(addresses.split(settings.listen)[0], port)
        await server.start()
        return server, port

    async def _open_tokens(self) -> TokenSocket | None:
        sign = self._settings.credentials.sign_for_user
        if sign is None:
            return None
        path = self._settings.runtime_dir / CONTROLLER_SOCKET
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            return await TokenSocket.open(path, sign)
        except OSError as error:
            raise CannotStart(f"cannot listen on {path}: {error.strerror}") from None

    async def _leave(self, server: grpc.aio.Server, tokens: TokenSocket | None, work: asyncio.Task[None]) -> None:
        """New calls are refused at once; those under way have a moment, and their decisions are stored."""
        await server.stop(_GRACE_S)
        if tokens is not None:
            await tokens.close()
        await self._dispatcher.close()
        await self._hooks.close()
        failed = work.done() and not work.cancelled() and work.exception()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await self._engine.close()
        self._accounts.close()
        self._store.close()
        if failed:
            raise failed

    async def _feed_watchdog(self) -> None:
        interval_s = self._settings.notifier.watchdog_interval_s
        while interval_s is not None:
            self._settings.notifier.watchdog()
            await asyncio.sleep(interval_s)

    # What the engine has decided

    def _carry_out(self, one: Instruction) -> None:
        if isinstance(one, NodeInstruction):
            self._dispatcher.send(one)
        elif isinstance(one, RunHook):
            self._start_hook(one)

    def _start_hook(self, hook: RunHook) -> None:
        job = self._engine.core.cluster.jobs.get(hook.run.job)
        run = job.runs.get(hook.run.attempt) if job else None
        if job is None or run is None:
            return
        description = common_pb2.JobDescription.FromString(self._engine.descriptions[job.id])
        self._hooks.start(hook, environment_of(self._settings.config, hook, job, run, description.work_dir))

    def _started_over(self) -> None:
        self._dispatcher.forget()

    # What the dispatcher asks

    def address(self, node: str) -> str | None:
        found = self._engine.core.cluster.nodes.get(node)
        if found is None or found.machine is None or found.state is NodeState.LEFT:
            return None
        return found.machine.address

    def metadata(self) -> tuple[tuple[str, str], ...]:
        return self._settings.credentials.as_controller()

    async def launch(self, one: LaunchRun) -> spurd_pb2.LaunchRunRequest:
        self._check_wanted(one)
        try:
            bulk = await self._engine.bulk(one.run.job)
        except StoreError as error:
            log.error("script_not_read", job=one.run.job, reason=str(error))
            self.tell(LaunchRefused(run=one.run, node=one.node, fault=Fault.USER, text="its script is lost", **stamp()))
            raise NotWanted from None
        self._check_wanted(one)
        job = self._engine.core.cluster.jobs[one.run.job]
        description = self._engine.descriptions[job.id]
        run = job.runs[one.run.attempt]
        return launches.launch_request(self._site, job, run, one.node, description, bulk, one.stimulus)

    def _check_wanted(self, one: LaunchRun) -> None:
        """NotWanted: taken meanwhile, or ended before it left."""
        found = self._engine.core.cluster.part(one.run, one.node)
        if found is None:
            raise NotWanted
        _, run, part = found
        if part.phase is not Phase.SENT or run.verdict is not None or part.lost:
            raise NotWanted

    def tell(self, event: Event) -> None:
        self._engine.tell(event)


def _message_limit(config: Config) -> int:
    """A submission's script and environment, and what else there is in it; registrations are never larger."""
    return config.limits.max_script_bytes + config.limits.max_environment_bytes * 2 + 64 * 2**20


def make_cluster(config: Config) -> Cluster:
    """An empty cluster as the configuration has it."""
    nodes = [
        NodeSpec(
            name=one.name,
            cpus=one.cpus,
            memory_mb=one.memory_mb,
            gres=None if one.gres is None else tuple(Gres(g.name, g.type, g.count) for g in one.gres),
            weight=one.weight,
        )
        for one in config.nodes
    ]
    partitions = [
        PartitionSpec(
            name=one.name,
            nodes=None if one.all_nodes else one.nodes,
            default=one.default,
            state=PartitionState(one.state.value),
            default_time_s=one.default_time,
            max_time_s=one.max_time,
            priority=one.priority,
        )
        for one in config.partitions
    ]
    return Cluster(policy(config), nodes, partitions)


def policy(config: Config) -> Policy:
    """The site's choices, as the core knows them."""
    controller, limits = config.controller, config.limits
    return Policy(
        heartbeat_timeout_s=controller.heartbeat_timeout_secs,
        missing_run_grace_s=controller.missing_run_grace_secs,
        take_back_runs=controller.take_back_runs,
        return_to_service=controller.return_to_service,
        min_job_age_s=config.scheduler.min_job_age_secs,
        requeue=config.job.requeue,
        backfill=config.scheduler.plugin is SchedulerPlugin.BACKFILL,
        controller_prolog=config.hooks.controller_prolog is not None,
        controller_epilog=config.hooks.controller_epilog is not None,
        any_node=config.any_node,
        first_job_id=limits.first_job_id,
        max_job_id=limits.max_job_id,
        max_jobs=limits.max_jobs,
    )
