"""Whoever looks after the cluster while it is being broken: drained nodes are resumed, held jobs released.

As an operator would who reads the reason. Every reason is written down; a drain without one is a fault.
"""

from __future__ import annotations

import subprocess
import threading
from collections import Counter

from tests.cluster import Cluster

_EVERY_S = 4.0
_IMPATIENT = {"SPUR_CONNECT_SECS": "1"}


class Janitor:
    """A thread. What it did is read when it has ended."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="janitor")
        self.drains: Counter[tuple[str, str]] = Counter()  # node and reason
        self.releases: Counter[str] = Counter()  # why the jobs were held
        self.complaints: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(_EVERY_S):
            try:
                self._resume_nodes()
                self._release_jobs()
            except (AssertionError, subprocess.TimeoutExpired):
                pass  # the controller is away; the next round finds what there is

    def _resume_nodes(self) -> None:
        for name, node in self._nodes().items():
            if "DRAIN" not in node["State"]:
                continue
            reason = node.get("Reason", "")
            self.drains[name, reason] += 1
            if not reason:
                self.complaints.append(f"{name} is {node['State']} and nobody says why")
            self._cluster.run("scontrol", "update", f"nodename={name}", "state=resume", env=_IMPATIENT)

    def _nodes(self) -> dict[str, dict[str, str]]:
        self._cluster.run("scontrol", "ping", env=_IMPATIENT, check=True)
        return self._cluster.nodes()

    def _release_jobs(self) -> None:
        listed = self._cluster.run("squeue", "-h", "-t", "PD", "-o", "%i %r", env=_IMPATIENT, check=True).stdout
        for line in listed.splitlines():
            job, _, reason = line.partition(" ")
            if reason.startswith("JobHeld") or "held" in reason or reason == "JobHoldMaxRequeue":
                self.releases[reason] += 1
                self._cluster.run("scontrol", "release", job, env=_IMPATIENT)
