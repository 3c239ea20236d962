"""The store of a running coordinator: one SQLite file, which one coordinator at a time may open.

A save returns when the record has reached the disk (write-ahead log, synchronous=FULL), so that a transition may be
announced. The file names its program (application_id) and its layout (user_version).
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from threading import Lock
from typing import Any

from ce.errors import ConfigError
from ce_coordinator.core.records import JobRecord, SiteRecord
from ce_coordinator.store.interface import StoreFailed, TokenTaken

#: "ceco": tells our files from other databases.
APPLICATION_ID = 0x6365636F
#: The first bytes of every SQLite file.
MAGIC = b"SQLite format 3\0"
#: Each step leads from the version before it to its own; a step that was released is never changed.
MIGRATIONS: list[list[str]] = [
    [
        """
        CREATE TABLE jobs (
            name TEXT PRIMARY KEY NOT NULL,
            token TEXT UNIQUE NOT NULL,
            operator TEXT NOT NULL,
            definition BLOB NOT NULL,
            state TEXT NOT NULL CHECK (
                state IN ('submitted', 'enrolling', 'aligning', 'running', 'done', 'failed', 'cancelled')
            ),
            epoch INTEGER NOT NULL,
            submitted_at REAL NOT NULL,
            changed_at REAL NOT NULL,
            reason TEXT NOT NULL,
            rule TEXT NOT NULL,
            exit_code INTEGER NOT NULL,
            result BLOB NOT NULL
        )
        """,
        "CREATE INDEX jobs_by_submission ON jobs (submitted_at DESC, name)",
        """
        CREATE TABLE sites (
            name TEXT PRIMARY KEY NOT NULL,
            fingerprint TEXT NOT NULL,
            first_seen REAL NOT NULL,
            last_seen REAL NOT NULL
        )
        """,
    ],
    # Sites that a job continued without, as a JSON list.
    ["ALTER TABLE jobs ADD COLUMN left_behind TEXT NOT NULL DEFAULT '[]'"],
]
#: Seconds to wait for another program that reads the file, such as `sqlite3`.
BUSY_S = 5.0


def _columns(record: type[JobRecord] | type[SiteRecord]) -> list[str]:
    return [field.name for field in fields(record)]


def _upsert(table: str, record: type[JobRecord] | type[SiteRecord]) -> str:
    """Insert or replace by name. Not INSERT OR REPLACE: that would also delete a job that has the same token."""
    names = _columns(record)
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name != "name")
    marks = ", ".join("?" * len(names))
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks}) ON CONFLICT (name) DO UPDATE SET {changes}"


SAVE_JOB = _upsert("jobs", JobRecord)
SAVE_SITE = _upsert("sites", SiteRecord)
SELECT_JOBS = f"SELECT {', '.join(_columns(JobRecord))} FROM jobs"
SELECT_SITES = f"SELECT {', '.join(_columns(SiteRecord))} FROM sites"


class SqliteStore:
    """Records in the file at `path`, which is created, readable by its owner only, if it is missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mutex = Lock()
        self._lock_file = _lock(path)
        try:
            self._database = _open(path)
        except BaseException:
            os.close(self._lock_file)
            raise
        self._closed = False

    def save_job(self, record: JobRecord) -> None:
        self._run(SAVE_JOB, _values(record))

    def job(self, name: str) -> JobRecord | None:
        rows = self._run(f"{SELECT_JOBS} WHERE name = ?", (name,))
        return _job(rows[0]) if rows else None

    def job_by_token(self, token: str) -> JobRecord | None:
        rows = self._run(f"{SELECT_JOBS} WHERE token = ?", (token,))
        return _job(rows[0]) if rows else None

    def jobs(self) -> list[JobRecord]:
        return [_job(row) for row in self._run(f"{SELECT_JOBS} ORDER BY submitted_at DESC, name")]

    def save_site(self, record: SiteRecord) -> None:
        self._run(SAVE_SITE, _values(record))

    def sites(self) -> list[SiteRecord]:
        return [SiteRecord(*row) for row in self._run(f"{SELECT_SITES} ORDER BY name")]

    def close(self) -> None:
        with self._mutex:
            if not self._closed:
                self._closed = True
                self._database.close()
                os.close(self._lock_file)

    def _run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """One statement is one transaction: it is carried out as a whole, or an error is raised and nothing changes."""
        with self._mutex:
            if self._closed:
                raise StoreFailed("the store is closed: the coordinator is shutting down")
            try:
                return self._database.execute(statement, values).fetchall()
            except sqlite3.IntegrityError as error:
                if error.sqlite_errorname == "SQLITE_CONSTRAINT_UNIQUE":
                    raise TokenTaken from error
                raise
            except sqlite3.DatabaseError as error:
                action = "read" if statement.startswith("SELECT") else "write"
                raise StoreFailed(
                    f"{self._path}: the {action} failed ({_code(error)}): "
                    "see that the disk is intact and has free space, then try again"
                ) from error


