"""The supervisor of one run: it owns the wait for the job, the ledger, the cgroup and the socket.

It is a fork of the launcher and lives until the run is released. `duties.next_step` says what to do; this module does
it, one step after the other, and waits on its loop for what cannot be hurried. A successor is this same program on the
same directory.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from spurstepd import (
    cgroups,
    containment,
    faults,
    hooks,
    manifest,
    notice,
    pidfd,
    slot,
    spawn,
    timelimit,
    varlink,
    waitstatus,
    witness,
)
from spurstepd.api import Api
from spurstepd.duties import Sight, Step, next_step, phase, why_not_to_start
from spurstepd.ending import Ending
from spurstepd.eventlog import EventLog
from spurstepd.ids import RunId
from spurstepd.inherited import InheritedTask, Watching
from spurstepd.launchplan import LaunchPlan
from spurstepd.ledger import Duty, Exit, ExitSource, Manifest, Process, Progress, Usage, Verdict, VerdictKind
from spurstepd.ledgerfile import RETRY_S, LedgerFile
from spurstepd.plugins import Plugins
from spurstepd.reactor import READ, Reactor, Timer
from spurstepd.rundir import NodeDirs, RunDir
from spurstepd.spawn import Child
from spurstepd.task import TaskSetup
from spurstepd.title import become_subreaper, set_title
from spurstepd.umbilical import Umbilical


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the launcher gives to every supervisor it forks."""

    dirs: NodeDirs
    node: str
    hierarchy: cgroups.Hierarchy
    plugins: Plugins
    interface: str  # text of org.spur.Run.varlink
    version: str


class LockHeld(Exception):
    """Another supervisor lives for this run."""


@dataclass(slots=True)
class RunningHook:
    duty: Duty
    child: Child
    timer: Timer
    timed_out: bool = False


