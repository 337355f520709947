"""Who calls: keys, tokens, and the gate of a real gRPC server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest

from spur.auth import AuthError, Identity, KeyFileError, Kind, Verify, bearer, believe, claimed, read_key
from spur.callers import Gate, caller
from spur.config import ConfigError, load, parse
from spur.credentials import credentials
from spur.pb import spurctld_pb2, spurctld_pb2_grpc, spurd_pb2, spurd_pb2_grpc
from spur.tokens import Signer, Verifier, mint, verify

KEY = bytes(range(32))
USER = Identity(Kind.USER, 1000, 1001)
AGENT = Identity(Kind.AGENT, 0, 0, "n1")
CONTROLLER = Identity(Kind.CONTROLLER, 0, 0)


def token_for(who: Identity, *, key: bytes = KEY, cluster: str = "lab", at: float | None = None) -> str:
    return mint(key, cluster, who, lifetime_s=300, now=time.time() if at is None else at)[0]


@pytest.mark.parametrize("who", [USER, AGENT, CONTROLLER])
def test_a_token_says_who_it_was_made_for(who: Identity) -> None:
    assert verify(KEY, "lab", token_for(who), skew_s=60) == who


@pytest.mark.parametrize("offset_s", [-350, 55])
def test_clocks_may_be_a_minute_apart(offset_s: float) -> None:
    assert verify(KEY, "lab", token_for(USER, at=time.time() + offset_s), skew_s=60) == USER


@pytest.mark.parametrize("offset_s", [-370, 70])
def test_a_token_out_of_its_time_is_refused(offset_s: float) -> None:
    with pytest.raises(AuthError, match="out of its time"):
        verify(KEY, "lab", token_for(USER, at=time.time() + offset_s), skew_s=60)


def sign(claims: dict[str, Any], algorithm: str = "HS256") -> str:
    now = int(time.time())
    whole = {"aud": "lab", "iat": now, "exp": now + 60, "kind": "user", "uid": 1, "gid": 1, **claims}
    key = KEY if algorithm == "HS256" else ""
    return jwt.encode({name: value for name, value in whole.items() if value is not None}, key, algorithm=algorithm)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: token_for(USER, key=b"x" * 32), "another key"),
        (lambda: token_for(USER, cluster="other"), "not for cluster lab"),
        (lambda: sign({}, algorithm="none"), "cannot be used"),
        (lambda: sign({"uid": None}), "cannot be used"),
        (lambda: sign({"exp": None}), "cannot be used"),
        (lambda: sign({"uid": "0"}), "other types"),
        (lambda: sign({"uid": True}), "other types"),
        (lambda: sign({"uid": -1}), "no user"),
        (lambda: sign({"uid": 2**32 - 1}), "no user"),
        (lambda: sign({"kind": "god"}), "no known kind"),
        (lambda: sign({"kind": "agent"}), "names its node"),
        (lambda: sign({"node": "n1"}), "names its node"),
        (lambda: "", "cannot be used"),
        (lambda: "a.b.c", "cannot be used"),
        (lambda: "x" * 100_000, "cannot be used"),
    ],
)
def test_any_other_token_is_refused(make: Callable[[], str], reason: str) -> None:
    with pytest.raises(AuthError, match=reason):
        verify(KEY, "lab", make(), skew_s=60)


def test_a_daemon_uses_its_token_again_until_half_of_its_life(monkeypatch: pytest.MonkeyPatch) -> None:
    signer, began = Signer(KEY, "lab", 300), time.time()
    first = signer.metadata(AGENT)
    assert signer.metadata(AGENT) == first
    assert signer.metadata(CONTROLLER) != first
    monkeypatch.setattr(time, "time", lambda: began + 151)
    later = signer.metadata(AGENT)
    assert later != first
    monkeypatch.setattr(time, "time", lambda: began - 1000)
    assert signer.metadata(AGENT) != later


def key_file(tmp_path: Path, content: bytes = KEY, mode: int = 0o600) -> Path:
    path = tmp_path / "auth.key"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_reads_a_key_that_is_roots_alone(tmp_path: Path) -> None:
    assert read_key(key_file(tmp_path)) == KEY


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [(KEY, 0o640, "mode 0640"), (KEY, 0o604, "mode 0604"), (KEY[:-1], 0o600, "31 bytes"), (b"", 0o600, "0 bytes")],
)
def test_refuses_a_key_that_others_may_know(tmp_path: Path, content: bytes, mode: int, reason: str) -> None:
    with pytest.raises(KeyFileError, match=reason):
        read_key(key_file(tmp_path, content, mode))


def test_a_missing_key_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError) as refusal:
        read_key(tmp_path / "none")
    assert str(refusal.value) == (
        f"{tmp_path}/none: no key file: make one of 32 random bytes, mode 0600, and copy it to every node"
    )


def test_refuses_a_key_behind_a_link_a_fifo_or_a_directory(tmp_path: Path) -> None:
    link, fifo = tmp_path / "link", tmp_path / "fifo"
    link.symlink_to(key_file(tmp_path))
    os.mkfifo(fifo, 0o600)
    for path in (link, fifo, tmp_path):
        with pytest.raises(KeyFileError, match="key file"):
            read_key(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_refuses_a_key_of_somebody_else(tmp_path: Path) -> None:
    path = key_file(tmp_path)
    os.chown(path, 4242, 4242)
    with pytest.raises(KeyFileError, match="belongs to uid 4242"):
        read_key(path)


def test_commands_load_no_signing_and_no_event_loop() -> None:
    program = "import sys, spur.auth, spur.localtoken, spur.config\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"jwt", "asyncio", "asyncvarlink", "grpc", "structlog"} & set(loaded)


class Controller(spurctld_pb2_grpc.ControllerServicer):
    async def Ping(self, request: Any, context: Any) -> spurctld_pb2.PingReply:
        await asyncio.sleep(0)
        return spurctld_pb2.PingReply(hostname=f"{caller().uid}:{caller().gid}")


class Registry(spurctld_pb2_grpc.RegistryServicer):
    async def Deregister(self, request: Any, context: Any) -> spurctld_pb2.DeregisterReply:
        assert caller().node == request.node
        return spurctld_pb2.DeregisterReply()


class Agent(spurd_pb2_grpc.AgentServicer):
    async def Ping(self, request: Any, context: Any) -> spurd_pb2.AgentPingReply:
        return spurd_pb2.AgentPingReply(node=caller().kind.value)


def with_server(verify: Verify, use: Callable[[grpc.aio.Channel], Awaitable[None]]) -> None:
    """Run `use` against a server with all services of the contracts behind the gate."""

    async def run() -> None:
        server = grpc.aio.server(interceptors=[Gate(verify)])
        spurctld_pb2_grpc.add_ControllerServicer_to_server(Controller(), server)
        spurctld_pb2_grpc.add_RegistryServicer_to_server(Registry(), server)
        spurd_pb2_grpc.add_AgentServicer_to_server(Agent(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await use(channel)
        finally:
            await server.stop(None)

    asyncio.run(run())


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value.code(), refused.value.details() or ""


def test_a_handler_is_told_who_calls() -> None:
    async def use(channel: grpc.aio.Channel) -> None:
        controller = spurctld_pb2_grpc.ControllerStub(channel)
        users = [Identity(Kind.USER, uid, uid + 1) for uid in range(1000, 1050)]
        calls = (controller.Ping(spurctld_pb2.PingRequest(), metadata=bearer(token_for(user))) for user in users)
        replies = await asyncio.gather(*calls)
        assert [reply.hostname for reply in replies] == [f"{user.uid}:{user.gid}" for user in users]
        registry = spurctld_pb2_grpc.RegistryStub(channel)
        await registry.Deregister(spurctld_pb2.DeregisterRequest(node="n1"), metadata=bearer(token_for(AGENT)))
        agent = spurd_pb2_grpc.AgentStub(channel)
        reply = await agent.Ping(spurd_pb2.AgentPingRequest(), metadata=bearer(token_for(CONTROLLER)))
        assert reply.node == "controller"

    with_server(Verifier(KEY, "lab", 60), use)


def test_a_call_without_a_valid_token_is_refused() -> None:
    async def use(channel: grpc.aio.Channel) -> None:
        ping = spurctld_pb2_grpc.ControllerStub(channel).Ping
        forged = bearer(token_for(USER, key=b"z" * 32))
        for metadata in ((), claimed(USER), (("authorization", "Basic x"),), forged):
            code, _ = await refusal(ping(spurctld_pb2.PingRequest(), metadata=metadata))
            assert code is grpc.StatusCode.UNAUTHENTICATED
        _, reason = await refusal(ping(spurctld_pb2.PingRequest()))
        assert reason == "the call carries no token"

    with_server(Verifier(KEY, "lab", 60), use)


def test_a_call_of_another_kind_of_caller_is_refused() -> None:
    async def use(channel: grpc.aio.Channel) -> None:
        ping = spurctld_pb2_grpc.ControllerStub(channel).Ping
        leave = spurctld_pb2_grpc.RegistryStub(channel).Deregister
        ask = spurd_pb2_grpc.AgentStub(channel).Ping
        for call in (
            ping(spurctld_pb2.PingRequest(), metadata=bearer(token_for(AGENT))),
            leave(spurctld_pb2.DeregisterRequest(), metadata=bearer(token_for(Identity(Kind.USER, 0, 0)))),
            ask(spurd_pb2.AgentPingRequest(), metadata=bearer(token_for(AGENT))),
            ask(spurd_pb2.AgentPingRequest(), metadata=bearer(token_for(Identity(Kind.USER, 0, 0)))),
        ):
            code, reason = await refusal(call)
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert "does not answer a caller of kind" in reason

    with_server(Verifier(KEY, "lab", 60), use)


def test_an_unknown_method_stays_unimplemented() -> None:
    async def use(channel: grpc.aio.Channel) -> None:
        call = channel.unary_unary("/spur.v1.Controller/Nothing")
        code, _ = await refusal(call(b"", metadata=bearer(token_for(USER))))
        assert code is grpc.StatusCode.UNIMPLEMENTED

    with_server(Verifier(KEY, "lab", 60), use)


def test_a_trusted_cluster_believes_its_callers() -> None:
    async def use(channel: grpc.aio.Channel) -> None:
        ping = spurctld_pb2_grpc.ControllerStub(channel).Ping
        reply = await ping(spurctld_pb2.PingRequest(), metadata=(("spur-uid", "7"), ("spur-gid", "8")))
        assert reply.hostname == "7:8"
        for metadata in ((), (("spur-uid", "x"), ("spur-gid", "8")), (("spur-uid", "-1"), ("spur-gid", "8"))):
            code, _ = await refusal(ping(spurctld_pb2.PingRequest(), metadata=metadata))
            assert code is grpc.StatusCode.UNAUTHENTICATED

    with_server(believe, use)


def test_credentials_follow_the_configuration(tmp_path: Path) -> None:
    path = key_file(tmp_path)
    config = parse(f'cluster_name = "lab"\n[auth]\nkey_file = "{path}"', tmp_path / "spur.toml")
    proof = credentials(config)
    assert proof.verify(proof.as_agent("n1")).node == "n1"
    assert proof.verify(proof.as_controller()).kind is Kind.CONTROLLER
    assert proof.sign_for_user is not None
    assert proof.verify(bearer(proof.sign_for_user(5, 6)[0])) == Identity(Kind.USER, 5, 6)


def test_credentials_of_a_trusted_cluster_need_no_key(tmp_path: Path) -> None:
    text = '[auth]\nplugin = "none"\nkey_file = "/nonexistent"\n[agent]\nlisten = "127.0.0.1:0"'
    proof = credentials(parse(text, tmp_path / "spur.toml"))
    assert proof.verify(proof.as_agent("n1")).node == "n1"
    assert proof.sign_for_user is None


def test_no_configuration_makes_a_daemon_open_to_others(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="loopback"):
        parse('[auth]\nplugin = "none"\n[controller]\nlisten = "0.0.0.0:1"', tmp_path / "spur.toml")


def test_a_key_that_systemd_hands_over_goes_before_the_key_file_whatever_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "auth.key").write_bytes(KEY)
    (tmp_path / "auth.key").chmod(0o440)
    (tmp_path / "spur.toml").write_text('cluster_name = "lab"\n[auth]\nkey_file = "/nowhere"\n')
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert credentials(load(tmp_path / "spur.toml")).sign_for_user is not None
