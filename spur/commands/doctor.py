"""`spur doctor`: checks the set-up of the node that it runs on, one line for each thing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from spur.config import Config, ConfigError, default_path, load
from spur.console import Console, Environ, Failure
from spur.doctor import cgroups, kernel, setup, unit
from spur.doctor.finding import Finding, Grade, broken, ok

USAGE = "Usage: spur doctor [-f CONF]"


def command(words: Sequence[str], environ: Environ, console: Console) -> int:
    """0 where nothing is broken."""
    path = _parse(words, environ, console)
    if os.geteuid() != 0:
        raise Failure("only root can try what a node does")
    worst = 0
    for finding in examine(path):
        console.print(finding.line())
        worst = max(worst, finding.grade is Grade.BROKEN)
    return worst


def _parse(words: Sequence[str], environ: Environ, console: Console) -> Path:
    match list(words):
        case []:
            return default_path(environ)
        case ["-f", path]:
            return Path(path)
    raise Failure(f"not understood: {' '.join(words)}", USAGE)


def examine(path: Path) -> Iterator[Finding]:
    """Everything, in the order in which a node needs it. Without a configuration its defaults are examined."""
    try:
        config = load(path)
    except ConfigError as error:
        yield broken("configuration", f"{error}; no daemon starts")
        config = Config(cluster_name="unknown")
    else:
        yield ok("configuration", f"{path}, cluster {config.cluster_name}")
    yield setup.key_file(config)
    yield setup.clock()
    yield setup.port(config)
    yield setup.controller(config)
    yield from setup.spool(config)
    yield setup.socket_paths(config)
    for check in (kernel.pidfd, kernel.subreaper, kernel.identity, kernel.exit_record, kernel.peer_pidfd):
        yield check()
    yield cgroups.tree(config)
    yield cgroups.controllers()
    yield from unit.examine()
