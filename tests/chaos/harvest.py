"""What is found when a chaos run has come to rest, as the facts that `audit` judges."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spur.client import connect
from spur.pb import common_pb2, spurctld_pb2
from tests.chaos import processes
from tests.chaos.audit import Facts, Job, Shown, Trace
from tests.chaos.requests import Request
from tests.chaos.world import CPUS, World
from tests.cluster import Agent, Cluster, parse_record
from tests.leftovers import cgroups_named, sockets_below

_NAME = re.compile(r"chaos-(\d+)")


def gather(world: World) -> Facts:
    """Needs the controller and all agents up, and the janitor stopped."""
    shown = _shown(world.cluster)
    lines = list(_lines(world.traces))
    return Facts(
        jobs=[_job(request, shown) for request in world.requests.jobs.values()],
        traces=[trace for trace in map(_trace, lines) if trace is not None],
        drains=_drains(world),
        silences=world.silences,
        deaths=world.deaths,
        leftovers=[*_daemons_left(lines), *(text for agent in world.cluster.agents.values() for text in _left(agent))],
        surprises=[
            *world.keeper.surprises,
            *world.janitor.complaints,
            *_bookings(world.cluster),
            *_crashes(world.cluster),
        ],
        strangers=[one for name, records in shown.items() if not _known(name, world) for one in records],
    )


# -- jobs


def _shown(cluster: Cluster) -> dict[str, list[Shown]]:
    """Every job, by its name: what scontrol prints, and from the controller who saw the exit."""
    sources = _sources(cluster)
    found: dict[str, list[Shown]] = {}
    for line in cluster.run("scontrol", "show", "job", "-o", check=True).stdout.splitlines():
        if not (record := parse_record(line)):
            continue
        number = int(record["JobId"])
        source, attempt = sources.get(number, ("", 0))
        shown = Shown(
            number, record["JobState"], record["ExitCode"], record.get("Reason", "").replace("_", " "), source, attempt
        )
        found.setdefault(record["JobName"], []).append(shown)
    return found


def _sources(cluster: Cluster) -> dict[int, tuple[str, int]]:
    with connect(cluster.command_env()) as controller:
        reply = controller.call(controller.stub.ListJobs, spurctld_pb2.ListJobsRequest())
    return {one.job_id: (_source(one), one.attempt) for one in reply.jobs}


def _source(info: spurctld_pb2.JobInfo) -> str:
    if not info.HasField("exit"):
        return ""
    return common_pb2.ExitSource.Name(info.exit.source).lower()


def _job(request: Request, shown: dict[str, list[Shown]]) -> Job:
    return Job(request.plan, request.submitted, request.cancelled, tuple(shown.get(request.plan.name, ())))


def _known(name: str, world: World) -> bool:
    found = _NAME.fullmatch(name)
    return found is not None and int(found[1]) in world.requests.jobs


# -- traces


def _lines(traces: Path) -> Iterator[tuple[str, int, list[str]]]:
    """Who, job and words of each line."""
    for path in sorted(traces.iterdir()):
        who, _, job = path.name.partition(".")
        for line in path.read_text().splitlines():
            yield who, int(job), line.split()


def _trace(line: tuple[str, int, list[str]]) -> Trace | None:
    """The line of somebody who began, ended or did something between; None: it names a process that was left."""
    who, job, [word, *_, run, node, at_s] = line
    return None if word == "left" else Trace(who, word, job, run, node, float(at_s))


# -- what is left


def _daemons_left(lines: list[tuple[str, int, list[str]]]) -> Iterator[str]:
    """Processes that a job left behind, by pid and start."""
    for _, job, words in lines:
        if words[0] == "left" and len(words) == 6 and processes.start_ticks(int(words[1])) == words[2]:
            yield f"process {words[1]} ({processes.command_line(int(words[1]))}) of job {job} lives"


def _left(agent: Agent) -> Iterator[str]:
    """What stands on a node that has no runs."""
    for directory in (agent.state_dir / "runs", agent.state_dir / "quarantine", agent.runtime_dir / "runs"):
        if directory.is_dir():
            yield from (f"{agent.name}: {path}" for path in directory.iterdir())
    yield from (f"{agent.name}: process {held}" for held in processes.supervisors(agent))
    if len(found := processes.launchers(agent)) != 1:
        yield f"{agent.name}: {len(found)} launchers"
    for top in cgroups_named({agent.cgroup_name}):
        yield from (f"{agent.name}: cgroup {path}" for path in top.iterdir() if re.fullmatch(r"\d+\.\d+", path.name))
    sockets = {path.name for path in sockets_below(agent.runtime_dir)}
    yield from (f"{agent.name}: socket {name}" for name in sockets if re.fullmatch(r"\d+\.\d+\.sock", name))


def _bookings(cluster: Cluster) -> Iterator[str]:
    for name, node in cluster.nodes().items():
        if node["State"] != "IDLE" or node["CPUAlloc"] != "0" or node["CPUTot"] != str(CPUS):
            about = {key: node.get(key) for key in ("State", "CPUAlloc", "CPUTot", "AllocMem", "Reason")}
            yield f"{name} is not as it was at the begin: {about}"


# -- what the logs say


def _drains(world: World) -> list[tuple[str, str]]:
    drained = world.cluster.controller.events("node_drained", since_start=False)
    return [(event["node"], event["reason"]) for event in drained] + list(world.janitor.drains)


def _crashes(cluster: Cluster) -> Iterator[str]:
    """Exceptions that nobody expected."""
    for daemon in (cluster.controller, *cluster.agents.values()):
        for event in daemon.events(since_start=False):
            if "exception" in event:
                yield f"{daemon.name} logged {json.dumps(event)[:3000]}"
    for agent in cluster.agents.values():
        for event in _supervisors_log(agent):
            if event.get("event") == "supervisor_crashed":
                yield f"{agent.name} logged {json.dumps(event)}"


def _supervisors_log(agent: Agent) -> Iterator[dict[str, Any]]:
    try:
        text = (agent.state_dir / "spurstepd.log").read_text(errors="replace")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # torn by a full disk
        if isinstance(event, dict):
            yield event


def complaints(world: World) -> Counter[str]:
    """What commands of users said when they failed, without the numbers of jobs."""
    said = (text for request in world.requests.jobs.values() for text in request.said)
    return Counter(re.sub(r"\d+", "N", text) for text in said)