class Supervisor:
    """One run. `kept` holds descriptors that the launcher kept for it: "leader", a pidfd."""

    def __init__(
        self, around: Surroundings, run: RunId, umbilical: Umbilical, kept: dict[str, int], log: EventLog
    ) -> None:
        self.around = around
        self.run = run
        self.log = log
        self.dir: RunDir = around.dirs.run(run)
        self.reactor = Reactor()
        self.api = Api(self)
        self._umbilical = umbilical
        self._lock = self._take_lock()
        self.ledger = LedgerFile(self.dir, log, self.reactor, self.api.publish)
        self.plan: LaunchPlan = manifest.load_plan(self.dir)
        self.same_boot = self.ledger.value.boot_id == manifest.boot_id()
        self.may_start = self.plan.may_start
        self.place, self._uncontained = containment.find(around.hierarchy, self.ledger.value, self.plan, log)
        self.ending = Ending(self.place, self.plan, self.reactor, log, self.advance_soon, self._complain)
        self.left = False
        self._events: int | None = None  # tells that the place has filled or emptied
        self._hook: RunningHook | None = None
        self._task: Child | None = None  # a leader that is our child
        self._task_error = ""
        self._task_epilogs: list[str] = []  # still to be run, once the task has ended
        self._leader_fd: int | None = kept.get("leader")
        self._task_watched = False
        self._inherited: InheritedTask | None = None  # a leader that a predecessor started

    # -- start

    def _take_lock(self) -> int:
        lock = manifest.take_lock(self.dir)
        if lock is None:
            raise LockHeld
        return lock

    def serve(self) -> None:
        """Supervise until the run is released."""
        set_title(f"spurstepd: {self.run}")
        become_subreaper()
        if not spawn.shield_from_oom():
            self.log.event("oom_shield_not_had")
        self.reactor.on_signals((signal.SIGCHLD,), self._reap)
        spawn.ignore_signals()
        self._listen()
        self._introduce()
        self._advance()
        while not self.left:
            self.reactor.run_once()

    def _listen(self) -> None:
        listener = varlink.listen(self.around.dirs.socket(self.run), 0o666)
        self._service = varlink.Service(
            self.reactor,
            listener,
            self.ledger.value.uid,
            self.around.version,
            {"org.spur.Run": self.around.interface},
            self.api.methods(),
        )

    def _introduce(self) -> None:
        """Who supervises now, and where, must be on disk before anything is started.

        Where something is started next, it is stored with that: nothing runs before it, and a successor that does not
        find the place makes a fresh one, out of whatever was waiting there.
        """
        me = os.getpid()
        fd = os.pidfd_open(me)
        ledger = replace(self.ledger.value, supervisor=pidfd.identify(me, fd), cgroup=self.place.recorded)
        os.close(fd)
        starts = next_step(ledger, self.sight()) in (Step.START_PROLOG, Step.START_TASK)
        if starts and not self._uncontained:
            self.ledger.hold(ledger)
        else:
            self.ledger.put(ledger)
        self.reactor.watch(self._umbilical.fileno(), READ, lambda _: self._hear_launcher())
        self._events = self.place.events_fd()
        if self._events is not None:
            self.reactor.watch(self._events, READ, lambda _: self._population_changed())
        self._umbilical.send({"locked": True})
        faults.point("locked")
        self.log.event("supervisor_started", phase=phase(ledger), cgroup=ledger.cgroup)
        self._arm_deadline()
        if self._uncontained:
            self._refuse_uncontained()
        if ledger.verdict is not None and ledger.exit is None:
            self.ending.begin()
        if not self.may_start:
            self.reactor.after(self.plan.unclaimed_s, self._undo_unclaimed)

    def _refuse_uncontained(self) -> None:
        """cgroup = "required": nothing of this run is started, and the node gets no more until somebody looked."""
        reason = f"no containment: {self._uncontained}"
        verdict = Verdict(VerdictKind.LAUNCH_FAILED, 0, time.time(), reason)
        self.ledger.put(replace(self.ledger.value, verdict=verdict, drain=reason, requeue_held=True))

    # -- the steps

    def _advance(self) -> None:
        """Take steps until one has to be waited for."""
        while not self.left and self._take(next_step(self.ledger.value, self.sight())):
            pass

    def sight(self) -> Sight:
        return Sight(
            same_boot=self.same_boot,
            may_start=self.may_start,
            hook=self._hook.duty if self._hook else None,
            task_watched=self._task_watched,
        )

    def _take(self, step: Step) -> bool:
        """Take `step`; False: it takes time, or is to be tried again later."""
        match step:
            case Step.SKIP_PROLOG:
                return self._mark(Duty.PROLOG, Progress.NONE, "the run was ended before it")
            case Step.START_PROLOG:
                return self._start_hook(Duty.PROLOG)
            case Step.INTERRUPTED_PROLOG:
                return self._interrupted(Duty.PROLOG)
            case Step.START_TASK:
                return self._start_task()
            case Step.GIVE_UP:
                return self._give_up()
            case Step.WATCH_TASK:
                return self._watch_task()
            case Step.CLEAR:
                return self._clear()
            case Step.START_EPILOG:
                return self._start_hook(Duty.EPILOG)
            case Step.INTERRUPTED_EPILOG:
                return self._interrupted(Duty.EPILOG)
            case Step.LEAVE:
                self._leave()
                return False
            case Step.AWAIT_HOOK | Step.AWAIT_START | Step.AWAIT_TASK | Step.AWAIT_ANSWER | Step.AWAIT_RELEASE:
                return False

    def _mark(self, duty: Duty, progress: Progress, detail: str = "") -> bool:
        self.ledger.put(self.ledger.value.marked(duty, progress, time.time(), detail))
        return True

    def advance_soon(self) -> None:
        """Go on after the current event; from a handler, whose reply must leave first."""
        self.reactor.after(0.0, self._advance)

    def _try_again_later(self, why: str) -> bool:
        self.log.event("step_delayed", why=why)
        self.reactor.after(RETRY_S, self._advance)
        return False

    # -- hooks

    def _start_hook(self, duty: Duty) -> bool:
        started = self.ledger.value.marked(duty, Progress.RUNNING, time.time())
        if not self.ledger.put_durably(started):
            return self._try_again_later(f"the start of the {duty.value} cannot be recorded")
        faults.point(f"{duty.value}-recorded")
        leaf = self.place.leaf(duty.value)
        child = hooks.start(duty, self.plan, self.ledger.value, self.dir, self.around.plugins, self.reactor, leaf.enter)
        leaf.close()
        limit = self.plan.hooks.prolog_timeout_s if duty is Duty.PROLOG else self.plan.hooks.epilog_timeout_s
        self._hook = RunningHook(duty, child, self.reactor.after(limit, self._hook_overdue))
        child.release()
        faults.point(f"{duty.value}-started")
        return False

    def _hook_overdue(self) -> None:
        if self._hook is not None:
            self._hook.timed_out = True
            self.log.event("hook_timed_out", hook=self._hook.duty.value)
            self.place.kill_all()  # nothing else of the run lives while a hook runs

    def _hook_ended(self, status: int) -> None:
        hook = self._hook
        assert hook is not None
        self._hook = None
        hook.timer.cancel()
        os.close(hook.child.pidfd)
        error = hook.child.read_error()
        if hook.duty is Duty.RUN:
            self.log.event("task_epilog_ended", status=status, error=error, timed_out=hook.timed_out)
            if not self._start_task_epilog():
                self._advance()
            return
        why = hooks.verdict_on(hook.duty, self.plan, status, hook.timed_out, error, self.dir)
        self.log.event("hook_ended", hook=hook.duty.value, status=status, failure=why)
        faults.point(f"{hook.duty.value}-ended")
        if hook.duty is Duty.EPILOG:
            self.place.kill_all()
        self._settle_hook(hook.duty, Progress.FAILED if why else Progress.DONE, why)

    def _interrupted(self, duty: Duty) -> bool:
        """A supervisor died inside it: it is not repeated, and nobody knows how it went."""
        self.place.kill_all()
        self._settle_hook(duty, Progress.UNKNOWN, f"{duty.value} was interrupted, its outcome is unknown")
        return True

    def _settle_hook(self, duty: Duty, progress: Progress, why: str) -> None:
        ledger = self.ledger.value.marked(duty, progress, time.time(), why)
        if why:
            ledger = replace(ledger, drain=f"job {self.run.job}: {why}", drain_noted=False)
        if why and duty is Duty.PROLOG:
            ledger = replace(ledger, requeue_held=True)
        self.ledger.put(ledger)
        faults.point(f"{duty.value}-done")
        self._advance()

    # -- the task

    def _start_task(self) -> bool:
        try:
            child = self._fork_task()
        except OSError as error:
            return self._try_again_later(f"the task cannot be forked: {error.strerror}")
        except cgroups.ContainmentError as error:
            self.judge(Verdict(VerdictKind.LAUNCH_FAILED, 0, time.time(), str(error)))
            return False
        faults.point("task-forked")
        leader = pidfd.identify(child.pid, child.pidfd)
        self._umbilical.send({"leader": slot.identity(leader)}, child.pidfd)
        faults.point("task-told")
        started = self.ledger.value.marked(Duty.RUN, Progress.RUNNING, time.time())
        deadline = timelimit.deadline(self.plan, timelimit.now())
        self._task, self._task_watched, self._leader_fd = child, True, child.pidfd
        if not self.ledger.put_durably(replace(started, leader=leader, deadline_boottime=deadline)):
            self._task, self._task_watched, self._leader_fd = None, False, None
            child.abandon()
            return self._try_again_later("the start of the task cannot be recorded")
        faults.point("task-recorded")
        child.release()
        self.reactor.watch(child.errors, READ, lambda _: self._task_reached_exec())
        self._arm_deadline()
        faults.point("task-started")
        return False

    def _fork_task(self) -> Child:
        leaf = self.place.leaf("batch")
        setup = self._task_setup(leaf.environment)
        run_dir = self.dir
        try:
            return spawn.fork_child(
                self.reactor,
                leaf.enter,
                setup.steps(),
                setup.execute,
                lambda: _recorded_as_leader(run_dir, os.getpid()),
            )
        finally:
            leaf.close()

    def _task_setup(self, more: tuple[str, ...]) -> TaskSetup:
        plan, plugins, granted = self.plan, self.around.plugins, self.ledger.value.granted
        confined = self.place.confines_cpus or not plan.constrain_cpus
        environment = dict(entry.split("=", 1) for entry in (*plan.environment, *more))

        def call(method: str) -> Callable[[], None]:
            return lambda: plugins.call(method, environment)

        affinity = None if confined else frozenset(granted.cpus)
        return TaskSetup(plan, affinity, call("task_init"), call("user_init"), environment)

    def _task_reached_exec(self) -> None:
        """The error pipe ended: by the exec, or after a sentence about the step that failed."""
        if self._task is None:
            return
        self.reactor.forget(self._task.errors)
        self._task_error = self._task.read_error()
        faults.point("task-executed")
        self.log.event("task_started" if not self._task_error else "task_not_started", error=self._task_error)

    def _reap(self) -> None:
        """All children that have ended: the leader and a hook with care, orphans of the run by the way."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            if self._task is not None and found.si_pid == self._task.pid:
                self._task_ended()
            elif self._hook is not None and found.si_pid == self._hook.child.pid:
                self._hook_ended(os.waitpid(found.si_pid, 0)[1])
            else:
                os.waitpid(found.si_pid, 0)

    def _task_ended(self) -> None:
        """Record first, reap then: until it is reaped, a witness can still see it."""
        task = self._task
        assert task is not None
        leader = self.ledger.value.leader
        assert leader is not None
        seen = os.waitid(os.P_PIDFD, task.pidfd, os.WEXITED | os.WNOWAIT)
        assert seen is not None
        if task.errors in self.reactor:
            self._task_reached_exec()
        faults.point("task-exited")
        status = waitstatus.from_waitid(seen)
        ended = Exit(ExitSource.WAITID, status, time.time(), self.place.oom_kills(), detail=self._task_error)
        self._write_slot(leader, ended)
        faults.point("exit-recorded")
        used = os.wait4(task.pid, 0)[2]
        self._task = None
        self._task_epilogs = list(self.plan.hooks.task_epilog)
        self._record_exit(replace(ended, usage=self._usage(witness.usage_of(used))))

    def _write_slot(self, leader: Process, ended: Exit) -> None:
        try:
            faults.point("slot-write")
            slot.write_exit(self.dir, leader, ended)
        except (OSError, slot.SlotFull) as error:
            self.log.event("exit_slot_not_written", error=str(error))

    def _record_exit(self, ended: Exit) -> None:
        self.log.event("exit_recorded", source=ended.source.value, status=ended.status, detail=ended.detail)
        clear = not self._task_epilogs and self._is_clear()
        if clear:
            self.ending.over()
        ledger = replace(self.ledger.value, exit=ended)
        self.ledger.put(_cleared(ledger) if clear else ledger)
        faults.point("exit-in-manifest")
        if clear:
            faults.point("leftovers-killed")
        if not self._start_task_epilog():
            self._advance()

    def _start_task_epilog(self) -> bool:
        """The user's side of an epilog: in the task's place and as the user; what becomes of it is logged, no more."""
        if not self._task_epilogs:
            return False
        program = self._task_epilogs.pop(0)
        setup = self._task_setup(())
        setup.plan = replace(self.plan, argv=(program,), append=True, hooks=replace(self.plan.hooks, task_prolog=()))
        leaf = self.place.leaf("task_epilog")
        child = spawn.fork_child(self.reactor, leaf.enter, setup.steps(), setup.execute, lambda: False)
        leaf.close()
        limit = self.plan.hooks.epilog_timeout_s
        self._hook = RunningHook(Duty.RUN, child, self.reactor.after(limit, self._hook_overdue))
        child.release()
        return True

    def _usage(self, reaped: Usage) -> Usage:
        """What the whole run used, by the cgroup's counters; by what was reaped where they do not count."""
        counted = self.place.usage()
        return Usage(
            user_cpu_s=_known(counted.user_cpu_s, reaped.user_cpu_s),
            system_cpu_s=_known(counted.system_cpu_s, reaped.system_cpu_s),
            max_rss_kib=reaped.max_rss_kib,
            read_bytes=int(_known(counted.read_bytes, reaped.read_bytes)),
            written_bytes=int(_known(counted.written_bytes, reaped.written_bytes)),
            peak_memory_bytes=int(_known(counted.peak_memory_bytes, 0)),
        )

    def usage_now(self) -> Usage:
        """What the run has used so far; what it had used, once it has ended."""
        ended = self.ledger.value.exit
        if ended is not None and ended.usage is not None:
            return ended.usage
        return self._usage(Usage())

    def _give_up(self) -> bool:
        why = why_not_to_start(self.ledger.value, same_boot=self.same_boot) or ""
        self.ledger.put(replace(self.ledger.value, exit=Exit(ExitSource.NEVER_STARTED, None, time.time(), detail=why)))
        return True

    # -- a task that a predecessor started

    def _watch_task(self) -> bool:
        leader = self.ledger.value.leader
        assert leader is not None
        if self._inherited is None:
            self._inherited = InheritedTask(leader, self._leader_fd, self.dir, self.reactor, self._settle)
        if self._inherited.watch(self.same_boot) is Watching.UNREADABLE:
            return self._try_again_later("the leader's identity cannot be read")
        self._task_watched = True
        return True

    def _settle(self, ended: Exit) -> None:
        leader = self.ledger.value.leader
        if leader is None or self.ledger.value.exit is not None:
            return
        if self.same_boot:
            ended = replace(ended, oom_kills=self.place.oom_kills(), usage=self._usage(ended.usage or Usage()))
        self._write_slot(leader, ended)
        faults.point("exit-recorded")
        self._record_exit(ended)

    def _hear_launcher(self) -> None:
        while True:
            try:
                message = self._umbilical.receive()
            except BlockingIOError:
                return
            if message is None:
                self.reactor.forget(self._umbilical.fileno())
                self.log.event("launcher_gone")
                return
            if "witness" in message[0] and self._inherited is not None:
                self._inherited.hear(witness.decode(message[0]["witness"]))

    # -- the end

    def _clear(self) -> bool:
        """Nothing of the run may be left before it counts as ended."""
        if not self._is_clear():
            self.ending.begin()
            return False
        self.ending.over()
        faults.point("leftovers-killed")
        self.ledger.put(_cleared(self.ledger.value))
        return True

    def _is_clear(self) -> bool:
        return not self.same_boot or not self.place.populated()

    def _population_changed(self) -> None:
        if not self.place.populated():
            self._advance()

    def judge(self, verdict: Verdict) -> bool:
        """End the run for the reason in `verdict`; False where an earlier one stands or it has ended already.

        OSError: the verdict could not be made durable, so that nothing was signalled.
        """
        ledger = self.ledger.value
        if ledger.verdict is not None or ledger.exit is not None:
            return False
        if not self.ledger.put_durably(replace(ledger, verdict=verdict)):
            raise OSError("the verdict cannot be stored: no room on the disk")
        faults.point("verdict-recorded")
        self.log.event("run_judged", kind=verdict.kind.value, by_uid=verdict.by_uid, reason=verdict.reason)
        if ledger.leader is not None:
            notice.write(self.plan, self.run.job, self.around.node, verdict, self.reactor)
            self.ending.begin()
        self.advance_soon()
        return True

    def _complain(self, reason: str | None) -> None:
        """The node must be drained for what does not die; None: it has died after all.

        Where the node has to be drained for another reason already, that reason stays.
        """
        ledger = self.ledger.value
        mine = f"job {self.run.job}: unkillable"
        if reason is not None and ledger.drain is None:
            self.ledger.put(replace(ledger, drain=f"{mine}: {reason}", drain_noted=False))
        elif reason is None and ledger.drain is not None and ledger.drain.startswith(mine):
            self.ledger.put(replace(ledger, drain=None, drain_noted=False))

    def suspend(self) -> None:
        """Stop every process of the run; its time limit stops with it. NotRunning is the caller's to check."""
        if not self.ledger.value.suspended:
            self.place.freeze()
            self.ledger.put(timelimit.suspended(self.ledger.value, timelimit.now()))

    def resume(self) -> None:
        """Let it go on, with what was left of its time."""
        if self.ledger.value.suspended:
            self.place.thaw()
            self.ledger.put(timelimit.resumed(self.ledger.value, timelimit.now()))
            self._arm_deadline()

    def _arm_deadline(self) -> None:
        left_s = timelimit.left_s(self.ledger.value, timelimit.now())
        if left_s is not None and self.same_boot:
            self.reactor.after(left_s, self._overrun)

    def _overrun(self) -> None:
        left_s = timelimit.left_s(self.ledger.value, timelimit.now())
        if left_s is None or left_s > 0:
            return  # it has ended, or its suspension moved the deadline and armed another timer
        try:
            self.judge(Verdict(VerdictKind.TIMEOUT, 0, time.time(), "time limit"))
        except OSError:
            self.reactor.after(RETRY_S, self._overrun)

    def _undo_unclaimed(self) -> None:
        if not self.may_start and self.ledger.value.leader is None:
            reason = f"nobody claimed the launch within {self.plan.unclaimed_s:g} s"
            self.judge(Verdict(VerdictKind.LAUNCH_FAILED, 0, time.time(), reason))

    def _leave(self) -> None:
        """All is discharged. The records go first under a name that nobody takes for a run, then for good.

        Not before the place is gone as well: what an epilog has left there was killed, and may take its time.
        """
        faults.point("released")
        if self._events is not None:
            self.reactor.forget(self._events)  # it is closed with the place
        if not self.place.remove(wait_s=0.1):
            self.place.kill_all()
            self.reactor.after(0.1, self._advance)
            return
        self.around.dirs.socket(self.run).unlink(missing_ok=True)
        old = self.dir.path.with_name(f".{self.run}.old")
        os.rename(self.dir.path, old)
        shutil.rmtree(old, ignore_errors=True)
        self._service.close()
        self.log.event("supervisor_left")
        self._umbilical.send({"done": True})
        self.left = True


def _recorded_as_leader(run_dir: RunDir, pid: int) -> bool:
    """Whether the ledger says that `pid` was started: for a child whose supervisor died while it waited."""
    try:
        ledger = slot.load_latest(run_dir)
    except manifest.ManifestUnreadable:
        return False
    return ledger.leader is not None and ledger.leader.pid == pid and ledger.exit is None


def _cleared(ledger: Manifest) -> Manifest:
    """`ledger`, which has an exit, now that nothing of the run is left."""
    never = ledger.exit is not None and ledger.exit.source is ExitSource.NEVER_STARTED
    return ledger.marked(Duty.RUN, Progress.NONE if never else Progress.DONE, time.time())


def _known(first: float | None, second: float) -> float:
    return second if first is None else first
