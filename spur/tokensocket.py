"""The local socket of a daemon, at which whoever is on this host gets a token of who they are.

Served by spurctld and spurd, as proto/org.spur.Token.varlink describes it. It lives as long as its daemon; the kernel
says who calls (SO_PEERCRED, the credentials at the time of connect), so nothing that a caller sends is believed.
"""

# No `from __future__ import annotations` here: asyncvarlink makes the interface of the annotations' values.
import asyncio
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self, TypedDict

from asyncvarlink import (
    FileDescriptorArray,
    VarlinkInterface,
    VarlinkInterfaceRegistry,
    VarlinkInterfaceServerProtocol,
    VarlinkMethodCall,
    VarlinkTransport,
    varlinkmethod,
)
from asyncvarlink.serviceinterface import VarlinkServiceInterface

from spur import __version__
from spur.unixpath import short

Mint = Callable[[int, int], tuple[str, float]]

_MAX_CONNECTIONS = 256
_MAX_REQUEST_BYTES = 4096
_CONNECTION_S = 10.0
_BACKLOG = 128
_BACK_OFF_S = 0.1
_UCRED = struct.Struct("3i")  # pid, uid, gid: unix(7)


class Answer(TypedDict):
    token: str
    expires_at: float


class _Token(VarlinkInterface, name="org.spur.Token"):
    """Answers one connection, whose peer it knows."""

    def __init__(self, mint: Mint, uid: int, gid: int) -> None:
        self._mint, self._uid, self._gid = mint, uid, gid

    @varlinkmethod
    def GetToken(self) -> Answer:
        """A token of the caller, for calls to the controller."""
        token, expires_at = self._mint(self._uid, self._gid)
        return {"token": token, "expires_at": expires_at}


class _Protocol(VarlinkInterfaceServerProtocol):
    """One connection: bounded in what it may send without ending a message, and in how long it may stay."""

    def __init__(self, registry: VarlinkInterfaceRegistry) -> None:
        super().__init__(registry)
        self._unfinished = 0

    def message_received(self, data: bytes, fds: FileDescriptorArray | None) -> None:
        ended = data.rfind(b"\0")
        self._unfinished = self._unfinished + len(data) if ended < 0 else len(data) - ended - 1
        if self._unfinished > _MAX_REQUEST_BYTES or fds:
            assert self._transport is not None
            self._transport.abort()
            return
        super().message_received(data, fds)

    def call_received(self, call: VarlinkMethodCall, fds: FileDescriptorArray | None) -> asyncio.Future[None] | None:
        # A later version may ask with parameters; what is not known is ignored, where the library would refuse it.
        if call.method_interface == _Token.name:
            call.parameters = {}
        answered: asyncio.Future[None] | None = super().call_received(call, fds)
        return answered


class TokenSocket:
    """Open from `open` to `close`; the path is the socket's for that time."""

    def __init__(self, listener: socket.socket, path: Path, mint: Mint) -> None:
        self._listener, self._path, self._mint = listener, path, mint
        self._connections: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept())

    @classmethod
    async def open(cls, path: Path, mint: Mint) -> Self:
        """Serve at `path`, in place of a socket that a dead daemon left there. OSError: it cannot be bound."""
        return cls(_listen(path), path, mint)

    async def close(self) -> None:
        """Stop, drop the connections and remove the path."""
        tasks = [self._accepting, *self._connections]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()
        self._path.unlink(missing_ok=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if len(self._connections) >= _MAX_CONNECTIONS:
                await asyncio.wait(self._connections, return_when=asyncio.FIRST_COMPLETED)
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError:  # out of descriptors: those who wait stay in the backlog
                await asyncio.sleep(_BACK_OFF_S)
                continue
            task = asyncio.create_task(self._serve(connection))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _serve(self, connection: socket.socket) -> None:
        """Answer on `connection` until the peer closes it or its time is over."""
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        _pid, uid, gid = _UCRED.unpack(peer)
        registry = VarlinkInterfaceRegistry()
        registry.register_interface(_Token(self._mint, uid, gid))
        registry.register_interface(VarlinkServiceInterface("Spur", "Spur", __version__, "", registry))
        transport = VarlinkTransport(asyncio.get_running_loop(), connection, connection, _Protocol(registry))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CONNECTION_S):
                    await asyncio.shield(transport.closed_future)
        finally:
            if not transport.closed_future.done():
                transport.abort()
                await transport.closed_future


def _listen(path: Path) -> socket.socket:
    """A listening socket at `path` that everybody may connect to; it appears there complete, or not at all."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with short(fresh) as name:
            listener.bind(name)
        listener.listen(_BACKLOG)
        os.chmod(fresh, 0o666)
        os.rename(fresh, path)
    except BaseException:
        listener.close()
        fresh.unlink(missing_ok=True)
        raise
    return listener
