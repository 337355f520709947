"""Signed tokens: JSON Web Tokens (RFC 7519) with HS256, the cluster as audience, good for minutes.

Only daemons sign and verify; a command carries what a daemon gave it and never imports this.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import jwt

from spur.auth import AuthError, Identity, Kind, Metadata, bearer, bearer_of, identity

_ALGORITHM = "HS256"
_DAEMON_TOKEN_S = 300


def mint(key: bytes, cluster: str, who: Identity, *, lifetime_s: float, now: float) -> tuple[str, float]:
    """A token that says `who`, and when it ends, in seconds since the epoch."""
    expires_at = now + lifetime_s
    claims = {
        "aud": cluster,
        "iat": int(now),
        "exp": int(expires_at),
        "kind": who.kind.value,
        "uid": who.uid,
        "gid": who.gid,
    }
    if who.node:
        claims["node"] = who.node
    return jwt.encode(claims, key, algorithm=_ALGORITHM), float(int(expires_at))


def verify(key: bytes, cluster: str, token: str, *, skew_s: float) -> Identity:
    """Whom `token` names. AuthError: it is not of this key and cluster, not yet or no longer good, or says nonsense."""
    try:
        claims = jwt.decode(
            token,
            key,
            algorithms=[_ALGORITHM],
            audience=cluster,
            leeway=skew_s,
            options={"require": ["aud", "iat", "exp", "kind", "uid", "gid"]},
        )
    except (jwt.ExpiredSignatureError, jwt.ImmatureSignatureError):
        raise AuthError("the token is out of its time: compare the clocks of the two machines") from None
    except jwt.InvalidAudienceError:
        raise AuthError(f"the token is not for cluster {cluster}") from None
    except jwt.InvalidSignatureError:
        raise AuthError("the token is signed with another key: compare the key files of the two machines") from None
    except jwt.PyJWTError as error:
        raise AuthError(f"the token cannot be used: {error}") from None
    return _identity(claims)


def _identity(claims: Mapping[str, Any]) -> Identity:
    uid, gid, node = claims["uid"], claims["gid"], claims.get("node", "")
    if type(uid) is not int or type(gid) is not int or not isinstance(node, str):
        raise AuthError("the token cannot be used: its claims are of other types")
    try:
        kind = Kind(claims["kind"])
    except ValueError:
        raise AuthError("the token cannot be used: it is of no known kind") from None
    return identity(kind, uid, gid, node)


class Verifier:
    """Verifies the metadata of calls to this daemon."""

    def __init__(self, key: bytes, cluster: str, skew_s: float) -> None:
        self._key, self._cluster, self._skew_s = key, cluster, skew_s

    def __call__(self, metadata: Metadata) -> Identity:
        return verify(self._key, self._cluster, bearer_of(metadata), skew_s=self._skew_s)


class Signer:
    """Signs for a daemon: its own calls, and the users whom its local socket recognized."""

    def __init__(self, key: bytes, cluster: str, user_lifetime_s: float) -> None:
        self._key, self._cluster, self._user_lifetime_s = key, cluster, user_lifetime_s
        self._own: dict[Identity, tuple[str, float]] = {}

    def for_user(self, uid: int, gid: int) -> tuple[str, float]:
        """A token for the user, and when it ends."""
        who = Identity(Kind.USER, uid, gid)
        return mint(self._key, self._cluster, who, lifetime_s=self._user_lifetime_s, now=time.time())

    def metadata(self, who: Identity) -> tuple[tuple[str, str], ...]:
        """The metadata of a call that this daemon makes as `who`; the token is used for half of its life."""
        now = time.time()
        token, expires_at = self._own.get(who, ("", 0.0))
        # A wall clock that was set back leaves a token that is good for too long: it is then replaced as well.
        if not now < expires_at - _DAEMON_TOKEN_S / 2 <= now + _DAEMON_TOKEN_S / 2:
            token, expires_at = mint(self._key, self._cluster, who, lifetime_s=_DAEMON_TOKEN_S, now=now)
            self._own[who] = token, expires_at
        return bearer(token)
