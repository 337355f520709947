"""Reading what /proc says of cgroups, with the texts of several kinds of machines."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from spurstepd.cgroups.mounts import Mount, escape, parse_mountinfo, parse_own, place, places, unescape

UNIFIED = (
    "25 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"
    "31 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
    "0::/spur.slice/spur-steps.scope\n",
)
HYBRID = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw shared:4 master:2 - cgroup cgroup rw,memory\n"
    "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    "5:cpu,cpuacct:/\n4:memory:/system.slice/a.service\n1:name=systemd:/system.slice/a.service\n0::/system.slice/a.service\n",
)
CONTAINER = (
    "735 726 0:32 /docker/c0ffee /sys/fs/cgroup/memory ro,nosuid - cgroup memory rw,memory\n"
    "736 726 0:33 /docker/c0ffee /sys/fs/cgroup/pids ro,nosuid - cgroup cgroup rw,pids\n",
    "9:pids:/docker/c0ffee\n4:memory:/docker/c0ffee/child\n0::/\n",
)


def test_a_unified_machine_has_one_place() -> None:
    assert _places(*UNIFIED) == {"": "/sys/fs/cgroup/spur.slice/spur-steps.scope"}


def test_a_hybrid_machine_has_one_place_for_each_controller() -> None:
    assert _places(*HYBRID) == {
        "": "/sys/fs/cgroup/unified/system.slice/a.service",
        "memory": "/sys/fs/cgroup/memory/system.slice/a.service",
        "cpu": "/sys/fs/cgroup/cpu,cpuacct",
        "cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
        "name=systemd": "/sys/fs/cgroup/systemd/system.slice/a.service",
    }


def test_a_container_that_shows_a_part_is_read_relative_to_that_part() -> None:
    assert _places(*CONTAINER) == {
        "memory": "/sys/fs/cgroup/memory/child",
        "pids": "/sys/fs/cgroup/pids",
    }


def test_what_a_mount_does_not_show_has_no_place() -> None:
    mount = Mount("/sys/fs/cgroup", "/docker/c0ffee", 2, frozenset())
    assert place(mount, "/docker/c0ffee") == "/sys/fs/cgroup"
    assert place(mount, "/docker/c0ffee/a") == "/sys/fs/cgroup/a"
    assert place(mount, "/docker/c0ffee2/a") is None
    assert place(mount, "/system.slice") is None
    assert place(Mount("/sys/fs/cgroup", "/", 2, frozenset()), "/../outside") is None


def test_a_removed_cgroup_is_read_without_its_mark() -> None:
    assert parse_own("0::/a/b (deleted)\n") == {"": "/a/b"}


def test_names_with_colons_and_blanks_are_read() -> None:
    assert parse_own("0::/machine.slice/a:b c\n") == {"": "/machine.slice/a:b c"}
    (mount,) = parse_mountinfo("31 23 0:26 / /mnt/my\\040groups rw - cgroup2 none rw\n")
    assert mount.point == "/mnt/my groups"


@settings(derandomize=True)
@given(st.text())
def test_an_escaped_path_is_one_word_and_comes_back(path: str) -> None:
    assert unescape(escape(path)) == path
    assert not any(character.isspace() for character in escape(path))


@settings(derandomize=True)
@given(st.text(), st.text())
def test_no_text_makes_the_parsers_raise(mountinfo: str, own: str) -> None:
    _places(mountinfo, own)


def _places(mountinfo: str, own: str) -> dict[str, str]:
    return places(parse_mountinfo(mountinfo), parse_own(own))
