"""Named places where a test can make this process die, stop or fail.

Off unless SPUR_FAULTS_DIR was set when the process started: then `point(name)` looks for a file `name` there and does
what it says. The file is taken away first, so that each order is carried out once, by one process.

    kill            SIGKILL to oneself
    stop            SIGSTOP to oneself
    wait            write NAME.reached (the pid), then wait until NAME.go exists
    delay SECONDS
    fail ERRNO      raise OSError(ERRNO), as a write or a fork could: "fail ENOSPC"

The names of a run's life are in docs/design/fault-points.md.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path

_directory: Path | None = None


def arm(directory: str | None) -> None:
    """Look for orders in `directory` from now on; None: never."""
    global _directory
    _directory = Path(directory) if directory else None


arm(os.environ.get("SPUR_FAULTS_DIR"))


def point(name: str) -> None:
    """A place called `name`. Free where nothing is armed."""
    if _directory is not None:
        _carry_out(_directory, name)


def _carry_out(directory: Path, name: str) -> None:
    taken = directory / f"{name}.taken.{os.getpid()}"
    try:
        os.rename(directory / name, taken)
    except FileNotFoundError:
        return
    order, _, argument = taken.read_text().strip().partition(" ")
    taken.unlink()
    match order:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "wait":
            _wait(directory, name)
        case "delay":
            time.sleep(float(argument))
        case "fail":
            number = getattr(errno, argument)
            raise OSError(number, os.strerror(number), name)
        case _:
            raise ValueError(f"{directory / name}: {order!r} is no order")


def _wait(directory: Path, name: str) -> None:
    told = directory / f"{name}.reached.new"
    told.write_text(str(os.getpid()))
    told.rename(directory / f"{name}.reached")
    while not (directory / f"{name}.go").exists():
        time.sleep(0.005)
