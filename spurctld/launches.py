"""What an agent is told of a run that it shall start: from the job's record and what the user submitted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from spur import hostlist
from spur.pb import common_pb2, spurd_pb2
from spurctld import messages
from spurctld.core.records import Job, Run
from spurctld.core.states import UNLIMITED


@dataclass(frozen=True, slots=True)
class Site:
    """What every launch carries."""

    cluster: str
    controller_host: str
    kill_wait_s: float


def launch_request(
    site: Site, job: Job, run: Run, node: str, description: bytes, bulk: bytes, stimulus: str
) -> spurd_pb2.LaunchRunRequest:
    """`description` and `bulk` together are what the user submitted."""
    parts = list(run.parts.values())
    share = run.parts[node].share
    request = spurd_pb2.LaunchRunRequest(
        run=messages.run_id(run.key),
        uid=job.spec.uid,
        gid=job.spec.gid,
        user=job.spec.user,
        partition=job.spec.partition,
        nodes=hostlist.compress(run.parts),
        node_index=list(run.parts).index(node),
        num_nodes=len(parts),
        cpus=share.resources.cpus,
        memory_mb=share.resources.memory_mb,
        gres=messages.gres_counts(share.resources.gres),
        tasks=share.tasks,
        time_limit_s=UNLIMITED if job.spec.time_limit_s is None else job.spec.time_limit_s,
        started_at=run.started_at,
        restarts=job.restarts,
        may_start=len(parts) == 1,
        cluster_name=site.cluster,
        controller_host=site.controller_host,
        stimulus=stimulus,
        kill_wait_s=round(site.kill_wait_s),
        tasks_per_node=counts(part.share.tasks for part in parts),
        cpus_per_node=counts(part.share.resources.cpus for part in parts),
    )
    request.job.MergeFromString(description)
    request.job.MergeFromString(bulk)
    return request


def split(job: common_pb2.JobDescription) -> tuple[bytes, bytes]:
    """What is often asked for, and what is large and only needed at the start: script and environment."""
    bulk = common_pb2.JobDescription(script=job.script, environment=job.environment)
    light = common_pb2.JobDescription()
    light.CopyFrom(job)
    light.ClearField("script")
    light.ClearField("environment")
    return light.SerializeToString(), bulk.SerializeToString()


def counts(values: Iterable[int]) -> str:
    """Slurm's `2(x3),1` for 2, 2, 2, 1."""
    runs = ((value, len(list(group))) for value, group in groupby(values))
    return ",".join(f"{value}(x{times})" if times > 1 else str(value) for value, times in runs)
