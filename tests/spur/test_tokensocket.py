"""The daemons' local socket: real sockets, real users, a varlink client that is not ours, peers that misbehave."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import varlink

from spur.auth import AuthError
from spur.localtoken import fetch, socket_paths
from spur.tokensocket import TokenSocket


def mint(uid: int, gid: int) -> tuple[str, float]:
    return f"token of {uid}:{gid}", 12.5


def serve(path: Path, use: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        server = await TokenSocket.open(path, mint)
        try:
            await use()
        finally:
            await server.close()

    asyncio.run(run())


def test_tells_each_caller_who_it_is(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"

    async def use() -> None:
        assert await asyncio.to_thread(fetch, [path]) == f"token of {os.geteuid()}:{os.getegid()}"

    serve(path, use)
    assert not path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_believes_the_kernel_and_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_mode & 0o001 == 0:
            directory.chmod(0o711)
    program = f"import os; from pathlib import Path; from spur.localtoken import fetch; os.setgid(4243); os.setuid(4242); print(fetch([Path({str(path)!r})]))"

    async def use() -> None:
        asked = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
        printed, _ = await asked.communicate()
        assert printed == b"token of 4242:4243\n"

    serve(path, use)


def test_a_path_longer_than_the_kernel_takes_works(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    path = directory / "agent.sock"

    async def use() -> None:
        assert (await asyncio.to_thread(fetch, [path])).startswith("token of")

    serve(path, use)


def test_a_standard_client_can_ask_and_read_the_interface(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"

    def ask() -> tuple[str, str]:
        with varlink.Client(address=f"unix:{path}") as client, client.open("org.spur.Token") as interface:
            told = interface.GetToken()["token"]
        with varlink.Client(address=f"unix:{path}") as client, client.open("org.varlink.service") as service:
            return told, service.GetInterfaceDescription("org.spur.Token")["description"]

    async def use() -> None:
        told, description = await asyncio.to_thread(ask)
        assert told == f"token of {os.geteuid()}:{os.getegid()}"
        assert meaning(description) == meaning((Path(__file__).parents[2] / "proto/org.spur.Token.varlink").read_text())

    serve(path, use)


def meaning(description: str) -> str:
    """An interface description without comments and blanks."""
    lines = (line.partition("#")[0] for line in description.splitlines())
    return "".join("".join(lines).split())


def test_replaces_the_socket_that_a_dead_daemon_left(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    async def use() -> None:
        assert (await asyncio.to_thread(fetch, [path])).startswith("token of")
        assert path.stat().st_mode & 0o777 == 0o666

    serve(path, use)


def test_a_peer_that_misbehaves_disturbs_nobody(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"

    def misbehave() -> None:
        with socket.socket(socket.AF_UNIX) as flood:
            flood.connect(str(path))
            flood.settimeout(10)
            with pytest.raises(OSError):
                while True:
                    flood.sendall(b"x" * 65536)
        for sent in (b"nonsense\0", b"[]\0", b'{"method":"org.spur.Token.Steal"}\0', b'{"method":5}\0', b"\0\0"):
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(str(path))
                peer.sendall(sent)
        with socket.socket(socket.AF_UNIX) as asker:
            asker.connect(str(path))
            asker.sendall(b'{"method":"org.spur.Token.GetToken","parameters":{"uid":0}}\0')
            assert json.loads(asker.recv(4096)[:-1])["parameters"]["token"] == f"token of {os.geteuid()}:{os.getegid()}"
        idle = [socket.socket(socket.AF_UNIX) for _ in range(20)]
        for one in idle:
            one.connect(str(path))
        assert fetch([path]).startswith("token of")
        for one in idle:
            one.close()

    async def use() -> None:
        await asyncio.to_thread(misbehave)

    serve(path, use)


def test_asks_the_next_daemon_where_the_first_is_not_there(tmp_path: Path) -> None:
    there = tmp_path / "agent.sock"

    async def use() -> None:
        assert (await asyncio.to_thread(fetch, [tmp_path / "none", there])).startswith("token of")

    serve(there, use)


def test_no_daemon_is_one_line_that_names_the_sockets(tmp_path: Path) -> None:
    with pytest.raises(AuthError) as refusal:
        fetch(socket_paths(tmp_path, tmp_path))
    assert str(refusal.value) == (
        "no daemon of Spur on this host gives a token "
        f"({tmp_path}/spurctld.sock: No such file or directory, {tmp_path}/agent.sock: No such file or directory)"
    )


def test_a_daemon_that_hangs_does_not_hang_the_command(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen(1)
        with pytest.raises(AuthError, match="no answer in time"):
            fetch([path], timeout_s=0.1)
