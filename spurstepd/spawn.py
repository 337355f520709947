"""Starting processes: one fork, a plan of named steps in the child, an exec, and the step that failed by its name.

The plan is a value: what a child is going to do can be read before it does it. A child inherits nothing but what its
plan gives it. Between fork and exec it holds no descriptor of the supervisor's but its gate and its error pipe, so
that it keeps neither a lock nor a socket alive.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spurstepd import faults
from spurstepd.pidfd import send_signal
from spurstepd.reactor import Reactor

_LEFT_ALONE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)
"""What launcher and supervisors ignore: they end when nobody needs them any more."""

_ORDERS_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_OOM_SCORE = "/proc/self/oom_score_adj"

_IGNORED = {number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN}
"""What was ignored when the launcher started, by Python (SIGPIPE, SIGXFSZ) or by who started it."""

SETUP_FAILED = 1
"""Exit code where a step before the exec failed, as Slurm's: an output file that cannot be opened gives 1:0."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a child does before its exec."""

    name: str
    act: Callable[[], None]


class SetupError(Exception):
    """A step's refusal in a sentence of its own, and the exit code that says so without words."""

    def __init__(self, sentence: str, code: int = SETUP_FAILED) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(slots=True)
class Child:
    """A process that was forked. It waits at the gate until `release`; `errors` tells of a failed step, then ends."""

    pid: int
    pidfd: int
    gate: int
    errors: int

    def release(self) -> None:
        """Open the gate. A child that has died meanwhile is found by its pidfd."""
        try:
            os.write(self.gate, b"1")
        except BrokenPipeError:
            pass
        os.close(self.gate)

    def abandon(self) -> None:
        """Kill a child that is still at the gate, reap it, and let go of it."""
        send_signal(self.pidfd, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        for fd in (self.pidfd, self.gate, self.errors):
            os.close(fd)

    def read_error(self) -> str:
        """The sentence of the step that failed, "" where the exec was reached. To be called at the end of `errors`."""
        data = b""
        while part := os.read(self.errors, 4096):
            data += part
        os.close(self.errors)
        return str(json.loads(data)["error"]) if data else ""


def fork_child(
    reactor: Reactor,
    enter: Callable[[], None],
    steps: Sequence[Step],
    execute: Callable[[], None],
    go_on_without_parent: Callable[[], bool],
) -> Child:
    """Fork a child that enters its cgroup, waits at the gate, takes `steps` and ends in `execute`.

    A parent that dies before it opened the gate leaves the decision to `go_on_without_parent`, which reads the ledger:
    what is recorded there as started is started, whoever is left.
    """
    gate_out, gate_in = os.pipe2(os.O_CLOEXEC)
    errors_out, errors_in = os.pipe2(os.O_CLOEXEC)
    # What we ignore, a child still ignores until its steps are taken: an order to end that comes meanwhile must wait.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ORDERS_TO_END)
    try:
        pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    if pid == 0:
        try:
            reactor.close_after_fork()
            enter()
            close_all_but({0, 1, 2, gate_out, errors_in})
            if not os.read(gate_out, 1) and not go_on_without_parent():
                os._exit(0)
            os.close(gate_out)
            _run(steps, execute, errors_in)
        except BaseException as error:  # whatever it is, this process must not go on as a second supervisor
            _tell(errors_in, f"{type(error).__name__}: {error}")
        finally:
            os._exit(SETUP_FAILED)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(gate_out)
    os.close(errors_in)
    return Child(pid, os.pidfd_open(pid), gate_in, errors_out)


def _run(steps: Sequence[Step], execute: Callable[[], None], errors: int) -> None:
    for step in [*steps, Step("exec", execute)]:
        faults.point(f"child-{step.name.replace(' ', '-')}")
        try:
            step.act()
        except SetupError as error:
            _fail(errors, str(error), error.code)
        except OSError as error:
            _fail(errors, f"{step.name}: {error.strerror or error}", SETUP_FAILED)


def _fail(errors: int, sentence: str, code: int) -> None:
    _tell(errors, sentence)
    os._exit(code)


def _tell(errors: int, sentence: str) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        os.write(errors, json.dumps({"error": sentence}).encode())
    except OSError:
        pass  # nobody is left to be told; the exit code says it too


def close_all_but(kept: set[int]) -> None:
    """Close every descriptor but `kept`."""
    last = max(kept)
    for fd in range(last):
        if fd not in kept:
            try:
                os.close(fd)
            except OSError as error:
                if error.errno != errno.EBADF:
                    raise
    os.closerange(last + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def ignore_signals() -> None:
    """For launcher and supervisors: a signal to their process group or service does not end them."""
    for number in _LEFT_ALONE:
        signal.signal(number, signal.SIG_IGN)


def reset_signals() -> None:
    """Every signal at its default and unblocked. An exec resets those with a handler, and keeps what is ignored."""
    for number in _IGNORED.union(_LEFT_ALONE):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def reset_oom_score() -> None:
    """Our own -999 must not become the job's, proc_pid_oom_score_adj(5). Raising it needs no privilege."""
    fd = os.open(_OOM_SCORE, os.O_RDWR | os.O_CLOEXEC)
    if int(os.read(fd, 16)) < 0:
        os.write(fd, b"0")
    os.close(fd)


def shield_from_oom() -> bool:
    """Make the kernel take others first, as far as it can be had: -999 and not -1000, since an unkillable process in a
    full memory cgroup would spin. False: this needs CAP_SYS_RESOURCE, which not every root has."""
    fd = os.open(_OOM_SCORE, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"-999")
    except PermissionError:
        return False
    finally:
        os.close(fd)
    return True


def become(uid: int, gid: int, groups: Sequence[int]) -> None:
    """Give up root for good: real, effective and saved ids."""
    if os.geteuid() != 0:
        if uid != os.geteuid():
            raise SetupError(f"uid {uid} cannot be taken on by uid {os.geteuid()}")
        return
    os.setgroups(list(groups))
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def set_limits(limits: Sequence[tuple[str, int, int]]) -> None:
    """setrlimit(2) for each (name, soft, hard); a limit that this system does not have is passed over."""
    for name, soft, hard in limits:
        number = getattr(resource, f"RLIMIT_{name}", None)
        if number is not None:
            resource.setrlimit(number, (soft, hard))
