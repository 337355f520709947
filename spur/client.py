"""A command's line to the controller: where it is, who calls, and what Slurm says when that fails.

The controller is found by SPUR_CONTROLLER_ADDR, or else by the configuration: the file that SPUR_CONF names or the
default one. No variable of Slurm's counts: tools that start jobs strip those from the environment.
A controller that is being restarted is waited for, as Slurm's commands do.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from spur import addresses, localtoken
from spur.auth import AuthError
from spur.config import Config, ConfigError, default_path, load
from spur.console import Console, Failure

if TYPE_CHECKING:
    import grpc

    from spur.pb.spurctld_pb2_grpc import ControllerStub

CONNECT_S = 8.0  # how long a controller that is not there is waited for; SPUR_CONNECT_SECS of the environment wins
CALL_S = 30.0
NO_CONTACT = "Unable to contact slurm controller (connect failure)"
NO_ANSWER = "Socket timed out on send/recv operation"
NOT_PROVEN = "Protocol authentication error"
_RETRY_S = 0.25

Reply = TypeVar("Reply")


class ControllerError(Exception):
    """The controller refused or was not reached. The message is Slurm's text.

    `note` is a further line that Slurm prints before it, `hint` one of ours that stands behind it; both may be empty.
    """

    def __init__(self, text: str, note: str = "", hint: str = "") -> None:
        super().__init__(text)
        self.text, self.note, self.hint = text, note, hint


def tell(console: Console, error: ControllerError, line: str) -> None:
    """Print `line`, the command's own wording of `error`, with what else is known around it."""
    if error.note:
        console.complain(error.note)
    console.say(line)
    if error.hint:
        console.say(f"{console.name}: {error.hint}")


class Controller:
    """A connection to the controller that answers; to be used in a `with` statement."""

    def __init__(self, target: str, metadata: Sequence[tuple[str, str]]) -> None:
        """`target` is HOST:PORT, `metadata` what proves the caller."""
        # Before grpc is loaded: its messages are not for users. The job's environment was taken before.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        import grpc

        from spur.pb.spurctld_pb2_grpc import ControllerStub

        options = [
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
        ]
        self._channel: grpc.Channel = grpc.insecure_channel(target, options=options)
        self._metadata = tuple(metadata)
        self.stub: ControllerStub = ControllerStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._channel.close()

    def call(self, method: Callable[..., Reply], request: Any, timeout_s: float = CALL_S) -> Reply:
        """The answer of `method`, one of `stub`'s, to `request`. ControllerError: it refused or did not answer."""
        import grpc

        try:
            return method(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise _controller_error(error) from None


def connect(environ: Mapping[str, str]) -> Controller:
    """The controller of this cluster. ControllerError: none can be reached. Failure: the configuration is unusable."""
    config = read_config(environ)
    targets = [_split(target) for target in _targets(config, environ)]
    deadline = time.monotonic() + _patience_s(environ)
    while True:
        try:
            metadata = localtoken.user_metadata(config)
            host, port = _first_that_listens(targets, max(deadline - time.monotonic(), 1.0))
            return Controller(addresses.join(host, port), metadata)
        except AuthError as error:
            hint = str(error)
        except OSError as error:
            hint = str(error)
        if time.monotonic() + _RETRY_S > deadline:
            raise ControllerError(NO_CONTACT, hint=hint)
        time.sleep(_RETRY_S)


def read_config(environ: Mapping[str, str]) -> Config:
    """The configuration; all defaults where only SPUR_CONTROLLER_ADDR says where the controller is."""
    path = default_path(environ)
    if environ.get("SPUR_CONTROLLER_ADDR") and not environ.get("SPUR_CONF") and not path.exists():
        return Config()
    try:
        return load(path)
    except ConfigError as error:
        raise Failure(str(error)) from None


def _targets(config: Config, environ: Mapping[str, str]) -> tuple[str, ...]:
    given = environ.get("SPUR_CONTROLLER_ADDR", "")
    return tuple(one.strip() for one in given.split(",") if one.strip()) or config.agent.controller


def _patience_s(environ: Mapping[str, str]) -> float:
    try:
        return max(float(environ.get("SPUR_CONNECT_SECS") or CONNECT_S), 0.0)
    except ValueError:
        return CONNECT_S


def _split(target: str) -> tuple[str, int]:
    try:
        return addresses.split(target)
    except ValueError as error:
        raise Failure(f"SPUR_CONTROLLER_ADDR {error}") from None


def _first_that_listens(targets: Sequence[tuple[str, int]], timeout_s: float) -> tuple[str, int]:
    """The first of `targets` that takes a connection, which gRPC would find out slowly and say vaguely.

    OSError, whose message names each of them: none does.
    """
    failures = []
    for target in targets:
        try:
            socket.create_connection(target, timeout=timeout_s).close()
        except OSError as error:
            failures.append(f"{addresses.join(*target)}: {error.strerror or error}")
        else:
            return target
    raise OSError("; ".join(failures))


def _controller_error(error: grpc.RpcError) -> ControllerError:
    import grpc

    if not isinstance(error, grpc.Call):
        return ControllerError(NO_CONTACT)
    details = error.details() or ""
    match error.code():
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:  # it is gone, or was told to leave meanwhile
            return ControllerError(NO_CONTACT)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return ControllerError(NO_ANSWER)
        case grpc.StatusCode.UNAUTHENTICATED:
            return ControllerError(NOT_PROVEN, hint=details)
    note = next((str(value) for key, value in error.trailing_metadata() or () if key == "spur-note"), "")
    return ControllerError(details or error.code().name, _unquoted(note) if note else "")


def _unquoted(text: str) -> str:
    from urllib.parse import unquote  # few calls have a note, and the module takes its time

    return unquote(text)
