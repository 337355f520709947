"""The columns of squeue: its letters for -o, its names for -O, its keys for --sort.

Headers, fallbacks such as `(null)` and what is cut to a width are Slurm 22.05's, recorded from it. What Spur does not
have (arrays, licenses, federations) prints what Slurm prints where it is not used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spur import memory, times
from spur.columns import NULL, Column, cut, cut_unless_right
from spur.jobview import JobState, JobView

DEFAULT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
STEPS = "%.15i %.8j %.9P %.8u %.9M %N"
DEFAULT_SORT = "P,t,-p"

_PRIORITY_SCALE = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Row:
    """A job, and what its values depend on besides: the controller's time and the user's SLURM_TIME_FORMAT."""

    job: JobView
    now: float
    environ: Mapping[str, str]
    cluster: str = ""

    def instant(self, at: float) -> str:
        return times.format_instant(at, self.environ, unset="N/A", now=self.now)


RowColumn = Column[Row]


def _of_job(header: str, value: Callable[[JobView], str | int], **fits: Any) -> RowColumn:
    return Column(header, lambda row: str(value(row.job)), **fits)


def _at(header: str, value: Callable[[JobView], float]) -> RowColumn:
    return Column(header, lambda row: row.instant(value(row.job)))


def _fixed(header: str, value: str) -> RowColumn:
    """What is the same for every job of Spur."""
    return Column(header, lambda _row: value)


def _endless(row: Row) -> bool:
    """Whether it runs and no limit will end it."""
    job = row.job
    return job.unlimited and (job.state in (JobState.RUNNING, JobState.SUSPENDED) or job.ended_at > row.now)


def _end(row: Row) -> str:
    return "NONE" if _endless(row) else row.instant(row.job.ended_at)


def _left(row: Row) -> str:
    if row.job.unlimited:
        return "UNLIMITED"
    return times.format_elapsed(row.job.time_limit_s - row.job.used_s(row.now))


def _pending_s(row: Row) -> str:
    job = row.job
    return str(int(job.started_at or row.now) - int(job.submitted_at))


def _priority(job: JobView) -> str:
    return f"{job.priority / _PRIORITY_SCALE:16.14f}"


def _cut_word(text: str, width: int, right: bool) -> str:
    """A time is never cut where it is aligned to the right, the word for no limit is."""
    return cut(text, width, right) if text == "UNLIMITED" else cut_unless_right(text, width, right)


def _cut_reason(text: str, width: int, right: bool) -> str:
    return cut(text, width, right) if text.startswith("(") else cut_unless_right(text, width, right)


_JOBID = _of_job("JOBID", lambda job: job.job_id)
_ARRAY_JOB_ID = _of_job("ARRAY_JOB_ID", lambda job: job.job_id)
_TIME_LIMIT = _of_job("TIME_LIMIT", lambda job: times.format_short_limit(job.time_limit_s), fit=_cut_word)
_TIME_LEFT = Column("TIME_LEFT", _left, fit=_cut_word)
_TIME_USED: RowColumn = Column("TIME", lambda row: times.format_elapsed(row.job.used_s(row.now)), fit=cut_unless_right)
_NODELIST = _of_job("NODELIST", lambda job: job.nodes, fit=cut_unless_right, fit_header=cut_unless_right)
_WHERE_OR_WHY = _of_job("NODELIST(REASON)", lambda job: job.where_or_why, fit=_cut_reason, fit_header=cut_unless_right)
_REQ_NODES = _of_job("REQ_NODES", lambda job: job.wanted_nodes, fit=cut_unless_right)
_EXC_NODES = _of_job("EXC_NODES", lambda job: job.excluded_nodes)
_SCHEDNODES: RowColumn = Column("SCHEDNODES", lambda _row: NULL, fit=cut_unless_right, fit_header=cut_unless_right)
_TRES_PER_NODE = _of_job("TRES_PER_NODE", lambda job: job.gres_per_node or "N/A")
_NUM_NODES = _of_job("NODES", lambda job: job.num_nodes)
_NUM_CPUS = _of_job("CPUS", lambda job: job.num_cpus)
_MIN_CPUS = _of_job("MIN_CPUS", lambda job: job.min_cpus)
_MIN_MEMORY = _of_job("MIN_MEMORY", lambda job: memory.format_size(job.memory_mb))

LETTERS: Mapping[str, RowColumn] = {
    "a": _of_job("ACCOUNT", lambda job: job.account or NULL),
    "A": _JOBID,
    "b": _TRES_PER_NODE,
    "B": _of_job("EXEC_HOST", lambda job: job.batch_host or "n/a"),
    "c": _MIN_CPUS,
    "C": _NUM_CPUS,
    "d": _fixed("MIN_TMP_DISK", "0"),
    "D": _NUM_NODES,
    "e": Column("END_TIME", _end),
    "E": _fixed("DEPENDENCY", NULL),
    "f": _fixed("FEATURES", NULL),
    "F": _ARRAY_JOB_ID,
    "g": _of_job("GROUP", lambda job: job.group),
    "G": _of_job("GROUP", lambda job: job.gid),
    "h": _fixed("OVER_SUBSCRIBE", "OK"),
    "H": _fixed("SOCKETS_PER_NODE", "*"),
    "i": _JOBID,
    "I": _fixed("CORES_PER_SOCKET", "*"),
    "j": _of_job("NAME", lambda job: job.name),
    "J": _fixed("THREADS_PER_CORE", "*"),
    "k": _of_job("COMMENT", lambda job: job.comment or NULL),
    "K": _fixed("ARRAY_TASK_ID", "N/A"),
    "l": _TIME_LIMIT,
    "L": _TIME_LEFT,
    "m": _MIN_MEMORY,
    "M": _TIME_USED,
    "n": _REQ_NODES,
    "N": _NODELIST,
    "o": _of_job("COMMAND", lambda job: job.command or NULL),
    "O": _fixed("CONTIGUOUS", "0"),
    "p": _of_job("PRIORITY", _priority),
    "P": _of_job("PARTITION", lambda job: job.partition),
    "q": _fixed("QOS", NULL),
    "Q": _of_job("PRIORITY", lambda job: job.priority),
    "r": _of_job("REASON", lambda job: job.why),
    "R": _WHERE_OR_WHY,
    "s": _fixed("", ""),
    "S": _at("START_TIME", lambda job: job.started_at),
    "t": _of_job("ST", lambda job: job.short_state),
    "T": _of_job("STATE", lambda job: job.state_name),
    "u": _of_job("USER", lambda job: job.user),
    "U": _of_job("UID", lambda job: job.uid),
    "v": _fixed("RESERVATION", NULL),
    "V": _at("SUBMIT_TIME", lambda job: job.submitted_at),
    "w": _fixed("WCKEY", NULL),
    "W": _fixed("LICENSES", NULL),
    "x": _EXC_NODES,
    "X": _fixed("CORE_SPEC", "N/A"),
    "y": _of_job("NICE", lambda job: job.nice),
    "Y": _SCHEDNODES,
    "z": _fixed("S:C:T", "*:*:*"),
    "Z": _of_job("WORK_DIR", lambda job: job.work_dir),
}
ALL_LETTERS: Sequence[str] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

_NOT_USED: Mapping[str, tuple[str, str]] = {
    "admin_comment": ("ADMIN_COMMENT", NULL),
    "arraytaskid": ("ARRAY_TASK_ID", "N/A"),
    "associd": ("ASSOC_ID", "0"),
    "batchflag": ("BATCH_FLAG", "1"),
    "boardspernode": ("BOARDS_PER_NODE", "0"),
    "burstbuffer": ("BURST_BUFFER", NULL),
    "burstbufferstate": ("BURST_BUFFER_STATE", NULL),
    "clusterfeature": ("CLUSTER_FEATURES", NULL),
    "container": ("CONTAINER", NULL),
    "cpus-per-tres": ("CPUS_PER_TRES", "N/A"),
    "deadline": ("DEADLINE", "N/A"),
    "delayboot": ("DELAY_BOOT", "0:00"),
    "hetjobid": ("HET_JOB_ID", "N/A"),
    "hetjobidset": ("HET_JOB_ID_SET", "N/A"),
    "hetjoboffset": ("HET_JOB_OFFSET", "N/A"),
    "mcslabel": ("MCSLABEL", NULL),
    "mem-per-tres": ("MEM_PER_TRES", "N/A"),
    "mintime": ("TIME_MIN", "0:00"),
    "network": ("NETWORK", NULL),
    "ntperboard": ("NTASKS_PER_BOARD", "0"),
    "ntpercore": ("NTASKS_PER_CORE", "N/A"),
    "ntpersocket": ("NTASKS_PER_SOCKET", "N/A"),
    "origin": ("ORIGIN", "NA"),
    "originraw": ("ORIGIN_RAW", "NA"),
    "preempttime": ("PREEMPT_TIME", "N/A"),
    "prefer": ("PREFER", NULL),
    "profile": ("PROFILE", "NotSet"),
    "reboot": ("REBOOT", "0"),
    "reqswitch": ("REQ_SWITCH", "0"),
    "siblingsactive": ("ACTIVE_SIBLINGS", "NA"),
    "siblingsactiveraw": ("ACTIVE_SIBLINGS_RAW", "NA"),
    "siblingsviable": ("VIABLE_SIBLINGS", "NA"),
    "siblingsviableraw": ("VIALBLE_SIBLINGS_RAW", "NA"),  # as Slurm spells it
    "sperboard": ("SOCKETS_PER_BOARD", "0"),
    "system_comment": ("SYSTEM_COMMENT", NULL),
    "tres-bind": ("TRES_BIND", "N/A"),
    "tres-freq": ("TRES_FREQ", "N/A"),
    "tres-per-socket": ("TRES_PER_SOCKET", "N/A"),
    "wait4switch": ("WAIT4SWITCH", "0:00"),
}

NAMES: Mapping[str, RowColumn] = {
    **{name: _fixed(header, value) for name, (header, value) in _NOT_USED.items()},
    "account": LETTERS["a"],
    "accruetime": _at("ACCRUE_TIME", lambda job: job.eligible_at),
    "allocnodes": _of_job("ALLOC_NODES", lambda job: job.submit_host or NULL),
    "allocsid": _of_job("ALLOC_SID", lambda job: job.session_id),
    "arrayjobid": _ARRAY_JOB_ID,
    "batchhost": LETTERS["B"],
    "cluster": Column("CLUSTER", lambda row: row.cluster),
    "command": LETTERS["o"],
    "comment": LETTERS["k"],
    "contiguous": LETTERS["O"],
    "cores": LETTERS["I"],
    "corespec": LETTERS["X"],
    "cpus-per-task": _of_job("CPUS_PER_TASK", lambda job: job.cpus_per_task),
    "dependency": LETTERS["E"],
    "derivedec": _of_job("DERIVED_EC", lambda job: job.derived_exit_code),
    "eligibletime": _at("ELIGIBLE_TIME", lambda job: job.eligible_at),
    "endtime": LETTERS["e"],
    "exit_code": _of_job("EXIT_CODE", lambda job: job.exit_code),
    "feature": LETTERS["f"],
    "groupid": LETTERS["G"],
    "groupname": LETTERS["g"],
    "jobarrayid": _JOBID,
    "jobid": _JOBID,
    "lastschedeval": _at("LAST_SCHED_EVAL", lambda job: job.last_scheduled_at),
    "licenses": LETTERS["W"],
    "maxcpus": _of_job("MAX_CPUS", lambda job: job.num_cpus),
    "maxnodes": _of_job("MAX_NODES", lambda job: job.num_nodes),
    "mincpus": _MIN_CPUS,
    "minmemory": _MIN_MEMORY,
    "mintmpdisk": LETTERS["d"],
    "name": LETTERS["j"],
    "nice": LETTERS["y"],
    "nodelist": _NODELIST,
    "ntpernode": _of_job("NTASKS_PER_NODE", lambda job: job.tasks_per_node),
    "numcpus": _NUM_CPUS,
    "numnodes": _NUM_NODES,
    "numtasks": _of_job("TASKS", lambda job: job.num_tasks or "N/A"),
    "oversubscribe": LETTERS["h"],
    "partition": LETTERS["P"],
    "pendingtime": Column("PENDING_TIME", _pending_s),
    "priority": LETTERS["p"],
    "prioritylong": LETTERS["Q"],
    "qos": LETTERS["q"],
    "reason": LETTERS["r"],
    "reasonlist": _WHERE_OR_WHY,
    "reqnodes": _REQ_NODES,
    "requeue": _of_job("REQUEUE", lambda job: int(job.requeue)),
    "reservation": LETTERS["v"],
    "resizetime": Column("RESIZE_TIME", lambda _row: "N/A", fit=cut_unless_right),
    "restartcnt": _of_job("RESTART_COUNT", lambda job: job.restarts),
    "schednodes": _SCHEDNODES,
    "sct": LETTERS["z"],
    "selectjobinfo": LETTERS["s"],
    "sockets": LETTERS["H"],
    "starttime": LETTERS["S"],
    "state": LETTERS["T"],
    "statecompact": LETTERS["t"],
    "stderr": _of_job("STDERR", lambda job: job.stderr),
    "stdin": _of_job("STDIN", lambda job: job.stdin),
    "stdout": _of_job("STDOUT", lambda job: job.stdout),
    "submittime": LETTERS["V"],
    "threads": LETTERS["J"],
    "timeleft": _TIME_LEFT,
    "timelimit": _TIME_LIMIT,
    "timeused": _TIME_USED,
    "tres-alloc": _of_job("TRES_ALLOC", lambda job: job.tres),
    "tres-per-job": _of_job("TRES_PER_JOB", lambda job: job.gres_per_job or "N/A"),
    "tres-per-node": _TRES_PER_NODE,
    "tres-per-task": _of_job("TRES_PER_TASK", lambda job: job.gres_per_task or "N/A"),
    "userid": LETTERS["U"],
    "username": LETTERS["u"],
    "wckey": LETTERS["w"],
    "workdir": LETTERS["Z"],
}

_STEP_ID = _of_job("STEPID", lambda job: f"{job.job_id}.batch")
_STEP_NAME: RowColumn = _fixed("NAME", "batch")
_STEP_TASKS: RowColumn = _fixed("TASKS", "1")
_STEP_LIMIT: RowColumn = Column("TIME_LIMIT", lambda _row: "UNLIMITED")
_STEP_NODES = _of_job("NODELIST", lambda job: job.batch_host, fit=cut_unless_right, fit_header=cut_unless_right)

# Columns of --steps. The one step that a job has so far is its batch script.
STEP_LETTERS: Mapping[str, RowColumn] = {
    "A": _STEP_TASKS,
    "i": _STEP_ID,
    "j": _STEP_NAME,
    "l": _STEP_LIMIT,
    "M": _TIME_USED,
    "N": _STEP_NODES,
    "P": LETTERS["P"],
    "S": LETTERS["S"],
    "u": LETTERS["u"],
    "U": LETTERS["U"],
}
STEP_NAMES: Mapping[str, RowColumn] = {
    "arrayjobid": _of_job("ARRAY_JOB_ID", lambda job: job.job_id),
    "cluster": NAMES["cluster"],
    "jobid": _of_job("JOB_ID", lambda job: job.job_id),
    "nodes": _STEP_NODES,
    "numtasks": _STEP_TASKS,
    "partition": LETTERS["P"],
    "starttime": LETTERS["S"],
    "stepid": _STEP_ID,
    "stepname": _STEP_NAME,
    "stepstate": _fixed("STATE", "RUNNING"),
    "timelimit": _STEP_LIMIT,
    "timeused": _TIME_USED,
    "userid": LETTERS["U"],
    "username": LETTERS["u"],
}

# Letters of --sort; those that Slurm refuses are not there, and those that order nothing in Slurm do so here.
SORT_KEYS: Mapping[str, Callable[[Row], Any]] = {
    **dict.fromkeys("cdfghHIJnOvz", lambda _row: 0),
    "B": lambda row: row.job.batch_host,
    "C": lambda row: row.job.num_cpus,
    "D": lambda row: row.job.num_nodes,
    "e": lambda row: math.inf if _endless(row) else row.job.ended_at,
    "G": lambda row: row.job.gid,
    "i": lambda row: row.job.job_id,
    "j": lambda row: row.job.name,
    "l": lambda row: row.job.time_limit_s,
    "L": lambda row: row.job.time_limit_s - row.job.used_s(row.now),
    "m": lambda row: row.job.memory_mb,
    "M": lambda row: row.job.used_s(row.now),
    "p": lambda row: row.job.priority,
    "P": lambda row: row.job.partition,
    "Q": lambda row: row.job.priority,
    "t": lambda row: row.job.short_state,
    "T": lambda row: row.job.short_state,
    "u": lambda row: row.job.user,
    "U": lambda row: row.job.uid,
    "V": lambda row: row.job.submitted_at,
}


def sort(rows: Iterable[Row], order: str) -> list[Row]:
    """The rows in the order that --sort names: the last letter is sorted by first. ValueError: a letter is unknown.

    What is equal in all of these stands as in squeue: the latest start first, what never started last.
    """
    rows = _by_start(rows, descending=True)
    for at in range(len(order) - 1, -1, -1):
        letter, descending = order[at], order[at - 1 : at] == "-"
        if letter in ",+-":
            continue
        if letter == "S":
            rows = _by_start(rows, descending=descending)
        elif letter == "N":
            rows = _by_nodes(rows, descending=descending)
        elif letter in SORT_KEYS:
            rows = sorted(rows, key=SORT_KEYS[letter], reverse=descending)
        else:
            raise ValueError(letter)
    return rows


def _by_start(rows: Iterable[Row], *, descending: bool) -> list[Row]:
    """Jobs without a start are last and turned around, as Slurm's comparison of them does."""
    rows = list(rows)
    started = [row for row in rows if row.job.started_at]
    started.sort(key=lambda row: int(row.job.started_at), reverse=descending)
    return started + [row for row in reversed(rows) if not row.job.started_at]


def _by_nodes(rows: Iterable[Row], *, descending: bool) -> list[Row]:
    """Jobs without nodes are last and turned around, or first as they stood."""
    rows = list(rows)
    somewhere = sorted((row for row in rows if row.job.nodes), key=lambda row: row.job.nodes, reverse=descending)
    nowhere = [row for row in rows if not row.job.nodes]
    return nowhere + somewhere if descending else somewhere + nowhere[::-1]
