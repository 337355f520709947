"""What the commands have in common at the terminal: how they print, fail and end.

A command is a function of its words, its environment and a Console; it returns its exit code, and raises Failure where
it cannot go on. `run` is the one place that touches the process: signals, the standard streams, the exit code.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from spur import __version__
from spur.options import Given, OptionError, Support, Table, parse

SLURM_VERSION = "22.05.8"  # whose commands these are like; clients look for it behind the word "slurm"
VERSION_LINE = f"slurm {SLURM_VERSION} (spur {__version__})"


class Failure(Exception):
    """A command cannot go on. Each of `lines` becomes `NAME: error: LINE`, or stands as it is where `plain`."""

    def __init__(self, *lines: str, code: int = 1, plain: bool = False) -> None:
        super().__init__(*lines)
        self.lines, self.code, self.plain = lines, code, plain


class Done(Exception):
    """A command has done what it was asked before it came to its work: it printed its help or version."""


@dataclass(frozen=True, slots=True)
class Console:
    """Where a command of the name `name` prints. Text that came from bytes goes out as these bytes."""

    name: str
    stdout: BinaryIO = field(default_factory=lambda: sys.stdout.buffer)
    stderr: BinaryIO = field(default_factory=lambda: sys.stderr.buffer)
    stdin: BinaryIO = field(default_factory=lambda: sys.stdin.buffer)

    def print(self, text: str = "") -> None:
        self.write(text + "\n")

    def write(self, text: str) -> None:
        self.stdout.write(os.fsencode(text))

    def complain(self, line: str) -> None:
        """An error: `NAME: error: LINE`."""
        self.say(f"{self.name}: error: {line}")

    def say(self, line: str) -> None:
        """A line on the error stream, after what was printed before it."""
        with suppress(OSError):  # the end of the command will find it as well
            self.stdout.flush()
        self.stderr.write(os.fsencode(line + "\n"))
        self.stderr.flush()


Environ = Mapping[str, str]
Command = Callable[[Sequence[str], Environ, Console], int]


def run(name: str, command: Command) -> int:
    """The exit code of `command` in this process. Signals end it as they end a program without handlers."""
    for number in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    console = Console(name)
    try:
        code = conclude(command, sys.argv[1:], dict(os.environ), console)
        console.stdout.flush()
    except OSError as error:
        os.write(2, f"{name}: error: {error.strerror or error}\n".encode())
        os._exit(1)  # what is left in the buffer would fail again at the interpreter's end, and be told again
    return code


def conclude(command: Command, words: Sequence[str], environ: Environ, console: Console) -> int:
    """Run `command` to its end, whichever that is."""
    try:
        return command(words, environ, console)
    except Done:
        return 0
    except Failure as failure:
        for line in failure.lines:
            (console.say if failure.plain else console.complain)(line)
        return failure.code


def read_options(
    console: Console,
    words: Sequence[str],
    table: Table,
    *,
    permute: bool,
    usage: str,
    description: str = "",
    bad_option_code: int = 1,
) -> tuple[list[Given], list[str]]:
    """What `words` say, after --help, --usage and --version have been answered (Done) and errors been told (Failure).

    `bad_option_code` is the exit code for words that do not fit the table, where Slurm's commands differ.
    """
    try:
        given, rest = parse(words, table, permute=permute)
    except OptionError as error:
        hint = f'Try "{console.name} --help" for more information'
        raise Failure(f"{console.name}: {error}", hint, code=bad_option_code, plain=True) from None
    for one in given:
        match one.name:
            case "help":
                console.write(help_text(usage, description, table))
                raise Done
            case "usage":
                console.print(usage)
                raise Done
            case "version":
                console.print(VERSION_LINE)
                raise Done
            case _ if one.option.support is Support.REFUSED:
                raise refusal(one)
    return given, rest


def refusal(one: Given) -> Failure:
    """The failure of a command that was given an option that Slurm has and Spur does not."""
    return Failure(f"--{one.name} is not supported by Spur {__version__}")


def help_text(usage: str, description: str, table: Table) -> str:
    """What --help prints: the options that Spur has, and below them those that it takes without effect."""
    lines = [usage, *([description] if description else []), ""]
    lines += _option_lines(table, Support.FULL)
    if harmless := _option_lines(table, Support.HARMLESS):
        lines += ["", "Accepted, without effect:", *harmless]
    return "\n".join(lines) + "\n"


def _option_lines(table: Table, support: Support) -> list[str]:
    lines = []
    for option in table:
        if option.support is not support:
            continue
        letter = f"-{option.letter}, " if option.letter else "    "
        argument = f"={option.metavar}" if option.metavar else ""
        lines.append(f"  {letter}{f'--{option.name}{argument}':<29} {option.help}".rstrip())
    return lines
