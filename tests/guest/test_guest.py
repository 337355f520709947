"""What a guest is, seen from inside."""

from __future__ import annotations

import pytest

from .machine import Machine

pytestmark = pytest.mark.timeout(900)

LOOK = """#!/bin/sh
stat -f -c %T /sys/fs/cgroup
cat /sys/fs/cgroup/cgroup.controllers
cat /proc/1/comm
python3 -c 'import grpc, prctl, spur; print(spur.__file__)'
exit 7
"""


def test_a_guest_runs_systemd_on_pure_cgroup_v2_with_controllers_and_tells_how_its_script_ended(
    guest: Machine,
) -> None:
    result = guest.run(LOOK)
    kind, controllers, init, package = result.output.splitlines()
    assert kind == "cgroup2fs"
    assert {"cpuset", "cpu", "memory", "pids"} <= set(controllers.split())
    assert init == "systemd"
    assert package == "/opt/guest/checkout/spur/__init__.py"
    assert result.exit_code == 7
