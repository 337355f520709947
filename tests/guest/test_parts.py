"""The parts of a guest that need no guest to be looked at."""

from __future__ import annotations

from pathlib import Path

from . import debian, initrd, payload

TARGETS = """\
Debian|bookworm|http://archive/debian/|bookworm|main
Debian|bookworm-updates|http://archive/debian/|bookworm-updates|main
Debian|trixie|http://archive/debian/|trixie|main
Somebody|bookworm|http://elsewhere/|bookworm|main
Debian|bookworm|http://archive/debian/|bookworm|main
"""


def module(depends: str) -> bytes:
    return b"\x7fELF\0license=GPL\0depends=" + depends.encode() + b"\0name=x\0"


def test_archives_are_debians_own_of_this_release_each_once() -> None:
    found = debian.parse_targets(TARGETS, "bookworm")
    assert [archive.release for archive in found] == ["bookworm", "bookworm-updates"]
    assert found[0].line().endswith("http://archive/debian/ bookworm main")


def test_modules_come_after_what_they_depend_on(tmp_path: Path) -> None:
    (tmp_path / "virtio_blk.ko").write_bytes(module("virtio,virtio_ring"))
    (tmp_path / "virtio_ring.ko").write_bytes(module("virtio"))
    (tmp_path / "virtio.ko").write_bytes(module(""))
    found = initrd.modules_for(tmp_path, ["virtio_blk", "built_in", "virtio"])
    assert [name for name, _ in found] == ["virtio", "virtio_ring", "virtio_blk"]


def test_the_ram_disk_is_an_aligned_archive_with_an_end() -> None:
    archive = initrd.build(b"busybox", [("virtio", b"12345")])
    names = [line for line in (b"init", b"bin/busybox", b"modules/00-virtio.ko", b"TRAILER!!!") if line in archive]
    assert len(names) == 4
    assert len(archive) % 4 == 0
    assert archive.startswith(b"070701")


def test_the_guests_packages_are_ours_and_what_they_require() -> None:
    names = {distribution.metadata["Name"].lower() for distribution in payload.requirements(["spur[test]"])}
    assert {"spur", "grpcio", "structlog", "pytest", "hypothesis"} <= names
    assert not names & {"mypy", "ruff", "hatchling"}
