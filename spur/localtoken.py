"""A command's way to its token: one blocking varlink call to a daemon of this host.

Written by hand on a socket, because the varlink library brings asyncio, which would double a command's start.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from spur.auth import AuthError, Identity, Kind, bearer, claimed
from spur.config import AuthPlugin, Config
from spur.unixpath import short

CONTROLLER_SOCKET = "spurctld.sock"
AGENT_SOCKET = "agent.sock"
TIMEOUT_S = 5.0
_MAX_REPLY = 65536


def user_metadata(config: Config) -> tuple[tuple[str, str], ...]:
    """The metadata of a call that the user of this process makes. AuthError: no daemon of this host gives a token."""
    if config.auth.plugin is AuthPlugin.NONE:
        return claimed(Identity(Kind.USER, os.geteuid(), os.getegid()))
    return bearer(fetch(socket_paths(config.controller.runtime_dir, config.agent.runtime_dir)))


def socket_paths(controller_runtime_dir: Path, agent_runtime_dir: Path) -> tuple[Path, ...]:
    """Where a daemon of this host may listen, in the order in which they are tried."""
    return controller_runtime_dir / CONTROLLER_SOCKET, agent_runtime_dir / AGENT_SOCKET


def fetch(paths: Iterable[Path], timeout_s: float = TIMEOUT_S) -> str:
    """The caller's token, from the first daemon of `paths` that answers. AuthError: none does, and why."""
    failures = []
    for path in paths:
        try:
            return _ask(path, timeout_s)
        except OSError as error:
            failures.append(f"{path}: {os.strerror(error.errno) if error.errno else 'no answer in time'}")
        except (ValueError, KeyError, TypeError):
            failures.append(f"{path}: an answer that is none")
    raise AuthError(f"no daemon of Spur on this host gives a token ({', '.join(failures)})")


def _ask(path: Path, timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        with short(path) as name:
            connection.connect(name)
        connection.sendall(b'{"method":"org.spur.Token.GetToken"}\0')
        reply = b""
        while not reply.endswith(b"\0"):
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            received = connection.recv(4096)
            if not received or len(reply) > _MAX_REPLY:
                raise ValueError
            reply += received
    token = json.loads(reply[:-1])["parameters"]["token"]
    if not isinstance(token, str):
        raise TypeError
    return token
