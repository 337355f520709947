"""`spur COMMAND`: what has no counterpart among Slurm's commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from spur.commands import doctor
from spur.console import Command, Console, Environ, Failure, run

COMMANDS: dict[str, tuple[Command, str]] = {
    "doctor": (doctor.command, "check the set-up of this node"),
}


def command(words: Sequence[str], environ: Environ, console: Console) -> int:
    """Do what the first word says with the others."""
    match list(words):
        case [] | ["-h" | "--help"]:
            console.print("Usage: spur COMMAND [OPTIONS]\n")
            for name, (_, does) in COMMANDS.items():
                console.print(f"  {name:<10} {does}")
            return 0
        case [name, *rest] if name in COMMANDS:
            return COMMANDS[name][0](rest, environ, console)
    raise Failure(f"there is no command {words[0]}; spur --help lists them")


def main() -> None:
    """The entry point."""
    sys.exit(run("spur", command))
