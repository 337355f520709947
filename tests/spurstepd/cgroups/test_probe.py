"""What the probe finds and what it leaves, each in a process of its own as a launcher is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spurstepd.cgroups import Kind, Limits, probe

LAUNCHER = """
import json, os, sys
from spurstepd.cgroups import probe
if len(sys.argv) > 2:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
found = probe.find(sys.argv[1])
own = open("/proc/self/cgroup").read()
print(json.dumps({"kind": found.kind.value, "node": found.node, "v1": found.v1, "reasons": found.reasons, "own": own}))
sys.stdout.flush()
sys.stdin.readline()
probe.withdraw(found)
"""


def launch(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_launcher_moves_to_a_leaf_of_its_own_and_leaves_nothing() -> None:
    launcher = launch(f"probe{os.getpid()}")
    assert launcher.stdout is not None
    found = json.loads(launcher.stdout.readline())
    if found["kind"] == Kind.BARE.value:
        launcher.communicate("\n")
        pytest.skip(f"no cgroups for runs here: {found['reasons']}")
    assert f"spur-probe{os.getpid()}/supervisors\n" in found["own"]
    assert sorted(os.listdir(found["node"]))[-1] == "supervisors"
    assert not [name for name in os.listdir(found["node"]) if name.startswith("probe")]
    places = [found["node"], *(node for _, node in found["v1"])]
    assert all(Path(place).is_dir() for place in places)
    launcher.communicate("\n")
    assert not any(Path(place).exists() for place in places)


def test_two_launchers_of_one_agent_share_its_directory_and_the_last_one_removes_it() -> None:
    first, second = launch(f"share{os.getpid()}"), launch(f"share{os.getpid()}")
    assert first.stdout is not None
    assert second.stdout is not None
    nodes = {json.loads(one.stdout.readline())["node"] for one in (first, second) if one.stdout is not None}
    if nodes == {None}:
        first.communicate("\n")
        second.communicate("\n")
        pytest.skip("no cgroups for runs here")
    (node,) = nodes
    first.communicate("\n")
    assert Path(node).is_dir()
    second.communicate("\n")
    assert not Path(node).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to drop to nobody")
def test_without_permission_nothing_is_contained_and_the_reason_names_the_file() -> None:
    output = launch(f"nobody{os.getpid()}", "as nobody").communicate("\n")[0]
    found = json.loads(output)
    assert found["kind"] == Kind.BARE.value
    assert len(found["reasons"]) == 1
    assert found["reasons"][0].startswith("runs are tracked without cgroups: ")


def test_bare_needs_no_probe_and_says_why() -> None:
    hierarchy = probe.bare("key", "cgroup = none in the configuration")
    assert hierarchy.kind is Kind.BARE
    assert hierarchy.reasons == ("cgroup = none in the configuration",)
    assert not hierarchy.limits("memory")
    probe.withdraw(hierarchy)
    assert Limits(memory_bytes=1).memory_limit_bytes == 30 << 20


IMPORTING_NOTHING = """
import os, signal, sys
from spurstepd import cgroups
from spurstepd.ids import RunId

class Refusal:
    def find_spec(self, name, path=None, target=None):
        sys.exit(f"imported {name}")

sys.meta_path.insert(0, Refusal())
found = cgroups.probe.find(sys.argv[1])
limits = cgroups.Limits(cpus=(0,), memory_bytes=1 << 28, pids_max=50, denied_devices=(cgroups.DeviceNumber("c", 1, 7),))
for hierarchy in (found, cgroups.probe.bare(sys.argv[1], "for the test")):
    made = cgroups.create(hierarchy, RunId(1, 1), limits)
    made.leaf("batch").close()
    cgroups.standing(hierarchy)
    place = cgroups.reopen(made.recorded)
    place.events_fd(), place.populated(), place.pids(), place.left(), place.usage(), place.oom_kills()
    place.freeze(), place.thaw(), place.signal(signal.SIGTERM), place.kill_all()
    assert place.remove(1.0)
cgroups.probe.withdraw(found)
print("done")
"""


def test_nothing_is_imported_once_the_package_is_there() -> None:
    """A supervisor goes on with the installation replaced or removed under it."""
    arguments = [sys.executable, "-c", IMPORTING_NOTHING, f"import{os.getpid()}"]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
