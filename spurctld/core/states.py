"""The words of the controller's state machines: what a job, a run on a node and a hook can be, and why.

Enums and constants alone; nothing is imported from this project.
"""

from __future__ import annotations

from enum import Enum, IntEnum


class JobState(Enum):
    """Slurm's base states, and CONFIGURING, which Slurm shows as a flag of RUNNING."""

    PENDING = "PENDING"
    CONFIGURING = "CONFIGURING"  # allocated; several nodes or the controller's prolog are not ready yet
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"

    @property
    def active(self) -> bool:
        """Whether the job holds an allocation of its current attempt by right."""
        return self in _ACTIVE

    @property
    def finished(self) -> bool:
        return self in _FINISHED


_ACTIVE = frozenset({JobState.CONFIGURING, JobState.RUNNING, JobState.SUSPENDED})
_FINISHED = frozenset(JobState) - _ACTIVE - {JobState.PENDING}


class Phase(IntEnum):
    """How far a run has come on one node. It only ever grows."""

    SENT = 1  # committed; the launch may or may not have reached the node
    ACCEPTED = 2  # claimed and durable there
    READY = 3  # prolog done, waits for permission
    RUNNING = 4  # user code runs
    ENDED = 5  # the exit is recorded there
    FINISHED = 6  # leftovers gone, epilog ended, report answered
    RELEASED = 7  # proven not to be there: its resources are free

    @property
    def word(self) -> str:
        """As the contracts spell it."""
        return self.name.lower()


class NodeState(Enum):
    """Whether a node can be reckoned with. Draining is a mark of its own beside it."""

    UNKNOWN = "unknown"  # configured, never registered
    UP = "up"
    SILENT = "silent"  # down: not heard of for a whole timeout
    LEFT = "left"  # down: its agent was idle and took its leave
    DOWN = "down"  # down: until an operator resumes it

    @property
    def down(self) -> bool:
        return self in (NodeState.SILENT, NodeState.LEFT, NodeState.DOWN)


class ExitSource(Enum):
    """Who saw the exit."""

    WAITID = "waitid"
    WITNESS = "witness"
    KERNEL = "kernel"
    UNKNOWN = "unknown"  # nobody did
    NEVER_STARTED = "never_started"  # no user code ran


class VerdictKind(Enum):
    """Why the controller ends a run."""

    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    NODE_LOST = "node_lost"
    STALE = "stale"
    LAUNCH_FAILED = "launch_failed"
    CONFLICT = "conflict"


class Answer(Enum):
    """What a report of a node is answered with."""

    RECORDED = "recorded"
    ALREADY_RECORDED = "already_recorded"
    STALE_ATTEMPT = "stale_attempt"
    UNKNOWN_JOB = "unknown_job"


class Progress(Enum):
    """How far a hook of the controller is. UNDER_WAY is durable before the hook starts."""

    NOT_OWED = "not_owed"
    OWED = "owed"
    UNDER_WAY = "under_way"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"  # the controller died meanwhile; never repeated

    @property
    def settled(self) -> bool:
        return self not in (Progress.OWED, Progress.UNDER_WAY)


class HookKind(Enum):
    """The programs of the site that run beside the controller."""

    PROLOG = "prolog"
    EPILOG = "epilog"


class SignalScope(Enum):
    """Whom scancel's signal is for."""

    STEPS = "steps"
    BATCH = "batch"  # the batch shell alone
    FULL = "full"  # the shell, its children and the steps


class PartitionState(Enum):
    UP = "UP"
    DOWN = "DOWN"
    DRAIN = "DRAIN"
    INACTIVE = "INACTIVE"


class NodeOrder(Enum):
    """What an operator makes of a node (scontrol update nodename=... state=...)."""

    DRAIN = "DRAIN"
    DOWN = "DOWN"
    RESUME = "RESUME"
    UNDRAIN = "UNDRAIN"


class Fault(Enum):
    """Whose fault a refused launch is."""

    NODE = "node"  # the claim does not fit there, the disk is full: another node may do
    USER = "user"  # nothing in it changes by trying again


class RefusalKind(Enum):
    """Why a caller's request was not carried out."""

    INVALID = "invalid"
    NOT_FOUND = "not_found"
    DENIED = "denied"
    WRONG_STATE = "wrong_state"
    TOO_MANY = "too_many"


class Reason:
    """Slurm's words for why a job waits or has failed (squeue(1), JOB REASON CODES)."""

    NONE = "None"
    PRIORITY = "Priority"
    RESOURCES = "Resources"
    PARTITION_DOWN = "PartitionDown"
    PARTITION_INACTIVE = "PartitionInactive"
    PARTITION_NODE_LIMIT = "PartitionNodeLimit"
    PARTITION_CONFIG = "PartitionConfig"
    REQ_NODE_NOT_AVAIL = "ReqNodeNotAvail"
    HELD_USER = "JobHeldUser"
    HELD_ADMIN = "JobHeldAdmin"
    HOLD_MAX_REQUEUE = "JobHoldMaxRequeue"
    TIME_LIMIT = "TimeLimit"
    NODE_DOWN = "NodeDown"
    NON_ZERO_EXIT = "NonZeroExitCode"
    OUT_OF_MEMORY = "OutOfMemory"
    LAUNCH_FAILURE = "JobLaunchFailure"
    PROLOG = "Prolog"


NODES_UNAVAILABLE = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
LAUNCH_FAILED_HELD = "launch failed requeued held"
REQUEUED_HELD = "job requeued in held state"

UNLIMITED = 0xFFFFFFFF
"""A time limit of so many seconds is none; as the contracts carry it."""
