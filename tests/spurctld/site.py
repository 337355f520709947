"""A spurctld of its own for a test, spoken to by raw gRPC, as any client could.

    with Site(nodes=2) as site:
        job = site.user().submit()
        site.controller.kill()
        site.start()

The agents are the test's (see `agent`), or there are none.
"""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from spur.auth import Identity, Kind
from spur.pb import common_pb2, spurctld_pb2, spurctld_pb2_grpc
from spur.tokens import Signer
from tests.cluster import to_toml
from tests.daemon import Daemon
from tests.faults import Faults
from tests.patience import wait_for

BIN = Path(sys.executable).parent
CLUSTER = "test"
CALL_S = 20.0
ENDED = frozenset(range(common_pb2.COMPLETED, common_pb2.OUT_OF_MEMORY + 1))


class User:
    """One user's calls."""

    def __init__(self, site: Site, uid: int) -> None:
        self._site, self.uid = site, uid

    def call(self, method: str, request: Any, timeout_s: float = CALL_S) -> Any:
        stub = spurctld_pb2_grpc.ControllerStub(self._site.channel)
        who = Identity(Kind.USER, self.uid, self.uid)
        return getattr(stub, method)(request, timeout=timeout_s, metadata=self._site.signer.metadata(who))

    def submit(self, **fields: Any) -> int:
        fields = {"name": "job", "script": b"#!/bin/sh\n", "work_dir": "/tmp", **fields}
        request = spurctld_pb2.SubmitJobRequest(job=common_pb2.JobDescription(**fields))
        return int(self.call("SubmitJob", request).job_id)

    def jobs(self, *numbers: int, **options: Any) -> dict[int, spurctld_pb2.JobInfo]:
        reply = self.call("ListJobs", spurctld_pb2.ListJobsRequest(job_ids=numbers, **options))
        return {info.job_id: info for info in reply.jobs}

    def job(self, number: int) -> spurctld_pb2.JobInfo:
        return self.jobs(number)[number]

    def cancel(self, *numbers: int, **options: Any) -> dict[int, str]:
        reply = self.call("CancelJobs", spurctld_pb2.CancelJobsRequest(job_ids=numbers, **options))
        return {one.job_id: one.error for one in reply.results}

    def nodes(self) -> dict[str, spurctld_pb2.NodeInfo]:
        return {one.name: one for one in self.call("ListNodes", spurctld_pb2.ListNodesRequest()).nodes}

    def wait_job(self, number: int, *states: int, completing: bool | None = None) -> spurctld_pb2.JobInfo:
        """The job, once it is in one of `states` (default: ended)."""

        def look() -> spurctld_pb2.JobInfo | None:
            info = self.job(number)
            right = info.state in (states or ENDED)
            return info if right and completing in (None, info.completing) else None

        return wait_for(
            look, f"job {number} is {states or 'ended'}", explain=lambda: f"{self.jobs(number)}{self._log()}"
        )

    def _log(self) -> str:
        return self._site.controller.tail()


class Site:
    """The controller, its configuration and its key."""

    def __init__(self, nodes: int = 1, config: Mapping[str, Any] | None = None, start: bool = True) -> None:
        self.root = Path(f"/tmp/spurctld-{secrets.token_hex(6)}")
        self.root.mkdir(mode=0o755)
        self.state_dir, self.key = self.root / "state", self.root / "auth.key"
        self.key.touch(mode=0o600)
        self.key.write_bytes(secrets.token_bytes(32))
        self.signer = Signer(self.key.read_bytes(), CLUSTER, 300)
        self.conf = self.root / "spur.toml"
        self.configure(nodes, config or {})
        self.address = "127.0.0.1:0"
        self._channel: grpc.Channel | None = None
        self.faults = Faults(self.root / "faults")
        self.faults.directory.mkdir()
        environment = {"PATH": "/usr/bin:/bin", "SPUR_FAULTS_DIR": str(self.faults.directory)}
        self.controller = Daemon("spurctld", self.command, self.root / "log", environment, ("listening",))
        self._start = start

    def configure(self, nodes: int, config: Mapping[str, Any]) -> None:
        tables: dict[str, Any] = {
            "cluster_name": CLUSTER,
            "controller": {"state_dir": str(self.state_dir), "runtime_dir": str(self.root / "run")},
            "agent": {"heartbeat_interval_secs": 0.2},
            "scheduler": {"interval_secs": 0.1},
            "auth": {"key_file": str(self.key)},
            "nodes": [{"names": f"n{at}", "cpus": 4, "memory_mb": 1000} for at in range(1, nodes + 1)],
            "partitions": [{"name": "main", "default": True}],
        }
        for name, value in config.items():
            tables[name] = {**tables.get(name, {}), **value} if isinstance(value, Mapping) else value
        self.conf.write_text(to_toml(tables))

    def command(self) -> list[str]:
        return [str(BIN / "spurctld"), "-f", str(self.conf), "--listen", self.address, "-D"]

    def __enter__(self) -> Self:
        if self._start:
            self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None and error is not None:
            error.add_note(self.controller.tail())
        self.hang_up()
        code = self.controller.stop() if self.controller.running else 0
        self.controller.discard()
        shutil.rmtree(self.root, ignore_errors=True)
        assert kind is not None or code == 0, f"spurctld ended with {code}"

    def start(self) -> None:
        """Starts the controller, at the port that it had the last time."""
        self.controller.start()
        self.address = self.controller.wait_event("listening")["address"]

    @property
    def channel(self) -> grpc.Channel:
        if self._channel is None:
            self._channel = grpc.insecure_channel(
                self.address,
                options=[
                    ("grpc.enable_http_proxy", 0),
                    ("grpc.max_reconnect_backoff_ms", 200),
                    ("grpc.use_local_subchannel_pool", 1),
                ],
            )
        return self._channel

    def hang_up(self) -> None:
        """Drops the connection; the next call makes another."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def user(self, uid: int = 0) -> User:
        return User(self, uid)

    def registry(self, method: str, request: Any, node: str = "n1", timeout_s: float = CALL_S) -> Any:
        """A call as the agent of `node` makes it."""
        stub = spurctld_pb2_grpc.RegistryStub(self.channel)
        who = Identity(Kind.AGENT, 0, 0, node)
        return getattr(stub, method)(request, timeout=timeout_s, metadata=self.signer.metadata(who))
