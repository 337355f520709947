"""What the supervisor answers on its socket, org.spur.Run."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spurstepd import ledger as ledgers
from spurstepd import pidfd, waitstatus
from spurstepd.duties import phase
from spurstepd.ledger import SCHEMA, Duty, Exit, Manifest, Process, Progress, Verdict, VerdictKind
from spurstepd.varlink import Call, Caller, Connection, Handler, Method, Refused, Values, invalid

if TYPE_CHECKING:
    from spurstepd.supervisor import Supervisor

_ANSWERS = ("recorded", "already_recorded", "stale_attempt", "unknown_job")
_SCOPES = ("batch", "full", "steps")


class Api:
    """The methods, each a thin layer over the supervisor, and the peers that want to hear of changes."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._subscribers: list[Connection] = []
        self._told = ""

    def methods(self) -> dict[str, Method]:
        anybody: dict[str, Handler] = {
            "Hello": self._hello,
            "GetState": lambda call: {"state": self.state()},
            "ListPids": lambda call: {"pids": self._supervisor.place.pids()},
            "HasPid": lambda call: {"member": call.integer("pid") in self._supervisor.place.pids()},
            "Subscribe": self._subscribe,
        }
        owner: dict[str, Handler] = {
            "GetUsage": lambda call: {"usage": ledgers.encode_usage(self._supervisor.usage_now())},
            "Signal": self._signal,
            "Terminate": self._terminate,
        }
        root: dict[str, Handler] = {
            "Start": self._start,
            "Suspend": self._suspend,
            "Resume": self._resume,
            "Acknowledge": self._acknowledge,
            "DrainNoted": self._drain_noted,
            "Release": self._release,
        }
        classes = ((Caller.ANYBODY, anybody), (Caller.OWNER, owner), (Caller.ROOT, root))
        return {f"org.spur.Run.{name}": Method(needs, do) for needs, group in classes for name, do in group.items()}

    # -- anybody

    def _hello(self, call: Call) -> Values:
        supervisor = self._supervisor
        return {
            "version": supervisor.around.version,
            "schema": SCHEMA,
            "pid": os.getpid(),
            "job": supervisor.run.job,
            "attempt": supervisor.run.attempt,
            "nonce": supervisor.ledger.value.nonce if call.connection.caller is Caller.ROOT else None,
        }

    def state(self) -> dict[str, Any]:
        """The value of the type State."""
        ledger = self._supervisor.ledger.value
        return {
            "job": ledger.run.job,
            "attempt": ledger.run.attempt,
            "phase": phase(ledger),
            "uid": ledger.uid,
            "suspended": ledger.suspended,
            "supervisor": _process(ledger.supervisor),
            "leader": _process(ledger.leader),
            "verdict": ledgers.encode_verdict(ledger.verdict),
            "exit": _exit(ledger.exit),
            "obligations": [
                {"duty": duty.value, "progress": one.progress.value, "since": one.since, "detail": one.detail}
                for duty, one in ledger.obligations.items()
            ],
            "drain": ledger.drain,
            "waiting_for": self._waiting_for(ledger),
            "drain_noted": ledger.drain_noted,
            "requeue_held": ledger.requeue_held,
        }

    def _waiting_for(self, ledger: Manifest) -> str | None:
        if not self._supervisor.ledger.stored:
            return "room on the disk for its ledger"
        if self._supervisor.ending.stuck_on:
            return f"unkillable: {self._supervisor.ending.stuck_on}"
        for duty, one in ledger.obligations.items():
            if not one.progress.settled:
                return f"{duty.value} {one.progress.value}"
        return None

    def _subscribe(self, call: Call) -> Values | None:
        if not call.more:
            return {"state": self.state()}
        self._subscribers.append(call.connection)
        call.connection.on_close.append(lambda: self._subscribers.remove(call.connection))
        state = self.state()
        self._told = repr(state)
        call.connection.reply({"state": state}, continues=True)
        return None

    def publish(self) -> None:
        """Tell the subscribers, if what they see has changed."""
        if not self._subscribers:
            return
        state = self.state()
        told = repr(state)
        if told == self._told:
            return
        self._told = told
        for connection in list(self._subscribers):
            connection.reply({"state": state}, continues=True)

    # -- owner or root

    def _signal(self, call: Call) -> Values:
        number, scope = call.integer("signal"), call.text("scope")
        if number not in signal.valid_signals():
            raise invalid("signal")
        if scope not in _SCOPES:
            raise invalid("scope")
        self._deliver(number, scope)
        return {}

    def _deliver(self, number: int, scope: str) -> None:
        supervisor = self._supervisor
        ledger = supervisor.ledger.value
        if ledger.leader is None or ledger.exit is not None:
            raise Refused("org.spur.Run.NotRunning", phase=phase(ledger))
        if scope == "full":
            supervisor.place.signal(number)
        elif scope == "batch":
            likeness, fd = pidfd.open_same(ledger.leader)
            if fd is None:
                raise Refused("org.spur.Run.NotRunning", phase=f"the leader is {likeness.value}")
            pidfd.send_signal(fd, number)
            os.close(fd)

    def _terminate(self, call: Call) -> Values:
        try:
            kind = VerdictKind(call.text("kind"))
        except ValueError:
            raise invalid("kind") from None
        uid = call.connection.uid
        if call.connection.caller is Caller.ROOT:
            by_uid = call.optional_integer("by_uid")
            uid = uid if by_uid is None else by_uid
        elif kind is not VerdictKind.CANCELLED:
            raise invalid("kind")  # an owner can cancel, not claim that it was a time limit
        verdict = Verdict(kind, uid, time.time(), call.optional_text("reason") or "")
        try:
            return {"first": self._supervisor.judge(verdict)}
        except OSError as error:
            raise Refused("org.spur.Run.Failed", reason=str(error)) from None

    # -- root

    def _start(self, call: Call) -> Values:
        self._supervisor.may_start = True
        self._supervisor.advance_soon()
        return {}

    def _suspend(self, call: Call) -> Values:
        ledger = self._supervisor.ledger.value
        if ledger.leader is None or ledger.exit is not None or ledger.verdict is not None:
            raise Refused("org.spur.Run.NotRunning", phase=phase(ledger))
        self._supervisor.suspend()
        return {}

    def _resume(self, call: Call) -> Values:
        self._supervisor.resume()
        return {}

    def _acknowledge(self, call: Call) -> Values:
        answer = call.text("answer")
        if answer not in _ANSWERS:
            raise invalid("answer")
        file = self._supervisor.ledger
        ledger = file.value
        if phase(ledger) not in ("finished", "answered"):
            raise Refused("org.spur.Run.NotSettled", duty=_unsettled(ledger).value)
        if ledger.progress(Duty.REPORT) is not Progress.DONE:
            answered = ledger.marked(Duty.REPORT, Progress.DONE, time.time(), answer)
            file.put(replace(answered, answer=answer, drain_noted=True))
        return {}

    def _drain_noted(self, call: Call) -> Values:
        file = self._supervisor.ledger
        file.put(replace(file.value, drain_noted=True))
        return {}

    def _release(self, call: Call) -> Values:
        file = self._supervisor.ledger
        if not file.value.progress(Duty.REPORT).settled:
            raise Refused("org.spur.Run.NotSettled", duty=_unsettled(file.value).value)
        file.value = file.value.marked(Duty.RELEASE, Progress.DONE, time.time())  # the directory goes, the mark with it
        self._supervisor.advance_soon()
        return {}


def _unsettled(ledger: Manifest) -> Duty:
    return next(duty for duty in Duty if not ledger.progress(duty).settled)


def _process(process: Process | None) -> dict[str, Any] | None:
    if process is None:
        return None
    return {"pid": process.pid, "inode": process.inode, "start_ticks": process.start_ticks}


def _exit(exit: Exit | None) -> dict[str, Any] | None:
    encoded = ledgers.encode_exit(exit)
    if encoded is None:
        return None
    status = encoded["status"]
    known = status is not None
    return {
        **encoded,
        "code": waitstatus.exit_code(status) if known else None,
        "signal": waitstatus.exit_signal(status) if known else None,
        "core": known and waitstatus.dumped_core(status),
    }
