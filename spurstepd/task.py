"""The task of a run: the batch script, as the user, in the user's place, with the user's environment."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from spurstepd import spawn
from spurstepd.launchplan import LaunchPlan
from spurstepd.spawn import SetupError, Step

FALLBACK_DIRECTORY = "/tmp"


@dataclass(slots=True)
class TaskSetup:
    """The steps of one task's child. It lives in that child alone, hence its mutable state."""

    plan: LaunchPlan
    affinity: frozenset[int] | None
    as_root: Callable[[], None]  # plugins, before the identity changes
    as_user: Callable[[], None]  # plugins, after it
    environment: dict[str, str]  # of the task; plugins and task prologs change it
    notes: list[str] = field(default_factory=list)  # for the job's stderr, once that is open

    def steps(self) -> list[Step]:
        """In the order in which they must happen: what needs root, then the identity, then what the user may do."""
        plan = self.plan
        return [
            Step("session", os.setsid),
            Step("signals", spawn.reset_signals),
            Step("out-of-memory score", spawn.reset_oom_score),
            Step("processors", self._set_affinity),
            Step("plugins", self.as_root),
            Step("limits", lambda: spawn.set_limits(plan.limits)),
            Step("identity", lambda: spawn.become(plan.uid, plan.gid, plan.groups)),
            Step("umask", lambda: void(os.umask(plan.umask))),
            Step("working directory", self._change_directory),
            Step("temporary directory", self._make_tmpdir),
            Step("input and output", self._open_files),
            Step("pid of the task", self._tell_pid),
            Step("user plugins", self.as_user),
            Step("task prolog", self._run_task_prologs),
        ]

    def execute(self) -> None:
        """Become the task. The text of a refusal is Slurm's; its exit code is the errno."""
        path = os.fsencode(self.plan.argv[0])
        try:
            os.execve(path, [os.fsencode(one) for one in self.plan.argv], self.environment)
        except OSError as error:
            number = error.errno or errno.ENOEXEC
            sentence = f"execve(): {self.plan.argv[0]}: {os.strerror(number)}"
            if number == errno.ENOENT and os.path.exists(path):
                sentence = f"execve(): bad interpreter({_interpreter(path)}): {os.strerror(number)}"
            self._say(sentence)
            raise SetupError(sentence, number) from None

    def _set_affinity(self) -> None:
        if self.affinity:
            os.sched_setaffinity(0, self.affinity)

    def _change_directory(self) -> None:
        try:
            os.chdir(os.fsencode(self.plan.cwd))
        except OSError as error:
            os.chdir(FALLBACK_DIRECTORY)
            self.notes.append(
                f"couldn't chdir to `{self.plan.cwd}': {error.strerror}: going to {FALLBACK_DIRECTORY} instead"
            )

    def _make_tmpdir(self) -> None:
        """The job's TMPDIR, where it names one that is not there; /tmp where that cannot be had, as Slurm does."""
        wanted = self.environment.get("TMPDIR")
        if not wanted or os.path.isdir(os.fsencode(wanted)):
            return
        try:
            os.mkdir(os.fsencode(wanted), 0o700)
        except OSError as error:
            self.environment["TMPDIR"] = FALLBACK_DIRECTORY
            self.notes.append(f"Unable to create TMPDIR [{wanted}]: {error.strerror}")
            self.notes.append(f"Setting TMPDIR to {FALLBACK_DIRECTORY}")

    def _tell_pid(self) -> None:
        self.environment["SLURM_TASK_PID"] = str(os.getpid())

    def _open_files(self) -> None:
        """stdin, stdout, stderr, opened as the user. O_APPEND: what two writers write is never overwritten."""
        plan = self.plan
        write = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if plan.append else os.O_TRUNC)
        source = _open("stdin", plan.stdin, os.O_RDONLY)
        output = _open("stdout", plan.stdout, write)
        errors = output if plan.stderr == plan.stdout else _open("stderr", plan.stderr, write)
        for number, fd in enumerate((source, output, errors)):
            os.dup2(fd, number, inheritable=True)
        for note in self.notes:
            self._say(note)

    def _say(self, note: str) -> None:
        try:
            os.write(2, f"spurstepd: error: {note}\n".encode(errors="surrogateescape"))
        except OSError:
            pass  # the job's own output is full or closed; the note is in the log as well

    def _run_task_prologs(self) -> None:
        """Each program's `export NAME=VALUE`, `unset NAME` and `print TEXT` lines are taken, as Slurm does."""
        for program in self.plan.hooks.task_prolog:
            output, status = _capture(program, self.environment)
            for line in output.splitlines():
                self._take_line(line)
            if status != 0:
                raise SetupError(f"task prolog {program} failed with status {status}")

    def _take_line(self, line: bytes) -> None:
        word, _, rest = line.partition(b" ")
        name, found, value = rest.partition(b"=")
        if word == b"export" and found:
            self.environment[os.fsdecode(name.strip())] = os.fsdecode(value)
        elif word == b"unset":
            self.environment.pop(os.fsdecode(rest.strip()), None)
        elif word == b"print":
            os.write(1, rest + b"\n")


def void(_: object) -> None:
    """For a step whose system call gives something back."""


def _open(name: str, path: str, flags: int) -> int:
    """A descriptor above the standard ones, so that none of them is overwritten before its turn."""
    try:
        fd = os.open(os.fsencode(path), flags | os.O_CLOEXEC | os.O_NOCTTY, 0o666)
    except OSError as error:
        raise SetupError(f"Could not open {name} file {path}: {error.strerror}") from None
    return fd


def _interpreter(path: bytes) -> str:
    with open(path, "rb") as script:
        first = script.readline(256)
    words = first[2:].split() if first.startswith(b"#!") else []
    return os.fsdecode(words[0]) if words else os.fsdecode(path)


def _capture(program: str, environment: dict[str, str]) -> tuple[bytes, int]:
    """The output and the exit code of `program`; a death by signal gives 128 and its number."""
    read, write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(write, 1, inheritable=True)
            os.execve(program, [program], environment)
        except OSError:
            os._exit(127)
    os.close(write)
    output = b""
    while part := os.read(read, 65536):
        output += part
    os.close(read)
    status = os.waitpid(pid, 0)[1]
    return output, os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
