"""A controller for tests of the agent alone: a gRPC server that takes registrations and reports and writes them down.

It runs in the process of the test, on a loop in a thread of its own, and can be told to be away or to answer otherwise.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import grpc

from spur.auth import Identity, Kind, claimed
from spur.pb import common_pb2, spurctld_pb2, spurctld_pb2_grpc, spurd_pb2, spurd_pb2_grpc
from tests.patience import PATIENCE_S, wait_for

Phase = spurctld_pb2.ReportRunRequest
CONTROLLER = claimed(Identity(Kind.CONTROLLER, 0, 0))


class Registry(spurctld_pb2_grpc.RegistryServicer):
    """`reports` in the order in which they came; `answer` decides what FINISHED is answered with."""

    def __init__(self) -> None:
        self.registrations: list[spurctld_pb2.RegisterRequest] = []
        self.heartbeats: list[spurctld_pb2.HeartbeatRequest] = []
        self.reports: list[spurctld_pb2.ReportRunRequest] = []
        self.farewells: list[spurctld_pb2.DeregisterRequest] = []
        self.answer: Callable[[spurctld_pb2.ReportRunRequest], int] = lambda _: spurctld_pb2.ReportRunReply.RECORDED
        self.knows_node = True
        self.notes_drains = True
        self.interval_s = 0.2
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: grpc.aio.Server | None = None
        self._channels: dict[str, grpc.aio.Channel] = {}

    # -- what the agent calls

    async def Register(self, request: spurctld_pb2.RegisterRequest, context: Any) -> spurctld_pb2.RegisterReply:
        self.registrations.append(request)
        self.knows_node = True
        return spurctld_pb2.RegisterReply(heartbeat_interval_s=self.interval_s, cluster_name="test")

    async def Heartbeat(self, request: spurctld_pb2.HeartbeatRequest, context: Any) -> spurctld_pb2.HeartbeatReply:
        self.heartbeats.append(request)
        return spurctld_pb2.HeartbeatReply(register_again=not self.knows_node, drain_noted=self.notes_drains)

    async def ReportRun(self, request: spurctld_pb2.ReportRunRequest, context: Any) -> spurctld_pb2.ReportRunReply:
        self.reports.append(request)
        return spurctld_pb2.ReportRunReply(answer=self.answer(request))

    async def Deregister(self, request: spurctld_pb2.DeregisterRequest, context: Any) -> spurctld_pb2.DeregisterReply:
        self.farewells.append(request)
        return spurctld_pb2.DeregisterReply()

    # -- what the test does

    def start(self) -> None:
        """Listen, at the port of the last time if there was one."""
        if not self._thread.is_alive():
            self._thread.start()
        if self._server is None:
            self._wait(self._start())

    async def _start(self) -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        spurctld_pb2_grpc.add_RegistryServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(self.address or "127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        await self._server.start()

    def stop(self) -> None:
        """Be away."""
        if self._server is not None:
            self._wait(self._server.stop(None))
            self._server = None

    def close(self) -> None:
        self.stop()
        self._wait(self._close_channels())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close_channels(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    def call(self, address: str, method: str, request: Any, timeout_s: float = PATIENCE_S) -> Any:
        """Call the agent at `address` as its controller. grpc.aio.AioRpcError."""
        return self._wait(self._call(address, method, request, timeout_s))

    def call_later(self, address: str, method: str, request: Any, timeout_s: float = PATIENCE_S) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(self._call(address, method, request, timeout_s), self._loop)

    async def _call(self, address: str, method: str, request: Any, timeout_s: float) -> Any:
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
        stub = spurd_pb2_grpc.AgentStub(self._channels[address])
        return await getattr(stub, method)(request, timeout=timeout_s, metadata=CONTROLLER)

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def reports_of(self, job: int, phase: int | None = None, attempt: int = 1) -> list[spurctld_pb2.ReportRunRequest]:
        run = common_pb2.RunId(job_id=job, attempt=attempt)
        return [one for one in self.reports if one.status.run == run and phase in (None, one.phase)]

    def wait_report(self, job: int, phase: int, attempt: int = 1) -> spurctld_pb2.ReportRunRequest:
        """The first report of that phase."""
        return wait_for(
            lambda: next(iter(self.reports_of(job, phase, attempt)), None),
            f"{Phase.Phase.Name(phase)} of run {job}.{attempt}",
            explain=lambda: "\n".join(f"{Phase.Phase.Name(r.phase)} {r.status}" for r in self.reports),
        )


def launch_request(job: int, script: str = "exit 0", attempt: int = 1, **fields: Any) -> spurd_pb2.LaunchRunRequest:
    """A launch on one CPU as root, with the fields of the request or of its job description given."""
    description = {"name": "test", "work_dir": "/", "umask": 0o022, "environment": [b"PATH=/usr/bin:/bin"]}
    description |= {key: fields.pop(key) for key in list(fields) if key in _JOB_FIELDS}
    text = script if script.startswith("#!") else f"#!/bin/sh\n{script}\n"
    values = {
        "user": "root", "partition": "main", "nodes": "n1", "num_nodes": 1, "cpus": 1, "tasks": 1,
        "time_limit_s": 0xFFFFFFFF, "may_start": True, "cluster_name": "test", "kill_wait_s": 2, **fields,
    }  # fmt: skip
    return spurd_pb2.LaunchRunRequest(
        run=common_pb2.RunId(job_id=job, attempt=attempt),
        job=common_pb2.JobDescription(script=text.encode(), **description),
        **values,
    )


_JOB_FIELDS = {field.name for field in common_pb2.JobDescription.DESCRIPTOR.fields} - {
    field.name for field in spurd_pb2.LaunchRunRequest.DESCRIPTOR.fields
}
