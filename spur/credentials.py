"""What a daemon knows of proof, made once from the configuration: how it verifies its callers and signs its calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spur.auth import Identity, Kind, Verify, believe, claimed, read_key
from spur.config import AuthPlugin, Config
from spur.tokens import Signer, Verifier

CallMetadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Credentials:
    """`sign_for_user` is None in a cluster that believes its callers: there are no tokens there."""

    verify: Verify
    sign: Callable[[Identity], CallMetadata]
    sign_for_user: Callable[[int, int], tuple[str, float]] | None

    def as_agent(self, node: str) -> CallMetadata:
        """The metadata of a call from the agent of `node`."""
        return self.sign(Identity(Kind.AGENT, os.geteuid(), os.getegid(), node))

    def as_controller(self) -> CallMetadata:
        """The metadata of a call from the controller."""
        return self.sign(Identity(Kind.CONTROLLER, os.geteuid(), os.getegid()))


def credentials(config: Config) -> Credentials:
    """As `config` says. KeyFileError: the cluster uses tokens and the key file cannot be used."""
    if config.auth.plugin is AuthPlugin.NONE:
        return Credentials(believe, claimed, None)
    handed_over = _handed_over(os.environ)
    key = read_key(handed_over or config.auth.key_file, handed_over=handed_over is not None)
    signer = Signer(key, config.cluster_name, config.auth.user_token_secs)
    return Credentials(
        Verifier(key, config.cluster_name, config.auth.clock_skew_secs), signer.metadata, signer.for_user
    )


def _handed_over(environment: Mapping[str, str]) -> Path | None:
    """A copy of the key that systemd made for a service which is not root's (systemd.exec(5), LoadCredential=)."""
    path = Path(environment.get("CREDENTIALS_DIRECTORY", "/"), "auth.key")
    return path if "CREDENTIALS_DIRECTORY" in environment and path.exists() else None
