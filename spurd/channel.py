"""A varlink connection to a launcher or a supervisor.

The protocol is `asyncvarlink`'s; its typed proxies are not used, because they refuse a reply that has a field more
than they know, and a peer may be newer than we are. Replies stay plain objects until `runstate` and others decode them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from asyncvarlink import VarlinkClientProtocol, VarlinkTransport
from asyncvarlink.message import VarlinkMethodCall, VarlinkMethodReply

Values = dict[str, Any]

_SO_PEERPIDFD = 77  # Linux 6.5, unix(7)
_BUSY_RETRY_S = 0.05


class ChannelLost(Exception):
    """There is no peer, or it went away."""


class Refused(Exception):
    """The peer answered with an error; `name` without its interface, and its parameters."""

    def __init__(self, name: str, parameters: Values) -> None:
        super().__init__(name, parameters)
        self.name = name
        self.parameters = parameters

    def __str__(self) -> str:
        told = ", ".join(f"{key}: {value}" for key, value in self.parameters.items())
        return f"{self.name} ({told})" if told else self.name


class Channel:
    """One connection. Calls are answered in order, so one with many replies needs a connection of its own."""

    def __init__(self, transport: VarlinkTransport, protocol: VarlinkClientProtocol, peer: socket.socket) -> None:
        self._transport = transport
        self._protocol = protocol
        self._peer = peer

    @classmethod
    async def connect(cls, path: Path) -> Channel:
        """Connect to the socket at `path`. ChannelLost: nobody listens there.

        Waits for as long as the peer does not accept; give it a deadline from outside.
        """
        try:
            peer = await _connect(path)
        except OSError as error:
            raise ChannelLost(f"{path}: {error.strerror}") from None
        protocol = VarlinkClientProtocol()
        transport = VarlinkTransport(asyncio.get_running_loop(), peer, peer, protocol)
        await asyncio.sleep(0)  # the transport tells its protocol of itself in the next turn of the loop
        return cls(transport, protocol, peer)

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path) -> AsyncIterator[Channel]:
        """A connection for as long as the context lasts. As `connect`."""
        channel = await cls.connect(path)
        try:
            yield channel
        finally:
            channel.close()

    async def call(self, method: str, parameters: Values | None = None, fds: tuple[int, ...] = ()) -> Values:
        """The reply to one call; `fds` stay the caller's. ChannelLost, Refused."""
        try:
            answered = await self._protocol.call(VarlinkMethodCall(method, parameters or {}), list(fds) or None)
        except (OSError, ValueError, TypeError) as error:
            raise ChannelLost(f"{method}: {error}") from None
        assert answered is not None  # only a oneway call has no reply
        return _values(answered[0])

    async def call_more(self, method: str) -> AsyncIterator[Values]:
        """The replies to one call, as they come. ChannelLost at its end, Refused."""
        replies = self._protocol.call_more(VarlinkMethodCall(method, {}, more=True))
        try:
            async for reply, _fds in replies:
                yield _values(reply)
        except (OSError, ValueError, TypeError) as error:
            raise ChannelLost(f"{method}: {error}") from None
        finally:
            await _close_quietly(replies)

    def peer_pid(self) -> int:
        """The pid of the process that listened on the socket, unix(7) SO_PEERCRED."""
        pid, _uid, _gid = struct.unpack("=iII", self._peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(pid)

    def peer_pidfd(self) -> int | None:
        """A pidfd of that process, the caller's to close; None where the kernel gives none."""
        try:
            return self._peer.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError:
            return None

    async def wait_lost(self) -> None:
        """Until the connection has ended, on whichever side."""
        await asyncio.shield(self._transport.closed_future)

    def close(self) -> None:
        self._transport.close()


def _values(reply: VarlinkMethodReply) -> Values:
    if reply.error is not None:
        raise Refused(reply.error.rpartition(".")[2], dict(reply.parameters))
    return dict(reply.parameters)


async def _close_quietly(replies: Any) -> None:
    try:
        await replies.aclose()
    except OSError:
        pass  # the call could not even be sent; the loop over the replies has said so


async def _connect(path: Path) -> socket.socket:
    """Through the descriptor of the directory: a socket's address has room for 107 bytes."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        while True:
            try:
                peer.connect(f"/proc/self/fd/{directory}/{path.name}")
                return peer
            except BlockingIOError:
                # A full backlog: connect(2) on a unix socket does not go on by itself, it has to be tried again.
                await asyncio.sleep(_BUSY_RETRY_S)
    except BaseException:
        peer.close()
        raise
    finally:
        os.close(directory)
