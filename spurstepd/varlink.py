"""A varlink service on a unix socket: JSON messages ended by NUL, https://varlink.org.

Written by hand on our loop for the sake of memory. Callers are known by SO_PEERCRED at connect and come in three
classes. What a peer does wrong costs it its connection and nobody else anything: messages, output and connections
are bounded.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from spurstepd.reactor import READ, WRITE, Reactor

MESSAGE_BYTES = 1 << 16
OUTPUT_BYTES = 1 << 20
CONNECTIONS = 128
_ANCILLARY = socket.CMSG_SPACE(4 * array.array("i").itemsize)

Values = dict[str, Any]


class Caller(IntEnum):
    """Who may call a method; each class includes the ones before it."""

    ANYBODY = 0
    OWNER = 1  # the job's user
    ROOT = 2


class Refused(Exception):
    """An error reply: its varlink name, and the parameters that go with it."""

    def __init__(self, name: str, **parameters: object) -> None:
        super().__init__(name)
        self.name = name
        self.parameters = parameters


def invalid(parameter: str) -> Refused:
    return Refused("org.varlink.service.InvalidParameter", parameter=parameter)


@dataclass(slots=True)
class Call:
    """One method call, for the handler."""

    connection: Connection
    parameters: Values
    more: bool

    def integer(self, name: str) -> int:
        value = self.parameters.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise invalid(name)
        return value

    def text(self, name: str) -> str:
        value = self.parameters.get(name)
        if not isinstance(value, str):
            raise invalid(name)
        return value

    def optional_integer(self, name: str) -> int | None:
        return None if self.parameters.get(name) is None else self.integer(name)

    def optional_text(self, name: str) -> str | None:
        return None if self.parameters.get(name) is None else self.text(name)

    def take_fd(self, name: str) -> int | None:
        """The descriptor that was passed along at the index in `name`; it is the handler's from now on."""
        index = self.optional_integer(name)
        if index is None:
            return None
        if not 0 <= index < len(self.connection.passed):
            raise invalid(name)
        return self.connection.passed.pop(index)


Handler = Callable[[Call], Values | None]
"""Gives the reply; None: it replies later, through `Connection.reply`."""


@dataclass(frozen=True, slots=True)
class Method:
    needs: Caller
    handle: Handler


