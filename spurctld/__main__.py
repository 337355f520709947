"""`spurctld`: the controller."""

from __future__ import annotations

import os

# Before grpc is imported by anything: its fork handlers hang when a process that uses it starts a hook (docs/design).
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import argparse
import asyncio
import sys
from pathlib import Path

from spur import addresses, credentials, servicemanager
from spur.auth import KeyFileError
from spur.config import Config, ConfigError, load, refuse_open_address
from spurctld import logs
from spurctld.daemon import CannotStart, Daemon, Settings
from spurctld.store import Store, StoreError


def main() -> None:
    """Serve until SIGTERM."""
    options = _parse(sys.argv[1:])
    manager = servicemanager.from_environment(os.environ)
    try:
        config = load(options.config)
        settings = _settings(options, config, manager.notifier)
        logs.set_up(options.log_level)
        store = Store(settings.state_dir)
        asyncio.run(_run(settings, store))
    except (ConfigError, KeyFileError, CannotStart, StoreError) as error:
        sys.exit(f"spurctld: error: {error}")


async def _run(settings: Settings, store: Store) -> None:
    await Daemon(settings, store).run()


def _settings(options: argparse.Namespace, config: Config, notifier: servicemanager.Notifier) -> Settings:
    listen = options.listen or config.controller.listen
    refuse_open_address(config, "--listen", listen)
    state = Path(os.path.abspath(options.state_dir or config.controller.state_dir))
    runtime = options.runtime_dir or (state / "run" if options.state_dir else config.controller.runtime_dir)
    return Settings(
        config=config,
        credentials=credentials.credentials(config),
        listen=listen,
        state_dir=state,
        runtime_dir=Path(os.path.abspath(runtime)),
        notifier=notifier,
    )


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="spurctld", description="The controller: takes jobs and has them run.")
    parser.add_argument("-f", dest="config", type=Path, metavar="CONF", help="configuration file")
    parser.add_argument("--listen", type=_address, metavar="HOST:PORT", help="address to serve at; port 0: any")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="where the database is kept")
    parser.add_argument("--runtime-dir", type=Path, metavar="DIR", help="where the local socket is made")
    parser.add_argument("--log-level", choices=sorted(logs.LEVELS), default="info")
    parser.add_argument("-D", action="store_true", help="stay in the foreground, as it always does")
    return parser.parse_args(arguments)


def _address(text: str) -> str:
    try:
        addresses.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


if __name__ == "__main__":
    main()
