"""What users' commands are answered, proto/spurctld.proto. Who calls was proven before a handler is reached."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from spur import __version__
from spur.callers import caller
from spur.config import Config
from spur.pb import spurctld_pb2, spurctld_pb2_grpc
from spurctld import launches, messages, views
from spurctld.accounts import Accounts
from spurctld.answering import Refused, handler
from spurctld.core import events as e
from spurctld.core.records import Job
from spurctld.core.requests import NOT_YOURS
from spurctld.core.states import JobState, RefusalKind
from spurctld.core.values import CancelResults, Refusal, Submitted
from spurctld.engine import Engine, stamp
from spurctld.store import Payload

TOO_LONG = "Pathname of a file, directory or other parameter too long"
MAX_DESCRIPTION_BYTES = 2**20  # arguments, paths, names, comment
_OVERHEAD = 8  # of one string in a message
_SHOWN_AT_ONCE = 200  # jobs, between two moments for others
_READ_TRIES = 5

T = TypeVar("T")


class ControllerService(spurctld_pb2_grpc.ControllerServicer):
    """A thin layer over the engine."""

    def __init__(self, engine: Engine, accounts: Accounts, config: Config, host: str) -> None:
        self._engine, self._accounts, self._config, self._host = engine, accounts, config, host
        self._started_at = time.time()
        self.listen = ""

    @handler
    async def Ping(self, request: spurctld_pb2.PingRequest) -> spurctld_pb2.PingReply:
        return spurctld_pb2.PingReply(version=__version__, hostname=self._host, started_at=self._started_at)

    @handler
    async def SubmitJob(self, request: spurctld_pb2.SubmitJobRequest) -> spurctld_pb2.SubmitJobReply:
        who = caller()
        self._check_size(request)
        user, group = await asyncio.gather(self._accounts.user(who.uid), self._accounts.group(who.gid))
        spec = messages.job_spec(request.job, uid=who.uid, gid=who.gid, user=user, group=group)
        event = e.JobSubmitted(spec=spec, test_only=request.test_only, **stamp(_stimulus()))
        reply = await self._engine.ask(event, Payload(*launches.split(request.job)))
        if isinstance(reply, Refusal):
            raise Refused(reply)
        assert isinstance(reply, Submitted)
        return spurctld_pb2.SubmitJobReply(job_id=reply.job, warning=reply.warning)

    def _check_size(self, request: spurctld_pb2.SubmitJobRequest) -> None:
        job, limits = request.job, self._config.limits
        if not job.script and not request.test_only:
            raise Refused(Refusal(RefusalKind.INVALID, "Batch script is empty!"))
        environment = sum(len(one) + 1 for one in job.environment)
        rest = max(0, job.ByteSize() - len(job.script) - environment)
        for what, has, most in (
            ("script", len(job.script), limits.max_script_bytes),
            ("environment", environment, limits.max_environment_bytes),
            ("description", rest, MAX_DESCRIPTION_BYTES + len(job.environment) * _OVERHEAD),
        ):
            if has > most:
                note = f"the {what} of the job has {has} bytes, the most are {most}"
                raise Refused(Refusal(RefusalKind.INVALID, TOO_LONG, note))

    @handler
    async def ListJobs(self, request: spurctld_pb2.ListJobsRequest) -> spurctld_pb2.ListJobsReply:
        reply = await self._read(lambda: self._list_jobs(request.job_ids))
        if request.with_script:
            for info in reply.jobs:
                if caller().uid not in (0, info.uid):
                    raise Refused(NOT_YOURS)
                views.script_into(info, await self._engine.bulk(info.job_id))
        return reply

    async def _list_jobs(self, numbers: Iterable[int]) -> spurctld_pb2.ListJobsReply:
        cluster = self._engine.core.cluster
        reply = spurctld_pb2.ListJobsReply(at=time.time())
        wanted = list(dict.fromkeys(numbers)) or sorted(cluster.jobs)
        for at, number in enumerate(wanted):
            if at % _SHOWN_AT_ONCE == _SHOWN_AT_ONCE - 1:
                await asyncio.sleep(0)
            job, description = cluster.jobs.get(number), self._engine.descriptions.get(number)
            if job is not None and description is not None:
                reply.jobs.append(views.job_info(cluster, job, description))
        return reply

    async def _read(self, read: Callable[[], Awaitable[T]]) -> T:
        """What `read` finds, once all of it is stored: nobody is shown a decision that a crash could undo."""
        for _ in range(_READ_TRIES):
            generation = self._engine.generation
            found = await read()
            await self._engine.settle()
            if generation == self._engine.generation:
                break
        return found

    @handler
    async def CancelJobs(self, request: spurctld_pb2.CancelJobsRequest) -> spurctld_pb2.CancelJobsReply:
        if not request.job_ids and not _filters(request):
            raise Refused(Refusal(RefusalKind.INVALID, "No job identification provided"))
        event = e.CancelAsked(
            jobs=tuple(self._chosen(request)),
            by_uid=caller().uid,
            signal=request.signal,
            scope=messages.scope(request.scope),
            **stamp(_stimulus()),
        )
        reply = await self._engine.ask(event)
        assert isinstance(reply, CancelResults)
        return spurctld_pb2.CancelJobsReply(
            results=[
                spurctld_pb2.CancelResult(job_id=number, error=refusal.text if refusal else "")
                for number, refusal in reply.results
            ]
        )

    def _chosen(self, request: spurctld_pb2.CancelJobsRequest) -> list[int]:
        """The jobs that are named, as far as the filters let them pass; without names, all that have not ended."""
        jobs, nodes = self._engine.core.cluster.jobs, set(messages.host_names("node_list", request.node_list))
        if request.job_ids:
            named = dict.fromkeys(request.job_ids)
            if not _filters(request):
                return list(named)
            return [number for number in named if number not in jobs or _passes(jobs[number], request, nodes)]
        return [job.id for job in jobs.values() if not job.state.finished and _passes(job, request, nodes)]

    @handler
    async def SuspendJob(self, request: spurctld_pb2.SuspendJobRequest) -> spurctld_pb2.SuspendJobReply:
        event = e.SuspendAsked(job=request.job_id, by_uid=caller().uid, resume=request.resume, **stamp(_stimulus()))
        await self._carry_out(event)
        return spurctld_pb2.SuspendJobReply()

    @handler
    async def RequeueJob(self, request: spurctld_pb2.RequeueJobRequest) -> spurctld_pb2.RequeueJobReply:
        event = e.RequeueAsked(job=request.job_id, by_uid=caller().uid, hold=request.hold, **stamp(_stimulus()))
        await self._carry_out(event)
        return spurctld_pb2.RequeueJobReply()

    @handler
    async def HoldJob(self, request: spurctld_pb2.HoldJobRequest) -> spurctld_pb2.HoldJobReply:
        event = e.HoldAsked(job=request.job_id, by_uid=caller().uid, release=request.release, **stamp(_stimulus()))
        await self._carry_out(event)
        return spurctld_pb2.HoldJobReply()

    async def _carry_out(self, event: e.SuspendAsked | e.RequeueAsked | e.HoldAsked | e.NodesOrdered) -> None:
        reply = await self._engine.ask(event)
        if isinstance(reply, Refusal):
            raise Refused(reply)

    @handler
    async def ListNodes(self, request: spurctld_pb2.ListNodesRequest) -> spurctld_pb2.ListNodesReply:
        return await self._read(self._list_nodes)

    async def _list_nodes(self) -> spurctld_pb2.ListNodesReply:
        uids = {node.reason_uid for node in self._engine.core.cluster.nodes.values()}
        names = {uid: await self._accounts.user(uid) for uid in uids}
        cluster = self._engine.core.cluster
        members: dict[str, list[str]] = {name: [] for name in cluster.nodes}
        for partition in cluster.partitions.values():
            for node in cluster.partition_nodes(partition):
                members[node.name].append(partition.name)
        reply = spurctld_pb2.ListNodesReply(at=time.time())
        for node in sorted(cluster.nodes.values(), key=lambda node: node.order):
            if node.declared:
                name_of = lambda uid: names.get(uid, str(uid))  # noqa: E731
                reply.nodes.append(views.node_info(cluster, node, members[node.name], name_of))
        return reply

    @handler
    async def UpdateNodes(self, request: spurctld_pb2.UpdateNodesRequest) -> spurctld_pb2.UpdateNodesReply:
        event = e.NodesOrdered(
            nodes=self._node_names(request.node_list),
            order=messages.node_order(request.state),
            reason=request.reason,
            by_uid=caller().uid,
            **stamp(_stimulus()),
        )
        await self._carry_out(event)
        return spurctld_pb2.UpdateNodesReply()

    def _node_names(self, text: str) -> tuple[str, ...]:
        if text.upper() == "ALL":
            return tuple(node.name for node in self._engine.core.cluster.nodes.values() if node.declared)
        return messages.host_names("node_list", text)

    @handler
    async def ListPartitions(self, request: spurctld_pb2.ListPartitionsRequest) -> spurctld_pb2.ListPartitionsReply:
        cluster = self._engine.core.cluster
        return spurctld_pb2.ListPartitionsReply(
            partitions=[views.partition_info(cluster, one) for one in cluster.partitions.values()]
        )

    @handler
    async def GetConfig(self, request: spurctld_pb2.GetConfigRequest) -> spurctld_pb2.GetConfigReply:
        next_job = self._engine.core.cluster.next_job
        entries = views.config_entries(self._config, __version__, self._host, next_job, self.listen)
        return spurctld_pb2.GetConfigReply(entries=entries, at=time.time())


def _stimulus() -> str:
    return secrets.token_hex(6)


def _filters(request: spurctld_pb2.CancelJobsRequest) -> bool:
    return any((request.user, request.name, request.partition, request.state, request.account, request.node_list))


_SHORT_STATES = {"PD": JobState.PENDING, "R": JobState.RUNNING, "S": JobState.SUSPENDED, "CF": JobState.CONFIGURING}


def _passes(job: Job, request: spurctld_pb2.CancelJobsRequest, nodes: set[str]) -> bool:
    """Whether every filter lets the job pass."""
    spec, run = job.spec, job.run
    here = set(run.parts) if run is not None and job.state.active else set()
    return (
        (not request.user or request.user in (spec.user, str(spec.uid)))
        and (not request.name or request.name == spec.name)
        and (not request.partition or request.partition == spec.partition)
        and (not request.account or request.account == spec.account)
        and (not request.state or _in_state(job, request.state.upper()))
        and (not nodes or bool(here & nodes))
    )


def _in_state(job: Job, word: str) -> bool:
    return job.state.name == word or _SHORT_STATES.get(word) is job.state
