"""scontrol: show what the controller knows in full, and change it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from spur import __version__, controljobs, controlshow, nodeupdate
from spur.client import ControllerError
from spur.console import VERSION_LINE, Console, Environ, Failure, conclude, help_text, read_options, run
from spur.controlsession import Session
from spur.nodeupdate import UpdateError
from spur.options import Option, Support, Takes

USAGE = "Usage: scontrol [OPTIONS...] [KEYWORD [ARGUMENTS...]]"
DESCRIPTION = """\
Keywords:
  show job|node|partition|config [NAME]      what there is, in full
  show hostnames|hostlist|hostlistsorted X   lists of hosts, unfolded and folded
  hold|release|requeue|requeuehold JOBS      change waiting or running jobs
  suspend|resume JOBS                        stop jobs and let them go on
  update NodeName=... State=... Reason=...   take nodes out of use and back
  write batch_script JOB [FILE|-]            a copy of a job's script
  completing                                 jobs that have ended and are not gone yet
  ping                                       whether the controller answers
  version, help, quit
Without a keyword, keywords are read from the standard input."""

OPTIONS = (
    Option("all", letter="a", help="hidden partitions too", support=Support.HARMLESS),
    Option("clusters", Takes.VALUE, "M", ("cluster",), metavar="NAME", support=Support.REFUSED),
    Option("details", letter="d", help="more of each record"),
    Option("federation", help="jobs of the federation", support=Support.HARMLESS),
    Option("future", letter="F", help="nodes that are yet to come", support=Support.HARMLESS),
    Option("help", letter="h", help="show this help"),
    Option("hide", help="leave out hidden partitions", support=Support.HARMLESS),
    Option("json", support=Support.REFUSED),
    Option("local", help="jobs of this cluster", support=Support.HARMLESS),
    Option("oneliner", letter="o", help="one line for each record"),
    Option("quiet", letter="Q", help="no messages"),
    Option("sibling", help="jobs of sibling clusters", support=Support.HARMLESS),
    Option("uid", Takes.VALUE, "u", metavar="USER", support=Support.REFUSED),
    Option("usage", help="show this help"),
    Option("verbose", letter="v", help="tell more", support=Support.HARMLESS),
    Option("version", letter="V", help="show the version"),
    Option("yaml", support=Support.REFUSED),
)


def main() -> None:
    sys.exit(run("scontrol", scontrol))


def scontrol(words: Sequence[str], environ: Environ, console: Console) -> int:
    given, rest = read_options(console, words, OPTIONS, permute=True, usage=USAGE, description=DESCRIPTION)
    names = {one.name for one in given}
    session = Session(console, environ, "details" in names, "oneliner" in names, "quiet" in names)
    try:
        return execute(session, rest) if rest else converse(session)
    finally:
        session.close()


def converse(session: Session) -> int:
    """Carry out the lines of the standard input. The exit code is 1 if any of them failed."""
    codes = [0]
    while not session.over:
        session.console.write("scontrol: ")
        session.console.stdout.flush()
        line = session.console.stdin.readline().decode(errors="surrogateescape")
        if not sys.stdin.isatty():
            session.console.print(line.rstrip("\n"))
        if not line:
            break
        command = partial(_execute_line, session)
        codes.append(conclude(command, (line,), session.environ, session.console))
    return max(codes)


def _execute_line(session: Session, lines: Sequence[str], _environ: Environ, _console: Console) -> int:
    import shlex  # only a conversation needs it

    try:
        words = shlex.split(lines[0])
    except ValueError as error:
        raise Failure(str(error)) from None
    return execute(session, words) if words else 0


@dataclass(frozen=True, slots=True)
class Keyword:
    """A word that scontrol acts on. It may be shortened to `least` letters; None for `most` arguments: no limit."""

    name: str
    act: Callable[[Session, Sequence[str]], int]
    least: int = 3
    fewest: int = 0
    most: int | None = 0


def execute(session: Session, words: Sequence[str]) -> int:
    """Carry out one keyword with its arguments; the exit code."""
    word, *arguments = words
    lowered = word.lower()
    for keyword in KEYWORDS:
        if keyword.name.startswith(lowered) and len(lowered) >= min(keyword.least, len(keyword.name)):
            break
    else:
        if lowered in UNSUPPORTED:
            raise Failure(f"{lowered} is not supported by Spur {__version__}")
        raise Failure(f"invalid keyword: {word}", plain=True)
    if len(arguments) < keyword.fewest:
        raise Failure(f"too few arguments for keyword:{word}", plain=True)
    if keyword.most is not None and len(arguments) > keyword.most:
        raise Failure(f"too many arguments for keyword:{word}", plain=True)
    return keyword.act(session, arguments)


def update(session: Session, arguments: Sequence[str]) -> int:
    if not arguments:
        raise Failure("too few arguments for update keyword", plain=True)
    try:
        request = nodeupdate.read(arguments)
    except UpdateError as error:
        raise Failure(*error.lines, plain=True) from None
    from spur.pb.spurctld_pb2 import UpdateNodesRequest

    try:
        message = UpdateNodesRequest(node_list=request.nodes, state=request.state, reason=request.reason)
        session.controller.call(session.controller.stub.UpdateNodes, message)
    except ControllerError as error:
        return session.tell(error, f"slurm_update error: {error.text}")
    return 0


def version(session: Session, arguments: Sequence[str]) -> int:
    session.console.print(VERSION_LINE)
    if arguments:
        raise Failure("too many arguments for version keyword", plain=True)
    return 0


def show_help(session: Session, _arguments: Sequence[str]) -> int:
    session.console.write(help_text(USAGE, DESCRIPTION, OPTIONS))
    return 0


def leave(session: Session, _arguments: Sequence[str]) -> int:
    session.over = True
    return 0


KEYWORDS = (
    Keyword("completing", controlshow.completing, 2),
    Keyword("exit", leave, 2),
    Keyword("help", show_help, 2),
    Keyword("hold", controljobs.hold, 4, 1, None),
    Keyword("ping", controlshow.ping),
    Keyword("quit", leave, 4),
    Keyword("release", controljobs.release, 3, 1, None),
    Keyword("requeue", controljobs.requeue, 4, 1, None),
    Keyword("requeuehold", controljobs.requeue_hold, 11, 1, None),
    Keyword("resume", controljobs.resume, 3, 1, None),
    Keyword("show", controlshow.show, 3, 1, 2),
    Keyword("suspend", controljobs.suspend, 2, 1, None),
    Keyword("update", update, 1, 0, None),
    Keyword("version", version, 4, 0, None),
    Keyword("write", controlshow.write, 5, 1, 3),
)
UNSUPPORTED = frozenset(
    {
        "abort", "all", "cancel_reboot", "cluster", "create", "delete", "details", "errnumstr", "fsdampeningfactor",
        "hide", "listjobs", "listpids", "liststeps", "notify", "oneliner", "pidinfo", "quiet", "reboot", "reconfigure",
        "schedloglevel", "setdebug", "setdebugflags", "shutdown", "takeover", "token", "top", "uhold", "verbose",
        "wait_job",
    }
)  # fmt: skip
