"""The launcher: a small process without threads that forks supervisors, and the witness of those that die.

spurd starts one and talks to it over its socket (org.spur.Launcher). It is a session of its own and a subreaper, and
lives as long as a connection that said Attach is open or a supervisor of its own lives; so it outlives its spurd. When
a supervisor dies, the leader of its run becomes the launcher's child: it reaps the true exit, keeps it, and forks a
successor on the same directory.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any, NoReturn

from spurstepd import faults, ledger, spawn, umbilical, varlink, waitstatus, witness
from spurstepd.eventlog import EventLog
from spurstepd.ids import RunId
from spurstepd.ledger import Exit, ExitSource, Process, Record
from spurstepd.manifest import ManifestUnreadable
from spurstepd.preload import lock_imports
from spurstepd.reactor import READ, Reactor
from spurstepd.slot import load_latest
from spurstepd.supervisor import LockHeld, Supervisor, Surroundings
from spurstepd.title import become_subreaper, set_title
from spurstepd.umbilical import Umbilical
from spurstepd.varlink import Call, Caller, Connection, Method, Refused, Values
from spurstepd.witness import Witness

SUCCESSION_S = (0.0, 0.1, 0.5, 2.0, 10.0, 30.0)
"""Before the first, second, ... successor in a row: one that dies at once must not be forked in a circle."""
_SETTLED_S = 60.0  # a supervisor that lived this long starts the row anew
_CRASHED = 70  # EX_SOFTWARE, sysexits.h
_LOCK_HELD = 75  # EX_TEMPFAIL


@dataclass(slots=True)
class Child:
    """A run whose supervisor is forked from here. `pid` 0: the last one is dead and a successor is due."""

    run: RunId
    pid: int = 0
    umbilical: Umbilical | None = None
    locked: bool = False
    done: bool = False
    refusal: str = ""
    started_at: float = 0.0
    successors: int = 0
    in_a_row: int = 0
    leader: Process | None = None
    witness: Witness | None = None
    kept: dict[str, int] = field(default_factory=dict)  # descriptors that must not die with a supervisor
    waiting: list[Connection] = field(default_factory=list)  # callers of Supervise


class Launcher:
    """The loop of the process."""

    def __init__(self, around: Surroundings, listener: socket.socket, interface: str, log: EventLog) -> None:
        self._around = around
        self._log = log
        self._children: dict[RunId, Child] = {}
        self._attached: set[int] = set()
        self._ever_attached = False
        self.reactor = Reactor()
        self._service = varlink.Service(
            self.reactor,
            listener,
            None,
            around.version,
            {"org.spur.Launcher": interface},
            {
                "org.spur.Launcher.Attach": Method(Caller.ROOT, self._attach),
                "org.spur.Launcher.Supervise": Method(Caller.ROOT, self._supervise),
                "org.spur.Launcher.ListChildren": Method(Caller.ROOT, lambda call: {"children": self._list()}),
            },
        )

    def serve(self) -> None:
        """Until nobody needs it any more."""
        set_title("spurstepd: launcher")
        become_subreaper()
        self.reactor.on_signals((signal.SIGCHLD,), self._reap)
        spawn.ignore_signals()
        self.reactor.after(_SETTLED_S, self._leave_unclaimed)
        lock_imports()
        gc.collect()
        gc.freeze()  # what is there now is shared with every fork, and must not be touched by a collection
        self._log.event("launcher_started")
        while not self._is_over():
            self.reactor.run_once()
        self._log.event("launcher_left")

    def _is_over(self) -> bool:
        return self._ever_attached and not self._attached and not self._children

    def _leave_unclaimed(self) -> None:
        """A spurd that died before it attached must not leave a launcher behind."""
        self._ever_attached = True

    # -- methods

    def _attach(self, call: Call) -> Values:
        connection = call.connection
        self._ever_attached = True
        if id(connection) not in self._attached:
            self._attached.add(id(connection))
            connection.on_close.append(lambda: self._attached.discard(id(connection)))
        return {"pid": os.getpid(), "version": self._around.version, "children": self._list()}

    def _list(self) -> list[dict[str, Any]]:
        return [
            {"job": c.run.job, "attempt": c.run.attempt, "pid": c.pid, "successors": c.successors}
            for c in self._children.values()
        ]

    def _supervise(self, call: Call) -> Values | None:
        try:
            run = RunId(call.integer("job"), call.integer("attempt"))
        except ValueError:
            raise varlink.invalid("job") from None
        leader_fd = call.take_fd("leader_fd")
        if not self._around.dirs.run(run).manifest.exists():
            raise Refused("org.spur.Launcher.NoSuchRun")
        child = self._children.get(run)
        if child is not None and child.pid:
            if not child.locked:
                child.waiting.append(call.connection)
                return None
            raise Refused("org.spur.Launcher.AlreadySupervised", pid=child.pid)
        if child is None:
            child = self._children[run] = Child(run)
        if leader_fd is not None:
            self._keep(child, "leader", leader_fd)
        self._take_testimony(child, call)
        child.waiting.append(call.connection)
        self._fork(child)
        return None

    def _take_testimony(self, child: Child, call: Call) -> None:
        """The caller, a subreaper too, reaped the leader itself: supervisor and launcher were dead."""
        pid, status = call.optional_integer("leader_pid"), call.optional_integer("leader_status")
        if pid is None or status is None:
            return
        try:
            leader = load_latest(self._around.dirs.run(child.run)).leader
        except ManifestUnreadable:
            return
        if leader is not None and leader.pid == pid:
            self._bear_witness(child, Witness(leader, Exit(ExitSource.WITNESS, status, time.time())))

    # -- forking

    def _fork(self, child: Child) -> None:
        mine, theirs = umbilical.pair()
        try:
            pid = os.fork()
        except OSError as error:
            for end in (mine, theirs):
                end.close()
            self._answer(child, Refused("org.spur.Launcher.Failed", reason=f"fork: {error.strerror}"))
            self._children.pop(child.run)
            return
        if pid == 0:
            mine.close()
            self._become_supervisor(child, theirs)
        theirs.close()
        child.pid, child.umbilical, child.locked, child.done = pid, mine, False, False
        child.started_at = time.monotonic()
        self.reactor.watch(mine.fileno(), READ, lambda _: self._hear(child))
        if child.witness is not None:
            mine.send({"witness": witness.encode(child.witness)})
        faults.point("supervisor-forked")

    def _become_supervisor(self, child: Child, end: Umbilical) -> NoReturn:
        """In the fork. It never returns into the launcher's loop, whatever happens."""
        code = _CRASHED
        log = self._log.bind(job=child.run.job, attempt=child.run.attempt)
        try:
            self._forget_everything(child)
            Supervisor(self._around, child.run, end, child.kept, log).serve()
            code = 0
        except LockHeld:
            end.send({"refused": "another supervisor holds the lock"})
            code = _LOCK_HELD
        except BaseException as error:  # the top of this process: say what happened, a successor goes on
            log.event("supervisor_crashed", error=repr(error), traceback=_traceback(error))
        finally:
            os._exit(code)

    def _forget_everything(self, child: Child) -> None:
        """The launcher's sockets, pipes and what it keeps for other runs are not this supervisor's."""
        self.reactor.close_after_fork()
        self._service.close()
        for other in self._children.values():
            if other.umbilical is not None:
                other.umbilical.close()
            if other is not child:
                for fd in other.kept.values():
                    os.close(fd)

    # -- what supervisors say

    def _hear(self, child: Child) -> None:
        while child.umbilical is not None:
            try:
                received = child.umbilical.receive()
            except BlockingIOError:
                return
            if received is None:
                self.reactor.forget(child.umbilical.fileno())
                child.umbilical.close()
                child.umbilical = None
                return
            self._take(child, *received)

    def _take(self, child: Child, message: dict[str, Any], fd: int | None) -> None:
        match message:
            case {"locked": True}:
                child.locked = True
                self._answer(child, {"pid": child.pid})
            case {"refused": str(why)}:
                child.refusal = why
            case {"leader": dict(values)} if fd is not None:
                child.leader = ledger.decode_process(Record(values, "leader"))
                child.witness = None  # of another, if of anybody
                self._keep(child, "leader", fd)
            case {"done": True}:
                child.done = True

    def _keep(self, child: Child, name: str, fd: int) -> None:
        old = child.kept.pop(name, None)
        if old is not None:
            os.close(old)
        child.kept[name] = fd

    def _answer(self, child: Child, reply: Values | Refused) -> None:
        for connection in child.waiting:
            if isinstance(reply, Refused):
                connection.refuse(reply)
            else:
                connection.reply(reply)
        child.waiting.clear()

    # -- reaping

    def _reap(self) -> None:
        """All that ended. What a supervisor said before it died is read first: the leader that it had is in it."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in list(self._children.values()):
                self._hear(child)
            self._place_exit(pid, status, used)

    def _place_exit(self, pid: int, status: int, used: Any) -> None:
        for child in list(self._children.values()):
            if child.pid == pid:
                self._supervisor_ended(child, status)
                return
            if child.leader is not None and child.leader.pid == pid:
                self._bear_witness(child, witness.reaped(child.leader, status, used, time.time()))
                return

    def _bear_witness(self, child: Child, seen: Witness) -> None:
        faults.point("witness-reaped")
        self._log.event("exit_witnessed", run=str(child.run), leader=seen.leader.pid, status=seen.exit.status)
        child.witness = seen
        try:
            witness.write(self._around.dirs.run(child.run), seen)
        except OSError as error:
            self._log.event("witness_not_written", run=str(child.run), error=str(error))  # it is kept in memory
        if child.umbilical is not None:
            child.umbilical.send({"witness": witness.encode(seen)})

    def _supervisor_ended(self, child: Child, status: int) -> None:
        if child.umbilical is not None:
            self._hear(child)
        child.pid = 0
        if child.done or child.refusal:
            self._forget(child)
            return
        self._answer(child, Refused("org.spur.Launcher.Failed", reason=f"it {waitstatus.sentence(status)}"))
        lived = time.monotonic() - child.started_at
        child.in_a_row = 0 if lived > _SETTLED_S else child.in_a_row
        pause = SUCCESSION_S[min(child.in_a_row, len(SUCCESSION_S) - 1)]
        child.in_a_row += 1
        self._log.event(
            "supervisor_died",
            run=str(child.run),
            how=waitstatus.sentence(status),
            lived_s=round(lived, 3),
            next_s=pause,
        )
        self.reactor.after(pause, lambda: self._succeed(child))

    def _succeed(self, child: Child) -> None:
        if self._children.get(child.run) is not child or child.pid:
            return  # spurd was quicker
        if not self._around.dirs.run(child.run).manifest.exists():
            self._forget(child)  # it died while it removed its own directory
            return
        child.successors += 1
        self._fork(child)

    def _forget(self, child: Child) -> None:
        self._answer(child, Refused("org.spur.Launcher.Failed", reason=child.refusal or "the run is over"))
        for fd in child.kept.values():
            os.close(fd)
        if child.umbilical is not None:
            self.reactor.forget(child.umbilical.fileno())
            child.umbilical.close()
        self._children.pop(child.run, None)


def _traceback(error: BaseException) -> list[str]:
    """The frames of `error` without their source lines, whose files may be gone."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append(f"{os.path.basename(code.co_filename)}:{trace.tb_lineno} {code.co_name}")
        trace = trace.tb_next
    return frames
