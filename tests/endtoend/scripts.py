"""Batch scripts that several tests use, and what tells how far they are."""

from __future__ import annotations

from pathlib import Path

from tests.cluster import Cluster, Job
from tests.patience import wait_for


def waiting(cluster: Cluster, code: int = 7) -> str:
    """A script that says that it runs, waits until `work/go` is there, and exits with `code`."""
    return f"""
        echo ran >> {cluster.work}/ran.$SLURM_JOB_ID
        while [ ! -e {cluster.work}/go ]; do sleep 0.05; done
        exit {code}
    """


def ran(cluster: Cluster, job: int) -> int:
    """How often such a script began."""
    path = cluster.work / f"ran.{job}"
    return len(path.read_text().split()) if path.exists() else 0


def wait_ran(cluster: Cluster, *jobs: int) -> None:
    wait_for(lambda: all(ran(cluster, job) for job in jobs), f"the scripts of {jobs} run", explain=cluster.story)


def let_go(cluster: Cluster) -> None:
    (cluster.work / "go").touch()


def lives(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_gone(pid: int) -> None:
    wait_for(lambda: not lives(pid), f"process {pid} has gone")


def wait_state(cluster: Cluster, node: str, *words: str) -> Job:
    """The node, once its state has all these words in it."""

    def look() -> Job | None:
        shown = cluster.nodes()[node]
        return shown if all(word in shown["State"] for word in words) else None

    return wait_for(look, f"{node} is {' '.join(words)}", explain=cluster.story)


def wait_idle(cluster: Cluster, node: str = "n1") -> None:
    assert wait_state(cluster, node, "IDLE")["CPUAlloc"] == "0"
