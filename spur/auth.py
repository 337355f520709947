"""Who calls, and how a call says so. What every side needs; the signing itself is in spur.tokens.

A user's command asks the local socket of a daemon (spur.tokensocket), which knows the caller from the kernel and
signs that. Daemons hold the key and sign for themselves. Each gRPC call carries the token as metadata.
In a cluster with plugin "none" the metadata names the caller, and is believed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

LEAST_KEY_BYTES = 32  # RFC 7518, 3.2: HS256 wants a key of the hash's size
MAX_KEY_BYTES = 65536
MAX_ID = 2**32 - 2  # the last is "no user" to the kernel

Metadata = Sequence[tuple[str, str | bytes]]


class AuthError(Exception):
    """Who calls is not proven, or may not call this; one line."""


class KeyFileError(Exception):
    """The key file cannot be used; one line that says why and what to do."""


class Kind(Enum):
    """In which role somebody calls."""

    USER = "user"
    AGENT = "agent"
    CONTROLLER = "controller"


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller that has been proven. `node` is set for agents alone."""

    kind: Kind
    uid: int
    gid: int
    node: str = ""

    @property
    def is_root(self) -> bool:
        return self.kind is Kind.USER and self.uid == 0


Verify = Callable[[Metadata], Identity]

# Who may call which service; a service that is not listed answers nobody.
CALLERS: Mapping[str, frozenset[Kind]] = {
    "spur.v1.Controller": frozenset({Kind.USER}),
    "spur.v1.Registry": frozenset({Kind.AGENT}),
    "spur.v1.Agent": frozenset({Kind.CONTROLLER}),
}


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """The metadata of a call that proves itself with `token`."""
    return (("authorization", f"Bearer {token}"),)


def bearer_of(metadata: Metadata) -> str:
    """The token in `metadata`. AuthError: there is none."""
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str) and value.startswith("Bearer "):
            return value.removeprefix("Bearer ")
    raise AuthError("the call carries no token")


def claimed(identity: Identity) -> tuple[tuple[str, str], ...]:
    """The metadata of a call that is believed, in a cluster with plugin "none"."""
    return (
        ("spur-kind", identity.kind.value),
        ("spur-uid", str(identity.uid)),
        ("spur-gid", str(identity.gid)),
        ("spur-node", identity.node),
    )


def believe(metadata: Metadata) -> Identity:
    """The caller that `metadata` names, unproven. AuthError: it names none."""
    said = {key: value for key, value in metadata if isinstance(value, str)}
    try:
        kind = Kind(said.get("spur-kind", "user"))
        return identity(kind, int(said["spur-uid"]), int(said["spur-gid"]), said.get("spur-node", ""))
    except (KeyError, ValueError):
        raise AuthError("the call does not name its caller in spur-uid and spur-gid") from None


def identity(kind: Kind, uid: int, gid: int, node: str) -> Identity:
    """An Identity whose numbers and node can be. AuthError: they cannot."""
    if not (0 <= uid <= MAX_ID and 0 <= gid <= MAX_ID):
        raise AuthError(f"there is no user {uid}:{gid}")
    if (kind is Kind.AGENT) is not bool(node):
        raise AuthError("an agent names its node, and nobody else does")
    return Identity(kind, uid, gid, node)


def refuse_unless(caller: Identity, service: str) -> None:
    """AuthError where `caller` may not call `service`."""
    if caller.kind not in CALLERS.get(service, frozenset()):
        raise AuthError(f"{service} does not answer a caller of kind {caller.kind.value}")


def read_key(path: Path, *, handed_over: bool = False) -> bytes:
    """The key that the daemons share. KeyFileError: missing, readable by others, somebody else's, or too short.

    `handed_over`: the service manager made the file for this process alone, in a directory that nobody else can enter.
    """
    try:
        flags = os.O_NONBLOCK | os.O_NOFOLLOW
        with open(path, "rb", opener=lambda name, mode: os.open(name, mode | flags)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise KeyFileError(f"{path}: the key file is not a regular file")
            key = file.read(MAX_KEY_BYTES + 1)
    except FileNotFoundError:
        raise KeyFileError(
            f"{path}: no key file: make one of {LEAST_KEY_BYTES} random bytes, mode 0600, and copy it to every node"
        ) from None
    except OSError as error:
        raise KeyFileError(f"{path}: cannot read the key file: {os.strerror(error.errno or 0)}") from None
    if not handed_over:
        _check_owner(path, status)
    if not LEAST_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise KeyFileError(
            f"{path}: the key file has {len(key)} bytes: it needs {LEAST_KEY_BYTES} random bytes or some more"
        )
    return key


def _check_owner(path: Path, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise KeyFileError(f"{path}: the key file has mode {mode:04o}, so that others can use it: make it 0600")
    if status.st_uid not in (0, os.geteuid()):
        raise KeyFileError(f"{path}: the key file belongs to uid {status.st_uid}: make it root's")
