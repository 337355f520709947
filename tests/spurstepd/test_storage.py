"""Records that are broken, planted or have no room (R12, R20, R21, R40)."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spurstepd import ledger, manifest, slot
from spurstepd.ids import RunId
from spurstepd.launchplan import Hooks
from spurstepd.ledger import Duty, Exit, ExitSource, Manifest, Process, Progress
from spurstepd.manifest import ManifestUnreadable
from spurstepd.rundir import SLOT_BYTES, RunDir
from tests.patience import wait_for
from tests.spurstepd.conftest import Bench, exit_of

LEADER = Process(4711, 99, 1234)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    path = tmp_path / "42.1"
    path.mkdir()
    manifest.write_file(path / "exit", bytes(SLOT_BYTES), 0o600)
    return RunDir(path)


def record(**changes: object) -> Manifest:
    first = Manifest(
        run=RunId(42, 1), boot_id="b", nonce="n", uid=0, obligations=ledger.owed(prolog=True, epilog=True, at=1.0)
    )
    return replace(first, **changes)  # type: ignore[arg-type]


def test_manifest_comes_back_as_it_was(run_dir: RunDir) -> None:
    told = record(
        leader=LEADER, supervisor=LEADER, cgroup="/x", deadline_boottime=1.5,
        exit=Exit(ExitSource.WAITID, 9, 2.0, 1, ledger.Usage(0.5, 0.25, 7, 1, 2, 3), "detail"),
        granted=ledger.Grant((0, 3), 100, (ledger.Device("gpu", "a100", 1, "/dev/null"),)),
        verdict=ledger.Verdict(ledger.VerdictKind.TIMEOUT, 0, 3.0, "limit"), extra={"later": [1]},
    )  # fmt: skip
    manifest.store(run_dir, told)
    assert manifest.load(run_dir) == told
    assert run_dir.manifest.stat().st_mode & 0o777 == 0o600


def test_manifest_cut_at_every_byte_is_refused_in_one_line(run_dir: RunDir) -> None:
    manifest.store(run_dir, record())
    whole = run_dir.manifest.read_bytes()
    for size in range(len(whole)):
        run_dir.manifest.write_bytes(whole[:size])
        with pytest.raises(ManifestUnreadable) as refusal:
            manifest.load(run_dir)
        assert str(run_dir.manifest) in str(refusal.value)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("key", sorted(ledger.encode(record())))
def test_every_field_is_checked_by_name(run_dir: RunDir, key: str) -> None:
    values = {**ledger.encode(record()), key: {"no": "such"}}
    manifest.write_file(run_dir.manifest, manifest.dump(values), 0o600)
    with pytest.raises(ManifestUnreadable, match=f"manifest.{key}"):
        manifest.load(run_dir)


def plant_fifo(path: Path) -> None:
    os.mkfifo(path)


def plant_symlink(path: Path) -> None:
    target = path.with_name("elsewhere")
    target.write_bytes(manifest.dump(ledger.encode(record())))
    path.symlink_to(target)


def plant_directory(path: Path) -> None:
    path.mkdir()


def plant_gibibyte(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 30)


def plant_others(path: Path) -> None:
    manifest.write_file(path, manifest.dump(ledger.encode(record(run=RunId(43, 1)))), 0o600)


def plant_writable(path: Path) -> None:
    manifest.write_file(path, manifest.dump(ledger.encode(record())), 0o666)


def plant_newer(path: Path) -> None:
    values = {**ledger.encode(record()), "schema": ledger.SCHEMA + 1}
    manifest.write_file(path, manifest.dump(values), 0o600)


PLANTS = {
    plant_fifo: "not a regular file",
    plant_symlink: "cannot be opened",
    plant_directory: "not a regular file",
    plant_gibibyte: "1073741824 bytes",
    plant_others: "record of run 43.1",
    plant_writable: "written by others",
    plant_newer: "knows up to",
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda one: one.__name__)
def test_what_is_no_record_is_refused_without_blocking(run_dir: RunDir, plant: object) -> None:
    plant(run_dir.manifest)  # type: ignore[operator]
    began = time.monotonic()
    with pytest.raises(ManifestUnreadable, match=PLANTS[plant]):  # type: ignore[index]
        manifest.load(run_dir)
    assert time.monotonic() - began < 5


def test_fields_of_a_later_minor_version_are_kept(run_dir: RunDir) -> None:
    values = {**ledger.encode(record()), "later": {"x": 1}}
    manifest.write_file(run_dir.manifest, manifest.dump(values), 0o600)
    manifest.store(run_dir, manifest.load(run_dir))
    assert json.loads(run_dir.manifest.read_bytes())["later"] == {"x": 1}


def test_slot_torn_at_every_byte_reads_as_empty(run_dir: RunDir) -> None:
    ended = Exit(ExitSource.WAITID, 7 << 8, 5.0)
    slot.write_exit(run_dir, LEADER, ended)
    assert slot.read_exit(run_dir, LEADER) == ended
    whole = run_dir.slot.read_bytes()
    length = len(whole[: SLOT_BYTES // 2].rstrip(b"\0"))
    for size in range(length):
        run_dir.slot.write_bytes(whole[:size] + bytes(SLOT_BYTES - size))
        assert slot.read_exit(run_dir, LEADER) is None


def test_slot_of_another_leader_is_not_taken_r17(run_dir: RunDir) -> None:
    slot.write_exit(run_dir, LEADER, Exit(ExitSource.WAITID, 0, 5.0))
    assert slot.read_exit(run_dir, replace(LEADER, inode=100)) is None
    assert slot.read_exit(run_dir, None) is None


def test_spare_counts_where_it_is_later(run_dir: RunDir) -> None:
    manifest.store(run_dir, record(revision=3))
    slot.write_spare(run_dir, record(revision=4, drain="later"))
    assert slot.load_latest(run_dir).drain == "later"
    manifest.store(run_dir, record(revision=5))
    assert slot.load_latest(run_dir).revision == 5


def test_both_halves_of_the_slot_are_their_own(run_dir: RunDir) -> None:
    ended = Exit(ExitSource.WAITID, 7 << 8, 5.0)
    slot.write_exit(run_dir, LEADER, ended)
    slot.write_spare(run_dir, record(revision=4))
    assert slot.read_exit(run_dir, LEADER) == ended
    assert slot.read_spare(run_dir) == record(revision=4)


def test_lock_is_held_by_one_and_seen_by_all(run_dir: RunDir) -> None:
    assert not manifest.is_locked(run_dir)
    held = manifest.take_lock(run_dir)
    assert held is not None
    assert manifest.is_locked(run_dir)
    assert manifest.take_lock(run_dir, patience_s=0.0) is None
    os.close(held)
    assert not manifest.is_locked(run_dir)


@pytest.fixture
def small_disk(bench: Bench) -> Iterator[Path]:
    """The run directories on a file system of 1 MiB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=711", "spool", bench.dirs.runs], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield bench.dirs.runs
    for entry in bench.dirs.runs.glob(".*"):
        entry.unlink()
    subprocess.run(["umount", bench.dirs.runs], check=True)


