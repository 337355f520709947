"""`spurd`: the agent of a node."""

from __future__ import annotations

import os

# Before grpc is imported by anything: nothing of ours forks while it is there, and its handlers hang or crash when
# something does (docs/design).
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import argparse
import asyncio
import socket
import sys
from pathlib import Path

from spur import addresses, credentials, servicemanager
from spur.auth import KeyFileError
from spur.config import Config, ConfigError, NodeConfig, load, refuse_open_address
from spurd import logs, scope
from spurd.daemon import CannotStart, Daemon, Settings, lock_state_dir
from spurd.inventory import InventoryError
from spurstepd.rundir import NodeDirs


def main() -> None:
    """Serve until SIGTERM."""
    options = _parse(sys.argv[1:])
    origin = scope.look(os.environ)
    manager = servicemanager.from_environment(os.environ)
    try:
        config = load(options.config)
        settings = _settings(options, config, manager, origin)
        declared = config.node(settings.node)
        if declared is None:
            raise CannotStart(f"{config.path}: [[nodes]] has no {settings.node}; --hostname says which one this is")
        logs.set_up(options.log_level, settings.node)
        _serve(settings, declared, options.pidfile)
    except (ConfigError, KeyFileError, CannotStart, InventoryError, OSError) as error:
        sys.exit(f"spurd: error: {error}")


def _serve(settings: Settings, declared: NodeConfig, pidfile: Path | None) -> None:
    lock = lock_state_dir(settings.dirs)
    try:
        if pidfile is not None:
            pidfile.write_text(f"{os.getpid()}\n")
        asyncio.run(_run(settings, declared))
    finally:
        if pidfile is not None:
            pidfile.unlink(missing_ok=True)
        os.close(lock)


async def _run(settings: Settings, declared: NodeConfig) -> None:
    await Daemon(settings, declared).run()


def _settings(
    options: argparse.Namespace, config: Config, manager: servicemanager.Handover, origin: scope.Origin
) -> Settings:
    listen = options.listen or config.agent.listen
    refuse_open_address(config, "--listen", listen)
    state = Path(os.path.abspath(options.state_dir or config.agent.state_dir))
    runtime = options.runtime_dir or (state / "run" if options.state_dir else config.agent.runtime_dir)
    return Settings(
        config=config,
        credentials=credentials.credentials(config),
        controller=tuple(options.controller.split(",")) if options.controller else config.agent.controller,
        listen=listen,
        node=options.hostname or socket.gethostname().partition(".")[0],
        dirs=NodeDirs(state, Path(os.path.abspath(runtime))),
        program=str(Path(sys.executable).with_name("spurstepd")),
        notifier=manager.notifier,
        kept=manager.kept,
        origin=origin,
    )


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="spurd", description="The agent of a node: runs jobs and tells spurctld.")
    parser.add_argument("-f", dest="config", type=Path, metavar="CONF", help="configuration file")
    parser.add_argument("--controller", type=_addresses, metavar="HOST:PORT[,HOST:PORT]", help="where spurctld is")
    parser.add_argument("--listen", type=_address, metavar="HOST:PORT", help="address to serve at; port 0: any")
    parser.add_argument("--hostname", metavar="NAME", help="which node this is")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="where the records of runs are kept")
    parser.add_argument("--runtime-dir", type=Path, metavar="DIR", help="where sockets are made")
    parser.add_argument("--pidfile", type=Path, metavar="FILE")
    parser.add_argument("--log-level", choices=sorted(logs.LEVELS), default="info")
    parser.add_argument("-D", action="store_true", help="stay in the foreground, as it always does")
    return parser.parse_args(arguments)


def _address(text: str) -> str:
    try:
        addresses.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _addresses(text: str) -> str:
    for one in text.split(","):
        _address(one)
    return text


if __name__ == "__main__":
    main()
