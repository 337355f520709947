"""A full disk under the database: nothing is told that is not stored, the controller lives, and goes on with room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from spur.pb import common_pb2
from tests.spurctld.agent import PHASE, Agent
from tests.spurctld.site import Site

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system, which root alone may")


class SmallDisk:
    """A file system of a few pages that can be filled."""

    def __init__(self, path: Path) -> None:
        self.path, self._filler = path, path / "filler"

    def fill(self) -> None:
        with open(self._filler, "wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(b"x" * 4096)
            except OSError:
                pass

    def empty(self) -> None:
        self._filler.unlink()


@pytest.fixture
def small() -> Iterator[tuple[Site, SmallDisk]]:
    site = Site(start=False)
    site.state_dir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", site.state_dir], check=True)
    try:
        with site:
            site.start()
            try:
                yield site, SmallDisk(site.state_dir)
            finally:
                site.controller.kill()
    finally:
        site.controller.discard()
        subprocess.run(["umount", site.state_dir], check=True)


def test_calls_are_refused_and_nothing_is_forgotten(small: tuple[Site, SmallDisk]) -> None:
    site, disk = small
    user = site.user(1000)
    with Agent(site) as agent:
        run = agent.wait_launched(user.submit())
        agent.report(run, PHASE.STARTED)
        told = {run[0], *(user.submit(hold=True) for _ in range(3))}
        disk.fill()
        refusals = []
        for _ in range(400):  # what room the log of the database has is used up first
            try:
                told.add(user.submit(hold=True, script=b"#!/bin/sh\n" + b"#" * 3000))
            except grpc.RpcError as error:
                refusals.append(error)
                break
        assert refusals, "the disk was never full"
        answer = refusals[0]
        assert answer.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
        assert "full" in answer.details()  # type: ignore[attr-defined]
        assert set(user.jobs()) == told, "what is shown is what is stored"
        with pytest.raises(grpc.RpcError):
            agent.report(run, PHASE.ENDED, 7 << 8)
        with pytest.raises(grpc.RpcError):
            user.cancel(run[0])
        assert user.job(run[0]).state == common_pb2.RUNNING
        assert site.controller.running

        disk.empty()
        site.controller.wait_event("started_over")
        assert agent.report(run, PHASE.ENDED, 7 << 8) == 1
        assert user.job(run[0]).exit_code == 7 << 8
        new = user.submit()
        assert new not in told
        assert agent.calls.count(("LaunchRun", run)) == 1


def test_a_kill_while_the_disk_is_full_loses_nothing(small: tuple[Site, SmallDisk]) -> None:
    site, disk = small
    told = {site.user().submit(hold=True) for _ in range(20)}
    disk.fill()
    try:
        for _ in range(400):
            told.add(site.user().submit(hold=True, script=b"#!/bin/sh\n" + b"#" * 3000))
    except grpc.RpcError:
        pass
    site.controller.kill()
    site.hang_up()
    disk.empty()
    site.start()
    assert set(site.user().jobs()) == told