@dataclass(slots=True)
class Connection:
    """One peer."""

    socket: socket.socket
    uid: int
    caller: Caller
    service: Service
    received: bytearray = field(default_factory=bytearray)
    to_send: bytearray = field(default_factory=bytearray)
    passed: list[int] = field(default_factory=list)
    closed: bool = False
    on_close: list[Callable[[], None]] = field(default_factory=list)

    def reply(self, parameters: Values, continues: bool = False) -> None:
        self._send({"parameters": parameters, "continues": True} if continues else {"parameters": parameters})

    def refuse(self, error: Refused) -> None:
        self._send({"error": error.name, "parameters": error.parameters})

    def _send(self, message: Values) -> None:
        if self.closed:
            return
        self.to_send += json.dumps(message, separators=(",", ":")).encode() + b"\0"
        self.flush()
        if len(self.to_send) > OUTPUT_BYTES:
            self.close()  # a subscriber that does not read

    def flush(self) -> None:
        try:
            while self.to_send:
                del self.to_send[: self.socket.send(self.to_send, socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        self.service.watch(self)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.service.drop(self)
        for fd in self.passed:
            os.close(fd)
        self.socket.close()
        for call in self.on_close:
            call()


class Service:
    """A listening socket and its connections.

    `interfaces` maps the name of an interface to its description; `methods` the full name of a method to what does it.
    """

    def __init__(
        self,
        reactor: Reactor,
        listener: socket.socket,
        owner_uid: int | None,
        version: str,
        interfaces: dict[str, str],
        methods: dict[str, Method],
    ) -> None:
        self._reactor = reactor
        self._listener = listener
        self._owner_uid = owner_uid
        self._version = version
        self._interfaces = interfaces
        self._methods = {
            **methods,
            "org.varlink.service.GetInfo": Method(Caller.ANYBODY, self._get_info),
            "org.varlink.service.GetInterfaceDescription": Method(Caller.ANYBODY, self._describe),
        }
        self._open: dict[int, Connection] = {}
        listener.setblocking(False)
        reactor.watch(listener.fileno(), READ, self._accept)

    def _accept(self, _: int) -> None:
        try:
            while True:
                self._admit(self._listener.accept()[0])
        except OSError:
            pass  # no more of them, or we are out of descriptors: the next one may fit again

    def _admit(self, peer: socket.socket) -> None:
        if len(self._open) >= CONNECTIONS:
            peer.close()
            return
        peer.setblocking(False)
        uid = peer_uid(peer)
        connection = Connection(peer, uid, self._class_of(uid), self)
        self._open[peer.fileno()] = connection
        self.watch(connection)

    def _class_of(self, uid: int) -> Caller:
        if uid in (0, os.geteuid()):
            return Caller.ROOT
        return Caller.OWNER if uid == self._owner_uid else Caller.ANYBODY

    def watch(self, connection: Connection) -> None:
        events = READ | (WRITE if connection.to_send else 0)
        self._reactor.watch(connection.socket.fileno(), events, lambda bits: self._ready(connection, bits))

    def drop(self, connection: Connection) -> None:
        self._reactor.forget(connection.socket.fileno())
        self._open.pop(connection.socket.fileno(), None)

    def _ready(self, connection: Connection, bits: int) -> None:
        if bits & WRITE:
            connection.flush()
        if bits & ~WRITE and not connection.closed:
            self._receive(connection)

    def _receive(self, connection: Connection) -> None:
        try:
            data, ancillary, _flags, _address = connection.socket.recvmsg(
                MESSAGE_BYTES, _ANCILLARY, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            connection.close()
            return
        connection.passed += passed_fds(ancillary)
        if len(connection.passed) > 4 or (connection.passed and connection.caller is not Caller.ROOT):
            connection.close()
            return
        if not data:
            connection.close()
            return
        connection.received += data
        self._take_messages(connection)

    def _take_messages(self, connection: Connection) -> None:
        while not connection.closed:
            message, found, rest = connection.received.partition(b"\0")
            if not found:
                break
            connection.received = rest
            self._call(connection, bytes(message))
        if len(connection.received) > MESSAGE_BYTES:
            connection.close()

    def _call(self, connection: Connection, message: bytes) -> None:
        try:
            call = json.loads(message)
            name, parameters = call["method"], call.get("parameters") or {}
            if not isinstance(name, str) or not isinstance(parameters, dict):
                raise ValueError(name)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            connection.close()  # not varlink
            return
        try:
            reply = self._dispatch(connection, name, parameters, bool(call.get("more")))
        except Refused as error:
            if not call.get("oneway"):
                connection.refuse(error)
            return
        if reply is not None and not call.get("oneway"):
            connection.reply(reply)

    def _dispatch(self, connection: Connection, name: str, parameters: Values, more: bool) -> Values | None:
        method = self._methods.get(name)
        if method is None:
            interface = name.rpartition(".")[0]
            if interface in self._interfaces or interface == "org.varlink.service":
                raise Refused("org.varlink.service.MethodNotFound", method=name)
            raise Refused("org.varlink.service.InterfaceNotFound", interface=interface)
        if connection.caller < method.needs:
            raise Refused("org.varlink.service.PermissionDenied")
        return method.handle(Call(connection, parameters, more))

    def _get_info(self, call: Call) -> Values:
        return {
            "vendor": "Spur",
            "product": "spurstepd",
            "version": self._version,
            "url": "https://varlink.org",
            "interfaces": ["org.varlink.service", *self._interfaces],
        }

    def _describe(self, call: Call) -> Values:
        interface = call.text("interface")
        description = {"org.varlink.service": SERVICE_INTERFACE, **self._interfaces}.get(interface)
        if description is None:
            raise Refused("org.varlink.service.InterfaceNotFound", interface=interface)
        return {"description": description}

    def close(self) -> None:
        """Stop listening and drop all connections, without a word: for a process that goes, or a fork."""
        self._reactor.forget(self._listener.fileno())
        self._listener.close()
        for connection in list(self._open.values()):
            connection.flush()
            connection.on_close.clear()
            connection.close()


SERVICE_INTERFACE = """\
# The interface that every varlink service has.
interface org.varlink.service

method GetInfo() -> (vendor: string, product: string, version: string, url: string, interfaces: []string)
method GetInterfaceDescription(interface: string) -> (description: string)

error InterfaceNotFound (interface: string)
error MethodNotFound (method: string)
error MethodNotImplemented (method: string)
error InvalidParameter (parameter: string)
error PermissionDenied ()
error ExpectedMore ()
"""


def peer_uid(peer: socket.socket) -> int:
    """Who connected, unix(7) SO_PEERCRED: struct ucred of pid, uid, gid."""
    _pid, uid, _gid = struct.unpack("=iII", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


def passed_fds(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    """The descriptors of SCM_RIGHTS messages, unix(7)."""
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return list(found)


def listen(path: Path, mode: int) -> socket.socket:
    """A listening socket at `path` with `mode`, in place of what a dead process may have left there.

    It is bound beside the path and renamed over it, so that no caller meets the wrong mode; and through the directory's
    descriptor, since a socket address has room for 107 bytes.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    beside = f".{path.name}.{os.getpid()}"
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{beside}")
        os.chmod(beside, mode, dir_fd=directory)
        listener.listen(1024)  # a caller that finds it full gets EAGAIN and not a wait, unix(7)
        os.rename(beside, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(directory)
    return listener