def fill(disk: Path) -> Path:
    """Leave not a block free."""
    filler = disk / ".filler"
    with open(filler, "ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    return filler


def test_disk_full_at_the_exit_loses_nothing(bench: Bench, small_disk: Path) -> None:
    """The exit goes into its slot; the epilog runs; the ledger is answered, kept, and written when there is room."""
    program = bench.output / "epilog"
    program.write_text(f"#!/bin/bash\necho $SLURM_JOB_EXIT_CODE2 >> {bench.output}/said\n")
    program.chmod(0o755)
    bench.start_launcher()
    go = bench.output / "go"
    run = bench.start(
        f"#!/bin/bash\nwhile [ ! -e {go} ]; do sleep 0.02; done\nexit 7\n", hooks=Hooks(epilog=str(program))
    )
    run.wait_phase("running")
    fill(small_disk)
    go.touch()
    state = run.wait_phase("finished")
    assert exit_of(state) == ("waitid", 7 << 8)
    assert (bench.output / "said").read_text() == "7:0\n"
    assert run.manifest().exit is None  # it could not be replaced
    assert slot.load_latest(run.dir).exit is not None  # the spare half could
    os.kill(state["supervisor"]["pid"], 9)  # and a successor finds it there
    state = wait_for(lambda: _of_another(run, state["supervisor"]["pid"]), "a successor")
    assert exit_of(state) == ("waitid", 7 << 8)
    assert (bench.output / "said").read_text() == "7:0\n"
    (small_disk / ".filler").unlink()
    wait_for(lambda: run.manifest().progress(Duty.EPILOG) is Progress.DONE, "the ledger on disk")
    run.finish()


def _of_another(run: object, pid: int) -> dict | None:
    try:
        state = run.wait_phase("finished")  # type: ignore[attr-defined]
    except ConnectionError:
        return None
    return state if state["supervisor"]["pid"] != pid else None


def test_nothing_is_started_that_cannot_be_recorded(bench: Bench) -> None:
    """Neither the manifest nor its spare place can be written: the task waits, and starts when it can."""
    bench.start_launcher()
    run = bench.make_run("#!/bin/bash\necho ran\n", may_start=False)
    bench.supervise(run)
    run.wait_phase("ready")
    bench.order("manifest-write", "fail ENOSPC")
    bench.order("spare-write", "fail ENOSPC")
    run.call("Start")
    state = run.finish()
    assert exit_of(state) == ("waitid", 0)
    assert (bench.output / "42.1.out").read_text() == "ran\n"
    assert bench.events("step_delayed")