def _values(record: JobRecord | SiteRecord) -> list[Any]:
    values = [getattr(record, name) for name in _columns(type(record))]
    return [json.dumps(value) if isinstance(value, tuple) else value for value in values]


def _job(row: Sequence[Any]) -> JobRecord:
    values = dict(zip(_columns(JobRecord), row, strict=True))
    return JobRecord(**{**values, "left_behind": tuple(json.loads(values["left_behind"]))})


def _code(error: sqlite3.Error) -> str:
    """SQLite's name of an error, such as SQLITE_FULL; not its text, which could quote a value."""
    return getattr(error, "sqlite_errorname", type(error).__name__)


_NEEDS = "the store needs a directory that the coordinator may write to"


def _lock(path: Path) -> int:
    """Lock out other coordinators. The kernel releases the lock when the process ends, however it ends."""
    try:
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _not_writable(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise ConfigError(
                f"{path}: another coordinator uses this store: stop it, or give this one a store of its own"
            ) from error
        raise ConfigError(f"{path}: cannot be locked: {error.strerror}; keep the store on a local disk") from error
    return descriptor


_NOT_A_DATABASE = "is not a database: give the store a path of its own"
_DAMAGED = "is damaged: restore it from a copy"
_OBSTACLES = {
    sqlite3.SQLITE_NOTADB: _NOT_A_DATABASE,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_FULL: "cannot be opened: free some space on its disk",
    sqlite3.SQLITE_READONLY: f"cannot be written: {_NEEDS}",
    sqlite3.SQLITE_CANTOPEN: f"cannot be written: {_NEEDS}",
}
_OTHER_OBSTACLE = "cannot be opened: see that no other program uses it, and that its disk is intact"


def _open(path: Path) -> sqlite3.Connection:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # SQLite would use the umask
        try:
            begin = os.read(descriptor, len(MAGIC))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _not_writable(path, error) from error
    if begin not in (b"", MAGIC):  # SQLite would take a very short file for an empty one, and write over it
        raise ConfigError(f"{path}: {_NOT_A_DATABASE}")
    database = sqlite3.connect(path.absolute(), timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        _check(database, path)
        _prepare(database, path)
    except sqlite3.DatabaseError as error:
        database.close()
        primary = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest says where in SQLite it arose
        raise ConfigError(f"{path}: {_OBSTACLES.get(primary, _OTHER_OBSTACLE)} ({_code(error)})") from error
    except BaseException:
        database.close()
        raise
    return database


def _check(database: sqlite3.Connection, path: Path) -> None:
    """Refuse a file of another program, a newer layout or a damaged file, before anything is changed."""
    application, version = _pragma(database, "application_id"), _pragma(database, "user_version")
    [(tables,)] = database.execute("SELECT count(*) FROM sqlite_master")
    if application != APPLICATION_ID and (application, version, tables) != (0, 0, 0):
        raise ConfigError(f"{path}: is the database of another program: give the store a path of its own")
    if version > len(MIGRATIONS):
        raise ConfigError(
            f"{path}: has layout {version}, and this coordinator knows layouts up to {len(MIGRATIONS)}: "
            "run the newer coordinator that wrote it"
        )
    if _pragma(database, "quick_check(1)") != "ok":
        raise ConfigError(f"{path}: {_DAMAGED}")


def _prepare(database: sqlite3.Connection, path: Path) -> None:
    """Make writes durable, and bring the file to the newest layout."""
    if _pragma(database, "journal_mode = WAL") != "wal":
        raise ConfigError(f"{path}: this file system cannot hold a write-ahead log: keep the store on a local disk")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("PRAGMA foreign_keys = ON")
    version = _pragma(database, "user_version")
    if version == len(MIGRATIONS):
        return
    database.execute("BEGIN IMMEDIATE")
    for step in MIGRATIONS[version:]:
        for statement in step:
            database.execute(statement)
    # A pragma takes no parameter.
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    database.execute("COMMIT")


def _pragma(database: sqlite3.Connection, pragma: str) -> Any:
    return database.execute(f"PRAGMA {pragma}").fetchone()[0]


def _not_writable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path}: cannot be written: {error.strerror}; {_NEEDS}")
