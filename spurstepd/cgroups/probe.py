"""Finding out what a machine offers for containing runs, by doing it once with a process of our own.

Called once, by the launcher, before it forks anything and after it has been put where it shall live (a scope of its
own under systemd). Nothing is concluded from a version, a distribution or a file's mere presence where it can be tried.
"""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from spurstepd.cgroups import devicefilter, files, legacy, mounts, tree, unified
from spurstepd.cgroups.container import ContainmentError, DeviceNumber
from spurstepd.cgroups.hierarchy import Hierarchy

_WAIT_S = 5.0

_LIMITED_BY = {
    "memory": "memory is not limited",
    "cpuset": "CPUs are not confined",
    "pids": "processes are not counted",
}


def bare(key: str, reason: str) -> Hierarchy:
    """No cgroups: because the machine has none for us, or the configuration wants none."""
    return Hierarchy(key, reasons=(reason,))


def find(key: str) -> Hierarchy:
    """What can be done for the runs of the agent `key`. The caller is moved to the `supervisors` leaf.

    Every reason in it is one line: what is missing and why. Never raises for what the machine lacks.
    """
    own = mounts.places(
        mounts.parse_mountinfo(files.read("/proc/self/mountinfo")), mounts.parse_own(files.read("/proc/self/cgroup"))
    )
    if "" not in own:
        return bare(key, "runs are tracked without cgroups: no cgroup2 file system shows the cgroup of this process")
    try:
        hierarchy, reasons = _settle(key, own[""])
    except OSError as error:
        return bare(key, f"runs are tracked without cgroups: {error.filename}: {os.strerror(error.errno or 0)}")
    with _sleeper() as pid:
        hierarchy, refused = _try_v1(replace(hierarchy, reasons=tuple(reasons)), own, pid)
        hierarchy = replace(hierarchy, reasons=(*hierarchy.reasons, *refused))
        try:
            hierarchy = _try_run(hierarchy, pid)
        except (OSError, ContainmentError) as error:
            withdraw(hierarchy)
            return bare(key, f"runs are tracked without cgroups: {error}")
    base = os.path.dirname(hierarchy.node or "")
    missing = [
        f"{text}: no {name} controller, neither in {base} nor of version 1"
        for name, text in _LIMITED_BY.items()
        if not hierarchy.limits(name)
    ]
    return replace(hierarchy, reasons=(*hierarchy.reasons, *missing))


def _settle(key: str, own: str) -> tuple[Hierarchy, list[str]]:
    """Make the agent's directory in the v2 tree, move there, and pass down what controllers there are. OSError."""
    base = _base(own)
    node = f"{base}/spur-{key}"
    supervisors = f"{node}/supervisors"
    for directory in (node, supervisors):
        tree.make(directory)
    files.write(f"{supervisors}/cgroup.procs", "0")
    usable, reasons = set(), []
    for name in unified.CONTROLLERS:
        if name not in files.read(f"{base}/cgroup.controllers").split():
            continue
        try:
            for directory in (base, node):
                if name not in files.read(f"{directory}/cgroup.subtree_control").split():
                    files.write(f"{directory}/cgroup.subtree_control", f"+{name}")
            usable.add(name)
        except OSError as error:
            reasons.append(f"{name} controller: {files.refusal(f'{directory}/cgroup.subtree_control', error)}")
    return Hierarchy(key, node, own, supervisors, frozenset(usable)), reasons


def _base(own: str) -> str:
    """The cgroup to work below: our own where we may have it to ourselves, its parent otherwise.

    A cgroup that has controllers for its children cannot have processes but for the root (no internal processes,
    cgroups(7)). So where others are with us, as in a login session or a service without a scope, ours stays as it is.
    """
    if os.path.basename(own) == "supervisors" and os.path.basename(os.path.dirname(own)).startswith("spur-"):
        return os.path.dirname(os.path.dirname(own))
    is_root = not os.path.exists(f"{own}/cgroup.type")
    parent = os.path.dirname(own)
    alone = files.read(f"{own}/cgroup.procs").split() == [str(os.getpid())]
    if is_root or alone or not os.path.exists(f"{parent}/cgroup.procs"):
        return own
    return parent


