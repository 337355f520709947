"""`spurstepd`: the program file of launcher and supervisors. spurd starts it; nobody else needs to."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from importlib.metadata import version
from pathlib import Path

from spurstepd import cgroups, plugins, varlink
from spurstepd.eventlog import EventLog
from spurstepd.launcher import Launcher
from spurstepd.rundir import NodeDirs
from spurstepd.supervisor import Surroundings


def main() -> None:
    """Be the launcher of the agent whose directories are given, until nobody needs it."""
    options = _parse(sys.argv[1:])
    dirs = NodeDirs(options.state_dir, options.runtime_dir)
    log = EventLog(dirs.log, node=options.node)
    try:
        around = Surroundings(
            dirs=dirs,
            node=options.node,
            hierarchy=_find_hierarchy(options),
            plugins=plugins.load(options.plugin),
            interface=_interface("org.spur.Run"),
            version=version("spur"),
        )
        listener = varlink.listen(dirs.launchers / f"{os.getpid()}.sock", 0o600)
    except (OSError, plugins.UnknownPlugin, cgroups.ContainmentError) as error:
        log.event("launcher_not_started", error=str(error))
        sys.exit(f"spurstepd: error: {error}")
    Launcher(around, listener, _interface("org.spur.Launcher"), log).serve()
    (dirs.launchers / f"{os.getpid()}.sock").unlink(missing_ok=True)
    cgroups.probe.withdraw(around.hierarchy)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="spurstepd", description="Launcher of Spur's supervisors, started by spurd.")
    parser.add_argument("--state-dir", type=Path, required=True, metavar="DIR")
    parser.add_argument("--runtime-dir", type=Path, required=True, metavar="DIR")
    parser.add_argument("--node", required=True, metavar="NAME")
    parser.add_argument("--cgroup", choices=("auto", "required", "none"), default="auto")
    parser.add_argument("--plugin", action="append", default=[], metavar="NAME")
    return parser.parse_args(arguments)


def _find_hierarchy(options: argparse.Namespace) -> cgroups.Hierarchy:
    """What contains runs here. The key keeps the agents of one machine apart and stays the same over restarts."""
    key = hashlib.sha256(f"{options.state_dir.resolve()}\0{options.node}".encode()).hexdigest()[:12]
    if options.cgroup == "none":
        return cgroups.Hierarchy(key=key)
    return cgroups.probe.find(key)


def _interface(name: str) -> str:
    return Path(__file__).with_name(f"{name}.varlink").read_text()


if __name__ == "__main__":
    main()
