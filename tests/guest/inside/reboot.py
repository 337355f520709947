"""R26: the machine loses its power under a job. Run twice in one guest: before the reboot, which it does, and after.

The ledger says what is owed: the run is over, its epilog runs once, in a cgroup of this boot, and the node is free.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.guest.inside.conftest import PACKAGE
from tests.guest.inside.node import Job, run, submit, until

MEMORY = Path("/var/lib/reboot.json")
EPILOG = Path("/etc/spur/epilog")
EPILOGS = Path("/var/lib/epilogs")


def before() -> None:
    run("dpkg", "--force-unsafe-io", "--install", str(PACKAGE), timeout_s=600)
    EPILOG.write_text(f"#!/bin/sh\necho $SLURM_JOB_ID $(cut -d: -f3 /proc/self/cgroup) >>{EPILOGS}\n")
    EPILOG.chmod(0o755)
    with open("/etc/spur/spur.toml", "a") as config:
        config.write(f'\n[hooks]\nepilog = "{EPILOG}"\n')
    run("systemctl", "enable", "--now", "spurctld", "spurd")
    job = submit(Path("/var/tmp"), "exit 7", "--no-requeue")
    MEMORY.write_text(json.dumps({"job": job.number}))
    os.sync()
    Path("/proc/sysrq-trigger").write_text("b")


def after() -> None:
    number = json.loads(MEMORY.read_text())["job"]
    job = Job(number, Path("/nowhere"))
    ended = job.conclude()
    assert ended == ("NODE_FAIL", "0:1"), f"{ended}\n{run('scontrol', 'show', 'job', str(number))}{told_by_daemons()}"
    ((told, cgroup),) = [line.split() for line in EPILOGS.read_text().splitlines()]
    assert told == str(number), told_by_daemons()
    assert f"/{number}.1/epilog" in cgroup
    until("the node is idle", lambda: "idle" in run("sinfo", "--noheader", "--format=%t"))


def told_by_daemons() -> str:
    said = run("journalctl", "--no-pager", "--output=cat", "--boot", "--unit=spurctld", "--unit=spurd")
    return said + Path("/var/lib/spur/spurd/spurstepd.log").read_text()


if __name__ == "__main__":
    after() if MEMORY.exists() else before()
    sys.exit(0)
