"""The database: what was committed is there, what was not is not, and what cannot be used is refused untouched."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from spurctld.store import Changes, Payload, Store, StoreError

PAYLOAD = Payload(b"description", b"script and environment")


def first(number: int = 1) -> Changes:
    return Changes(new_jobs=[(number, '{"spec":1}', '{"record":1}', PAYLOAD)], next_job=number + 1)


def test_what_was_committed_is_there_after_a_start(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.commit(first())
    store.commit(Changes(jobs=[('{"record":2}', 1)], nodes=[("n1", '{"state":"up"}')]))
    store.close()
    store = Store(tmp_path)
    saved = store.load()
    assert saved.jobs == [(1, {"spec": 1}, {"record": 2})]
    assert saved.descriptions == {1: b"description"}
    assert saved.nodes == {"n1": {"state": "up"}}
    assert saved.next_job == 2
    assert store.bulk(1) == b"script and environment"
    store.close()


def test_purged_jobs_are_gone_with_their_scripts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.commit(first())
    store.commit(Changes(purged=[1]))
    assert store.load().jobs == []
    assert store.load().next_job == 2
    with pytest.raises(StoreError, match="no script of job 1"):
        store.bulk(1)
    store.close()


def test_a_number_that_is_used_again_takes_the_place_of_the_old_job(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.commit(first())
    store.commit(Changes(purged=[1], new_jobs=[(1, "{}", "{}", Payload(b"new", b""))]))
    assert store.load().descriptions == {1: b"new"}
    store.close()


def test_a_commit_is_all_or_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.commit(first())
    twice = Changes(nodes=[("n1", "{}")], new_jobs=[(2, "{}", "{}", PAYLOAD), (1, "{}", "{}", PAYLOAD)])
    with pytest.raises(StoreError, match="cannot be written"):
        store.commit(twice)
    assert [number for number, _, _ in store.load().jobs] == [1]
    assert store.load().nodes == {}
    store.commit(first(2))
    store.close()


def test_the_database_is_its_owners_alone(tmp_path: Path) -> None:
    """It holds scripts and environments of all users."""
    store = Store(tmp_path)
    store.commit(first())
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    store.close()


def test_two_controllers_do_not_share_a_directory(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(StoreError, match="another spurctld uses it"):
        Store(tmp_path)
    store.close()
    Store(tmp_path).close()


def test_a_later_versions_database_is_refused_and_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.commit(first())
    store.close()
    with sqlite3.connect(tmp_path / "spurctld.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    before = (tmp_path / "spurctld.db").read_bytes()
    with pytest.raises(StoreError, match=r"written by a later version \(schema 99"):
        Store(tmp_path)
    assert (tmp_path / "spurctld.db").read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database at all, not by any means" * 100, b"\0" * 8192])
def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "spurctld.db").write_bytes(content)
    with pytest.raises(StoreError, match="cannot be used"):
        Store(tmp_path)
    assert (tmp_path / "spurctld.db").read_bytes() == content


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(1, 400):
        store.commit(Changes(new_jobs=[(number, '{"a":"' + "x" * 500 + '"}', "{}", PAYLOAD)]))
    store.close()
    path = tmp_path / "spurctld.db"
    content = bytearray(path.read_bytes())
    for at in range(4096 * 5, len(content), 4096):
        content[at : at + 2000] = b"\xff" * 2000
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"damaged|cannot be used"):
        store = Store(tmp_path)
        try:
            store.load()
        finally:
            store.close()


def test_a_record_that_is_no_json_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.commit(Changes(new_jobs=[(7, "{}", "{torn", PAYLOAD)]))
    with pytest.raises(StoreError, match="the record of job 7 is no JSON"):
        store.load()
    store.close()


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be used"):
        Store(tmp_path / "file" / "state")


WRITER = """
import sys
from pathlib import Path
from spurctld.store import Changes, Payload, Store
store = Store(Path(sys.argv[1]))
for number in range(1, 100000):
    store.commit(Changes(new_jobs=[(number, "{}", "{}", Payload(b"", b"x" * 300))], next_job=number + 1))
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""


def test_a_writer_that_is_killed_loses_nothing_that_was_committed(tmp_path: Path) -> None:
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path / "db"], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(50)]
        writer.kill()
        told += [int(line) for line in writer.stdout.read().splitlines()]
        writer.wait()
        writer.stdout.close()
        store = Store(tmp_path / "db")
        saved = {number for number, _, _ in store.load().jobs}
        assert saved >= set(told)
        assert len(saved) - len(told) <= 1
        store.commit(Changes(purged=sorted(saved)))
        store.close()