@contextmanager
def _sleeper() -> Iterator[int]:
    """A child that sleeps until it is killed or this process is gone."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        yield pid
    finally:
        os.close(reading)
        os.close(writing)
        try:
            os.kill(pid, signal.SIGKILL)  # its pid cannot be another's: nobody but us can reap it
        finally:
            os.waitpid(pid, 0)


def _try_v1(hierarchy: Hierarchy, own: dict[str, str], pid: int) -> tuple[Hierarchy, list[str]]:
    """Add the v1 controllers for what v2 does not limit, each after moving `pid` into a cgroup of it."""
    refused = []
    for name in legacy.CONTROLLERS:
        if name in hierarchy.controllers or name not in own:
            continue
        node = f"{own[name]}/spur-{hierarchy.key}"
        trial = f"{node}/probe-{os.getpid()}"
        try:
            legacy.make(name, node)
            legacy.make(name, trial)
            files.write(f"{trial}/cgroup.procs", str(pid))
            files.write(f"{own[name]}/cgroup.procs", str(pid))
            os.rmdir(trial)
        except OSError as error:
            refused.append(f"{name} controller (v1): {files.refusal(trial, error)}")
            continue
        hierarchy = replace(hierarchy, v1=(*hierarchy.v1, (name, node)))
    return hierarchy, refused


def _try_run(hierarchy: Hierarchy, pid: int) -> Hierarchy:
    """Freeze and kill `pid` in a cgroup of the tree, waiting for the events. OSError, ContainmentError."""
    top = f"{hierarchy.node}/probe-{os.getpid()}"
    os.mkdir(top)
    try:
        os.mkdir(f"{top}/leaf")
        events = tree.Events(top)
        try:
            files.write(f"{top}/leaf/cgroup.procs", str(pid))
            _await(events, True, top)
            freezes = tree.freeze(top, True) and tree.freeze(top, False)
            kills = os.path.exists(f"{top}/cgroup.kill")
            filters = _filters_devices(top)
            tree.kill(top)
            _await(events, False, top)
        finally:
            events.close()
    finally:
        tree.remove(top, _WAIT_S)
    reasons = list(hierarchy.reasons)
    reasons += [] if kills else ["runs are killed one process after the other: no cgroup.kill (Linux 5.14)"]
    reasons += [] if freezes else ["runs are suspended by SIGSTOP: no cgroup.freeze (Linux 5.2)"]
    denies = hierarchy.limits("devices") or filters
    reasons += [] if denies else ["devices are not denied: neither a devices controller (v1) nor BPF filters"]
    return replace(hierarchy, kills=kills, freezes=freezes, denies_devices=denies, reasons=tuple(reasons))


def _filters_devices(top: str) -> bool:
    try:
        devicefilter.deny(top, [DeviceNumber("c", 1, 7)])
    except OSError:
        return False
    return True


def _await(events: tree.Events, populated: bool, top: str) -> None:
    """Wait for `top` to be populated or empty, by its events alone. OSError: they do not come."""
    waiting = select.poll()
    waiting.register(events.fileno(), select.POLLIN)
    while events.populated() is not populated:
        if not waiting.poll(_WAIT_S * 1000):
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), f"{top}/cgroup.events")


def withdraw(hierarchy: Hierarchy) -> None:
    """Undo `find` as far as nobody else needs it: for a launcher that leaves with no run behind it."""
    if hierarchy.node is None or hierarchy.supervisors is None:
        return
    base = os.path.dirname(hierarchy.node)
    if base == hierarchy.found_in and _is_last(hierarchy):  # a cgroup must not have controllers for us to be back in it
        for directory in (hierarchy.node, base):
            for name in hierarchy.controllers:
                with suppress(OSError):
                    files.write(f"{directory}/cgroup.subtree_control", f"-{name}")
    with suppress(OSError):
        files.write(f"{hierarchy.found_in}/cgroup.procs", "0")
    for directory in (hierarchy.supervisors, hierarchy.node, *(node for _, node in hierarchy.v1)):
        with suppress(OSError):
            os.rmdir(directory)


def _is_last(hierarchy: Hierarchy) -> bool:
    """Whether there is neither a run nor another launcher: taking controllers away would take their limits."""
    assert hierarchy.node is not None
    alone = tree.pids(hierarchy.node) == [os.getpid()]
    return alone and tree.directories(hierarchy.node) == [hierarchy.node, hierarchy.supervisors]
