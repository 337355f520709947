"""A peer that speaks as an agent does, and does what the test says with what it is told: another program's view of
the contracts, with real sockets. It keeps no records and starts no processes."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from concurrent import futures
from types import TracebackType
from typing import Any, Self

import grpc

from spur.pb import common_pb2, spurctld_pb2, spurd_pb2, spurd_pb2_grpc
from tests.patience import wait_for
from tests.spurctld.site import Site

Run = tuple[int, int]
PHASE = spurctld_pb2.ReportRunRequest


class Agent(spurd_pb2_grpc.AgentServicer):
    """Serves from `with` to its end. `launch`, `terminate` may be replaced by what the test wants."""

    def __init__(self, site: Site, node: str = "n1", boot_id: str = "boot1") -> None:
        self.site, self.node, self.boot_id = site, node, boot_id
        self.incarnation = secrets.token_hex(4)
        self.runs: dict[Run, str] = {}  # phase
        self.calls: list[tuple[str, Run]] = []
        self.launched: dict[Run, spurd_pb2.LaunchRunRequest] = {}
        self.verdicts: dict[Run, int] = {}
        self.launch: Callable[[Run, Any], None] = lambda run, context: None
        self.terminate: Callable[[Run, Any], None] = lambda run, context: None
        self.drain_reasons: tuple[str, ...] = ()
        self._server: grpc.Server | None = None
        self._beats: threading.Thread | None = None
        self._leave = threading.Event()
        self.address = "127.0.0.1:0"

    def __enter__(self) -> Self:
        self.serve()
        self.register()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop_beating()
        self.hang_up()

    def serve(self) -> None:
        self._server = grpc.server(futures.ThreadPoolExecutor(64), options=[("grpc.so_reuseport", 0)])
        spurd_pb2_grpc.add_AgentServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(self.address)
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def hang_up(self) -> None:
        """Stops serving, as a dead agent."""
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    # What it says

    def register(self) -> Any:
        request = spurctld_pb2.RegisterRequest(
            node=self.node, hostname=self.node, address=self.address, version="1", boot_id=self.boot_id,
            incarnation=self.incarnation, cpus=4, memory_mb=1000, runs=self.statuses(),
            drain_reasons=self.drain_reasons,
        )  # fmt: skip
        return self.site.registry("Register", request, self.node)

    def beat(self) -> Any:
        request = spurctld_pb2.HeartbeatRequest(
            node=self.node, incarnation=self.incarnation, runs=self.statuses(), drain_reasons=self.drain_reasons
        )
        return self.site.registry("Heartbeat", request, self.node)

    def statuses(self) -> list[spurctld_pb2.RunStatus]:
        return [spurctld_pb2.RunStatus(run=_id(run), phase=phase) for run, phase in list(self.runs.items())]

    def keep_beating(self, pause_s: float = 0.1) -> None:
        """Heartbeats until `stop_beating`, whoever answers."""

        def work() -> None:
            while not self._leave.wait(pause_s):
                try:
                    if self.beat().register_again:
                        self.register()
                except grpc.RpcError:
                    pass

        self._leave.clear()
        self._beats = threading.Thread(target=work, daemon=True)
        self._beats.start()

    def stop_beating(self) -> None:
        self._leave.set()
        if self._beats is not None:
            self._beats.join()
            self._beats = None

    def report(self, run: Run, phase: int, status: int | None = None, **fields: Any) -> int:
        state = spurctld_pb2.RunStatus(run=_id(run), phase="x")
        if status is not None:
            state.exit.CopyFrom(common_pb2.Exit(source=common_pb2.WAITID, wait_status=status, at=1.0))
        request = spurctld_pb2.ReportRunRequest(node=self.node, phase=phase, status=state, **fields)
        return int(self.site.registry("ReportRun", request, self.node).answer)

    def finish(self, run: Run, status: int = 0) -> None:
        """The run ends, and is let go."""
        for phase in (PHASE.STARTED, PHASE.ENDED, PHASE.FINISHED):
            self.report(run, phase, status)
        self.runs.pop(run, None)
        self.report(run, PHASE.RELEASED, status)

    def wait_launched(self, job: int, attempt: int = 1) -> Run:
        run = (job, attempt)
        wait_for(lambda: run in self.launched, f"{run} is launched on {self.node}", explain=self.site.controller.tail)
        return run

    def wait_call(self, method: str, run: Run) -> None:
        wait_for(lambda: (method, run) in self.calls, f"{method} for {run}", explain=self.site.controller.tail)

    # What it is told

    def LaunchRun(self, request: spurd_pb2.LaunchRunRequest, context: Any) -> spurd_pb2.LaunchRunReply:
        run = self._note("LaunchRun", request.run)
        self.launch(run, context)
        already = run in self.runs
        if not already:
            self.runs[run] = "accepted"
        self.launched[run] = request
        grant = common_pb2.Grant(cpus=range(request.cpus), memory_mb=request.memory_mb)
        return spurd_pb2.LaunchRunReply(grant=grant, already_here=already)

    def StartRun(self, request: spurd_pb2.StartRunRequest, context: Any) -> spurd_pb2.StartRunReply:
        self._note("StartRun", request.run)
        return spurd_pb2.StartRunReply()

    def TerminateRun(self, request: spurd_pb2.TerminateRunRequest, context: Any) -> spurd_pb2.TerminateRunReply:
        run = self._note("TerminateRun", request.run)
        self.terminate(run, context)
        if run not in self.runs:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no run {run}")
        self.verdicts[run] = request.verdict.kind
        return spurd_pb2.TerminateRunReply()

    def SignalRun(self, request: spurd_pb2.SignalRunRequest, context: Any) -> spurd_pb2.SignalRunReply:
        self._note(f"SignalRun {request.signal} {request.scope}", request.run)
        return spurd_pb2.SignalRunReply()

    def SuspendRun(self, request: spurd_pb2.SuspendRunRequest, context: Any) -> spurd_pb2.SuspendRunReply:
        self._note("ResumeRun" if request.resume else "SuspendRun", request.run)
        return spurd_pb2.SuspendRunReply()

    def Ping(self, request: spurd_pb2.AgentPingRequest, context: Any) -> spurd_pb2.AgentPingReply:
        return spurd_pb2.AgentPingReply(node=self.node, version="1", incarnation=self.incarnation)

    def _note(self, method: str, message: common_pb2.RunId) -> Run:
        run = (message.job_id, message.attempt)
        self.calls.append((method, run))
        return run


def _id(run: Run) -> common_pb2.RunId:
    return common_pb2.RunId(job_id=run[0], attempt=run[1])
