"""A gRPC server that speaks the Controller's contract with what a test tells it to say.

    with ControllerServer(jobs=[...]) as server:
        result = server.run("squeue", "-h")          # in this process, fast
        process = server.process("squeue", "-h")     # the command's program itself

It is no stand-in for spurctld's decisions: tests of the commands say what the controller answers, and look at what
the commands ask and print. Requests are kept in `server.requests`.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import grpc

from spur.commands.sbatch import sbatch
from spur.commands.scancel import scancel
from spur.commands.scontrol import scontrol
from spur.commands.sinfo import sinfo
from spur.commands.squeue import squeue
from spur.console import Command, Console, conclude
from spur.pb import spurctld_pb2 as pb
from spur.pb import spurctld_pb2_grpc

COMMANDS: Mapping[str, Command] = {
    "sbatch": sbatch,
    "scancel": scancel,
    "scontrol": scontrol,
    "sinfo": sinfo,
    "squeue": squeue,
}
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Result:
    stdout: str
    stderr: str
    code: int


@dataclass
class Refusal:
    """What a call is answered with instead: a status, Slurm's text, and perhaps a line more."""

    text: str
    code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION
    note: str = ""


@dataclass
class ControllerServer(spurctld_pb2_grpc.ControllerServicer):
    jobs: Sequence[pb.JobInfo] = ()
    nodes: Sequence[pb.NodeInfo] = ()
    partitions: Sequence[pb.PartitionInfo] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    at: float = 0.0
    port: int = 0  # 0: the kernel's choice
    submitted: pb.SubmitJobReply = field(default_factory=lambda: pb.SubmitJobReply(job_id=42))
    errors: dict[int, str] = field(default_factory=dict)  # of CancelJobs, by job
    refusals: dict[str, Refusal] = field(default_factory=dict)  # by method
    before: Callable[[str], None] | None = None  # is told the method before each answer, and may change the fields
    requests: list[Any] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        spurctld_pb2_grpc.add_ControllerServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.stop(None).wait()

    def environ(self, tmp_path: Path) -> dict[str, str]:
        """The environment in which a command finds this server."""
        config = tmp_path / "spur.toml"
        if not config.exists():
            config.write_text('cluster_name = "lab"\n[auth]\nplugin = "none"\n[agent]\nlisten = "127.0.0.1:0"\n')
        return {
            "HOME": "/root",
            "PATH": os.environ["PATH"],
            "SPUR_CONF": str(config),
            "SPUR_CONTROLLER_ADDR": f"127.0.0.1:{self.port}",
            "SPUR_CONNECT_SECS": "0",
            "TZ": "UTC",
        }

    def run(self, tmp_path: Path, *argv: str, env: Mapping[str, str] | None = None, stdin: bytes = b"") -> Result:
        """The command in this process."""
        return run_here({**self.environ(tmp_path), **(env or {})}, *argv, stdin=stdin)

    def process(
        self, tmp_path: Path, *argv: str, env: Mapping[str, str] | None = None, stdin: bytes = b"", **more: Any
    ) -> Result:
        """The command as the process that a user would start."""
        done = subprocess.run(
            [BIN / argv[0], *argv[1:]],
            env={**self.environ(tmp_path), **(env or {})},
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
            **more,
        )
        return Result(_text(done.stdout), _text(done.stderr), done.returncode)

    def _answer(self, request: Any, context: grpc.ServicerContext, reply: Callable[[], Any]) -> Any:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        method = type(request).__name__.removesuffix("Request")
        if self.before is not None:
            self.before(method)
        refusal = self.refusals.get(method)
        if refusal is None:
            return reply()
        if refusal.note:
            context.set_trailing_metadata((("spur-note", quote(refusal.note)),))
        context.abort(refusal.code, refusal.text)

    def Ping(self, request: pb.PingRequest, context: grpc.ServicerContext) -> pb.PingReply:
        return self._answer(request, context, lambda: pb.PingReply(version="0.1.0", hostname="vm", started_at=1.0))

    def SubmitJob(self, request: pb.SubmitJobRequest, context: grpc.ServicerContext) -> pb.SubmitJobReply:
        return self._answer(request, context, lambda: self.submitted)

    def ListJobs(self, request: pb.ListJobsRequest, context: grpc.ServicerContext) -> pb.ListJobsReply:
        def reply() -> pb.ListJobsReply:
            chosen = [job for job in self.jobs if not request.job_ids or job.job_id in request.job_ids]
            return pb.ListJobsReply(jobs=chosen, at=self.at or time.time())

        return self._answer(request, context, reply)

    def CancelJobs(self, request: pb.CancelJobsRequest, context: grpc.ServicerContext) -> pb.CancelJobsReply:
        results = [pb.CancelResult(job_id=number, error=self.errors.get(number, "")) for number in request.job_ids]
        return self._answer(request, context, lambda: pb.CancelJobsReply(results=results))

    def SuspendJob(self, request: pb.SuspendJobRequest, context: grpc.ServicerContext) -> pb.SuspendJobReply:
        return self._answer(request, context, lambda: pb.SuspendJobReply())

    def RequeueJob(self, request: pb.RequeueJobRequest, context: grpc.ServicerContext) -> pb.RequeueJobReply:
        return self._answer(request, context, lambda: pb.RequeueJobReply())

    def HoldJob(self, request: pb.HoldJobRequest, context: grpc.ServicerContext) -> pb.HoldJobReply:
        return self._answer(request, context, lambda: pb.HoldJobReply())

    def ListNodes(self, request: pb.ListNodesRequest, context: grpc.ServicerContext) -> pb.ListNodesReply:
        return self._answer(request, context, lambda: pb.ListNodesReply(nodes=self.nodes, at=self.at or time.time()))

    def UpdateNodes(self, request: pb.UpdateNodesRequest, context: grpc.ServicerContext) -> pb.UpdateNodesReply:
        return self._answer(request, context, lambda: pb.UpdateNodesReply())

    def ListPartitions(
        self, request: pb.ListPartitionsRequest, context: grpc.ServicerContext
    ) -> pb.ListPartitionsReply:
        return self._answer(request, context, lambda: pb.ListPartitionsReply(partitions=self.partitions))

    def GetConfig(self, request: pb.GetConfigRequest, context: grpc.ServicerContext) -> pb.GetConfigReply:
        return self._answer(request, context, lambda: pb.GetConfigReply(entries=self.config, at=self.at or time.time()))


def run_here(environ: Mapping[str, str], *argv: str, stdin: bytes = b"") -> Result:
    """A command in this process, with streams of its own."""
    console = Console(argv[0], io.BytesIO(), io.BytesIO(), io.BytesIO(stdin))
    code = conclude(COMMANDS[argv[0]], argv[1:], environ, console)
    assert isinstance(console.stdout, io.BytesIO) and isinstance(console.stderr, io.BytesIO)
    return Result(_text(console.stdout.getvalue()), _text(console.stderr.getvalue()), code)


def _text(output: bytes) -> str:
    return output.decode(errors="surrogateescape")
