"""What the controller must not forget, in SQLite: jobs, nodes, the next job number.

Written by one thread, one transaction per turn of the loop. WAL with synchronous=FULL: what a commit has returned for
survives the machine's loss of power. The database is opened once and lives as long as the process.

    state_dir/
    ├── spurctld.db        jobs, payloads, nodes, meta; the schema's version is in PRAGMA user_version
    ├── spurctld.db-wal    belongs to it: never copy or remove one without the other
    └── lock               flock held by the controller that serves
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SCHEMA = 1
_BUSY_S = 5.0

_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        # spec and payload never change; record is small, and rewritten at every step of the job
        "CREATE TABLE jobs (id INTEGER PRIMARY KEY, spec TEXT NOT NULL, record TEXT NOT NULL)",
        "CREATE TABLE payloads (id INTEGER PRIMARY KEY, description BLOB NOT NULL, bulk BLOB NOT NULL)",
        "CREATE TABLE nodes (name TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID",
    ),
)


class StoreError(Exception):
    """The database cannot be used, or did not take what was to be written; one line."""


@dataclass(frozen=True, slots=True)
class Payload:
    """What a user submitted, in the encoding of the contracts: `bulk` is the script and the environment."""

    description: bytes
    bulk: bytes


@dataclass(slots=True)
class Changes:
    """What one transaction writes. Texts are JSON."""

    new_jobs: list[tuple[int, str, str, Payload]] = field(default_factory=list)  # number, spec, record
    jobs: list[tuple[str, int]] = field(default_factory=list)  # record, number
    purged: list[int] = field(default_factory=list)
    nodes: list[tuple[str, str]] = field(default_factory=list)
    next_job: int | None = None

    @property
    def empty(self) -> bool:
        return not (self.new_jobs or self.jobs or self.purged or self.nodes or self.next_job is not None)


@dataclass(frozen=True, slots=True)
class Saved:
    """Everything that is needed to go on."""

    jobs: list[tuple[int, object, object]]  # number, spec, record
    descriptions: dict[int, bytes]
    nodes: dict[str, object]
    next_job: int | None


class Store:
    """Owns the connection and the lock. Every method may be called from any thread, but only one at a time."""

    def __init__(self, directory: Path) -> None:
        """StoreError: the directory or the database cannot be used, or another controller uses it."""
        self.path = directory / "spurctld.db"
        self._lock = _lock(directory)
        try:
            self._db = self._open()
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self) -> sqlite3.Connection:
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # -wal and -shm follow its mode
            db = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            self._migrate(db)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"{self.path}: cannot be used: {error}; nothing in it was changed") from None
        return db

    def _migrate(self, db: sqlite3.Connection) -> None:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA:
            raise StoreError(
                f"{self.path}: written by a later version (schema {version}, this one knows {SCHEMA}): "
                "start that version, or restore a copy of before the upgrade"
            )
        for number, statements in enumerate(_MIGRATIONS[version:], version + 1):
            db.execute("BEGIN IMMEDIATE")
            try:
                for statement in statements:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {number}")
                db.execute("COMMIT")
            except BaseException:
                db.execute("ROLLBACK")
                raise

    def load(self) -> Saved:
        """All rows. StoreError: the database is damaged, and which row."""
        try:
            return Saved(
                jobs=list(self._load_jobs()),
                descriptions=dict(self._db.execute("SELECT id, description FROM payloads")),
                nodes={
                    name: self._json(f"node {name}", record)
                    for name, record in self._db.execute("SELECT name, record FROM nodes")
                },
                next_job=self._next_job(),
            )
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: damaged: {error}; restore a copy, or move it away to start empty") from None

    def _load_jobs(self) -> Iterator[tuple[int, object, object]]:
        for number, spec, record in self._db.execute("SELECT id, spec, record FROM jobs ORDER BY id"):
            yield number, self._json(f"job {number}", spec), self._json(f"job {number}", record)

    def _json(self, where: str, text: str) -> object:
        try:
            value: object = json.loads(text)
        except ValueError as error:
            raise StoreError(f"{self.path}: damaged: the record of {where} is no JSON: {error}") from None
        return value

    def _next_job(self) -> int | None:
        row = self._db.execute("SELECT value FROM meta WHERE key = 'next_job'").fetchone()
        if row is None:
            return None
        if not str(row[0]).isdigit():
            raise StoreError(f"{self.path}: damaged: the next job number is {row[0]!r:.40}")
        return int(row[0])

    def commit(self, changes: Changes) -> None:
        """Writes all of `changes` or nothing. StoreError: nothing was written."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._write(changes)
                self._db.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: cannot be written: {error}") from None

    def _roll_back(self) -> None:
        if self._db.in_transaction:  # SQLite ends it by itself after some errors
            self._db.execute("ROLLBACK")

    def _write(self, changes: Changes) -> None:
        many = self._db.executemany
        many("DELETE FROM jobs WHERE id = ?", [(number,) for number in changes.purged])
        many("DELETE FROM payloads WHERE id = ?", [(number,) for number in changes.purged])
        new = changes.new_jobs
        many("INSERT INTO jobs VALUES (?, ?, ?)", [(number, spec, record) for number, spec, record, _ in new])
        many(
            "INSERT INTO payloads VALUES (?, ?, ?)", [(number, one.description, one.bulk) for number, _, _, one in new]
        )
        many("UPDATE jobs SET record = ? WHERE id = ?", changes.jobs)
        many("INSERT OR REPLACE INTO nodes VALUES (?, ?)", changes.nodes)
        if changes.next_job is not None:
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('next_job', ?)", (str(changes.next_job),))

    def probe(self) -> None:
        """StoreError where nothing can be written at present."""
        try:
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('probe', hex(randomblob(2048)))")
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: cannot be written: {error}") from None

    def bulk(self, job: int) -> bytes:
        """The script and environment of a job. StoreError: they cannot be read."""
        try:
            row = self._db.execute("SELECT bulk FROM payloads WHERE id = ?", (job,)).fetchone()
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: cannot be read: {error}") from None
        if row is None:
            raise StoreError(f"{self.path}: holds no script of job {job}")
        return bytes(row[0])

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)


def _lock(directory: Path) -> int:
    """The directory's lock, held. StoreError: it cannot be had."""
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)  # the local socket may lie in it
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{directory}: cannot be used: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise StoreError(f"{directory}: another spurctld uses it") from None
    return descriptor
