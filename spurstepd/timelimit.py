"""The deadline of a run, by which its supervisor ends it if nobody else has: pure, on CLOCK_BOOTTIME.

That clock counts a machine's sleep and follows no change of the wall clock. What a run was suspended for does not
count.
"""

from __future__ import annotations

import time
from dataclasses import replace

from spurstepd.launchplan import LaunchPlan
from spurstepd.ledger import Manifest


def now() -> float:
    """Seconds since boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def deadline(plan: LaunchPlan, now: float) -> float | None:
    """When a task that starts at `now` is over its limit, and over what the controller is given to say so first."""
    return None if plan.time_limit_s is None else now + plan.time_limit_s + plan.overrun_s


def left_s(ledger: Manifest, now: float) -> float | None:
    """Seconds until the deadline; None where none is running: no limit, suspended, or ended."""
    if ledger.deadline_boottime is None or ledger.suspended or ledger.exit is not None:
        return None
    return ledger.deadline_boottime - now


def suspended(ledger: Manifest, now: float) -> Manifest:
    """`ledger` since its run was stopped."""
    return replace(ledger, suspended=True, suspended_boottime=now)


def resumed(ledger: Manifest, now: float) -> Manifest:
    """`ledger` without its suspension, its deadline later by as long as that took."""
    end, since = ledger.deadline_boottime, ledger.suspended_boottime
    if end is not None and since is not None:
        end += now - since
    return replace(ledger, suspended=False, suspended_boottime=None, deadline_boottime=end)
