"""What the doctor makes of what it sees; and the command as a whole, on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spur.config import Config, load
from spur.doctor import cgroups, setup, unit
from spur.doctor.finding import Finding, Grade

OURS = {
    "LoadState": "loaded",
    "NeedDaemonReload": "no",
    "KillMode": "process",
    "Type": "notify",
    "Restart": "on-failure",
    "FileDescriptorStoreMax": "8192",
    "TasksMax": "infinity",
    "WatchdogUSec": "2min",
}
HYBRID = """\
30 24 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:4 - cgroup2 cgroup2 rw
31 24 0:27 / /sys/fs/cgroup/memory rw shared:5 - cgroup cgroup rw,memory
32 24 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:6 - cgroup cgroup rw,cpu,cpuacct
40 24 0:40 / /tmp rw - tmpfs tmpfs rw
"""


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_the_unit_as_it_ships_is_fine() -> None:
    assert only(list(unit.judge(OURS, True))).grade is Grade.OK


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"KillMode": "control-group"}, "KillMode=control-group"),
        ({"Type": "simple"}, "taken for done"),
        ({"Restart": "no"}, "until somebody starts it"),
        ({"FileDescriptorStoreMax": "0"}, "everything died at once"),
        ({"TasksMax": "4915"}, "TasksMax=4915"),
        ({"WatchdogUSec": "0"}, "hangs"),
        ({"NeedDaemonReload": "yes"}, "daemon-reload"),
    ],
)
def test_each_weakness_of_the_unit_is_one_line_with_its_cost(change: dict[str, str], text: str) -> None:
    findings = [one for one in unit.judge({**OURS, **change}, True) if one.grade is not Grade.OK]
    assert only(findings).grade is Grade.LACKING
    assert text in only(findings).text


def test_without_systemd_run_the_unit_is_broken() -> None:
    assert only(list(unit.judge(OURS, False))).grade is Grade.BROKEN


def test_a_unit_that_is_not_there_is_said_and_nothing_more() -> None:
    assert "not-found" in only(list(unit.judge({"LoadState": "not-found"}, True))).text


def test_needrestart_without_a_word_about_spur_is_lacking(tmp_path: Path) -> None:
    assert list(unit.needrestart(tmp_path / "none")) == []
    (tmp_path / "conf.d").mkdir()
    assert only(list(unit.needrestart(tmp_path))).grade is Grade.LACKING
    (tmp_path / "conf.d/spur.conf").touch()
    assert list(unit.needrestart(tmp_path)) == []


def test_both_versions_of_cgroups_are_found_among_the_mounts() -> None:
    unified, legacy = cgroups.parse_mounts(HYBRID)
    assert unified == Path("/sys/fs/cgroup/unified")
    assert legacy == {"memory": Path("/sys/fs/cgroup/memory"), "cpu": Path("/sys/fs/cgroup/cpu,cpuacct")}


@pytest.mark.parametrize(
    ("unified", "legacy", "grade", "text"),
    [
        ({"memory", "cpuset", "pids", "cpu", "io"}, set(), Grade.OK, "all of version 2"),
        ({"hugetlb"}, {"memory", "cpuset", "pids", "cpu"}, Grade.OK, "of version 1: memory, cpuset"),
        ({"cpuset", "pids", "cpu"}, set(), Grade.LACKING, "OUT_OF_MEMORY is not known"),
    ],
)
def test_controllers_are_counted_over_both_versions(
    unified: set[str], legacy: set[str], grade: Grade, text: str
) -> None:
    finding = cgroups.judge_controllers(unified, legacy)
    assert finding.grade is grade
    assert text in finding.text


def test_a_clock_that_nothing_keeps_is_lacking() -> None:
    assert setup.judge_clock(0x40).grade is Grade.LACKING
    assert setup.judge_clock(0x2001).grade is Grade.OK


@pytest.mark.parametrize(("mode", "grade"), [(0o711, Grade.OK), (0o777, Grade.BROKEN), (0o1777, Grade.OK)])
def test_a_spool_that_others_can_write_to_is_broken(tmp_path: Path, mode: int, grade: Grade) -> None:
    """R40."""
    tmp_path.chmod(mode)
    assert setup.judge_owner(tmp_path, tmp_path, tmp_path.stat()).grade is grade
    tmp_path.chmod(0o700)


def test_a_socket_path_too_long_for_other_clients_is_said() -> None:
    config = Config(cluster_name="lab")
    assert setup.socket_paths(config).grade is Grade.OK


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try what a node does")
def test_the_command_prints_a_line_for_each_thing_and_fails_where_something_is_broken(tmp_path: Path) -> None:
    key = tmp_path / "auth.key"
    key.write_bytes(bytes(32))
    key.chmod(0o644)
    conf = tmp_path / "spur.toml"
    conf.write_text(
        f'cluster_name = "lab"\n[auth]\nkey_file = "{key}"\n[agent]\nstate_dir = "{tmp_path}/n1"\n'
        'listen = "127.0.0.1:0"\ncontroller = ["127.0.0.1:1"]\n'
    )
    assert load(conf).cluster_name == "lab"
    doctor = [sys.executable, "-c", "from spur.commands.spur import main; main()", "doctor", "-f", str(conf)]
    done = subprocess.run(doctor, capture_output=True, text=True)
    lines = {line[8:].partition(":")[0]: line for line in done.stdout.splitlines()}
    assert {"configuration", "key file", "clock", "port", "controller", "spool", "pidfd", "cgroup tree"} <= set(lines)
    assert lines["key file"].startswith("broken")
    assert "mode 0644" in lines["key file"]
    assert lines["controller"].startswith("lacking")
    assert done.returncode == 1
    key.chmod(0o600)
    assert subprocess.run(doctor, capture_output=True).returncode == 0


def test_a_command_that_does_not_exist_is_refused() -> None:
    run = [sys.executable, "-c", "from spur.commands.spur import main; main()", "surgeon"]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "spur: error: there is no command surgeon; spur --help lists them\n"
