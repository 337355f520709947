"""The line in a job's stderr that says who ended it and why, as Slurm writes it."""

from __future__ import annotations

import os
import time

from spurstepd import spawn
from spurstepd.launchplan import LaunchPlan
from spurstepd.ledger import Verdict, VerdictKind
from spurstepd.reactor import Reactor
from spurstepd.spawn import Step

_DUE_TO = {
    VerdictKind.TIMEOUT: " DUE TO TIME LIMIT",
    VerdictKind.PREEMPTED: " DUE TO PREEMPTION",
    VerdictKind.NODE_LOST: " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS",
}


def line(job: int, node: str, verdict: Verdict) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(verdict.at))
    return f"spurstepd: error: *** JOB {job} ON {node} CANCELLED AT {at}{_DUE_TO.get(verdict.kind, '')} ***\n"


def write(plan: LaunchPlan, job: int, node: str, verdict: Verdict, reactor: Reactor) -> None:
    """Append the line, in a child with the user's identity: root opens no path that a user chose.

    Nobody waits for it: a file system that hangs must not keep the job from being ended.
    """

    def append() -> None:
        fd = os.open(os.fsencode(plan.stderr), os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK)
        os.write(fd, line(job, node, verdict).encode())
        os._exit(0)

    identity = Step("identity", lambda: spawn.become(plan.uid, plan.gid, plan.groups))
    child = spawn.fork_child(reactor, lambda: None, [identity], append, lambda: False)
    child.release()
    os.close(child.pidfd)
    os.close(child.errors)
