"""`spurstepd`: the program file of launcher and supervisors. spurd starts it; nobody else needs to.

spurstepd --state-dir DIR --runtime-dir DIR --node NAME [--cgroup auto|required|none] [--plugin NAME]...
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from spurstepd import __version__, cgroups, plugins, varlink
from spurstepd.eventlog import EventLog
from spurstepd.launcher import Launcher
from spurstepd.rundir import NodeDirs, agent_key
from spurstepd.supervisor import Surroundings

_NEEDED = ("--state-dir", "--runtime-dir", "--node")
_KNOWN = (*_NEEDED, "--cgroup", "--plugin")


def main() -> None:
    """Be the launcher of the agent whose directories are given, until nobody needs it."""
    options = _parse(sys.argv[1:])
    node = options["--node"][-1]
    dirs = NodeDirs(Path(options["--state-dir"][-1]), Path(options["--runtime-dir"][-1]))
    log = EventLog(dirs.log, node=node)
    try:
        around = Surroundings(
            dirs=dirs,
            node=node,
            hierarchy=_find_hierarchy(options.get("--cgroup", ["auto"])[-1], agent_key(dirs.state, node)),
            plugins=plugins.load(options.get("--plugin", [])),
            interface=_interface("org.spur.Run"),
            version=__version__,
        )
        _sweep(around)
        listener = varlink.listen(dirs.launchers / f"{os.getpid()}.sock", 0o600)
    except (OSError, plugins.UnknownPlugin, cgroups.ContainmentError) as error:
        log.event("launcher_not_started", error=str(error))
        sys.exit(f"spurstepd: error: {error}")
    Launcher(around, listener, _interface("org.spur.Launcher"), log).serve()
    (dirs.launchers / f"{os.getpid()}.sock").unlink(missing_ok=True)
    cgroups.probe.withdraw(around.hierarchy)


def _parse(arguments: list[str]) -> dict[str, list[str]]:
    """The values of each option. By hand: argparse would cost every supervisor half a megabyte."""
    options: dict[str, list[str]] = {}
    words = iter(arguments)
    for word in words:
        value = next(words, None)
        if word not in _KNOWN or value is None:
            sys.exit(f"spurstepd: error: {word}: no such option, or its value is missing\n{__doc__}")
        options.setdefault(word, []).append(value)
    for name in _NEEDED:
        if name not in options:
            sys.exit(f"spurstepd: error: {name} is missing\n{__doc__}")
    return options


def _find_hierarchy(mode: str, key: str) -> cgroups.Hierarchy:
    """What contains runs here; "required" is for each run to insist on."""
    return cgroups.Hierarchy(key=key) if mode == "none" else cgroups.probe.find(key)


def _sweep(around: Surroundings) -> None:
    """End what stands in our cgroups without a record: nobody else will ever look for it."""
    for run, place in cgroups.standing(around.hierarchy).items():
        if not around.dirs.run(run).path.exists():
            place.kill_all()
            place.remove(wait_s=1.0)
        place.close()


def _interface(name: str) -> str:
    return Path(__file__).with_name(f"{name}.varlink").read_text()


if __name__ == "__main__":
    main()
