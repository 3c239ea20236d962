"""The file of sealed jobs: one SQLite database in the site's state directory, for the daemon and the commands.

Each transaction has the file for itself (BEGIN IMMEDIATE), and is on the disk when it returns (write-ahead log,
synchronous=FULL), or has changed nothing. So jobs in parallel, and commands beside the daemon, never see half of a
change, and a process that is killed leaves a state from before or after it. Each opens the file and closes it again,
which also writes the log back into the file; only the rounds of a job keep it open.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ce.errors import ConfigError, JobFailed
from ce.service.atomic_files import make_directory

FILE_NAME = "releases.sqlite"
#: "cere": tells this file from other databases.
_APPLICATION_ID = 0x63657265
_LAYOUT = 1
#: Seconds to wait for another transaction: each takes milliseconds, with a million objects a second.
_BUSY_S = 60.0
_PRIVATE = 0o600

#: `objects` and `labellings` are sorted keyed ids, side by side; `rho` is the same for all objects of a release.
_TABLES = (
    "CREATE TABLE site (key_check BLOB NOT NULL)",
    """
    CREATE TABLE releases (
        digest TEXT PRIMARY KEY NOT NULL,
        job TEXT NOT NULL,
        definition TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('reserved', 'committed', 'opening', 'failed')),
        over INTEGER NOT NULL DEFAULT 0,
        allowed INTEGER NOT NULL DEFAULT 0,
        at REAL NOT NULL,
        rho REAL NOT NULL,
        objects BLOB NOT NULL,
        labellings BLOB NOT NULL,
        origin INTEGER NOT NULL DEFAULT 0,
        context BLOB NOT NULL DEFAULT x'',
        nonce BLOB NOT NULL DEFAULT x'',
        share BLOB NOT NULL DEFAULT x'',
        commitments TEXT NOT NULL DEFAULT '{}',
        model BLOB NOT NULL DEFAULT x'',
        in_ledger TEXT NOT NULL DEFAULT ''
    )
    """,
    """
    CREATE TABLE labels (
        digest TEXT NOT NULL REFERENCES releases (digest) ON DELETE CASCADE,
        block BLOB NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('settled', 'entered')),
        origin INTEGER NOT NULL,
        share BLOB NOT NULL,
        key BLOB NOT NULL,
        nonce BLOB NOT NULL,
        n_clusters INTEGER NOT NULL,
        commitments TEXT NOT NULL DEFAULT '{}',
        objects BLOB NOT NULL DEFAULT x'',
        labellings BLOB NOT NULL DEFAULT x'',
        in_ledger TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (digest, block)
    )
    """,
    """
    CREATE TABLE allowances (
        definition TEXT NOT NULL,
        job TEXT NOT NULL,
        at REAL NOT NULL,
        used_by TEXT
    )
    """,
)


class ReleaseDatabase:
    """The database of one site."""

    connection_class: type[sqlite3.Connection] = sqlite3.Connection

    def __init__(self, state: Path) -> None:
        self.path = state / FILE_NAME
        self._keeps = False
        self._kept: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None  # device and number of the file that was opened last
        # A job's thread uses it while it computes; the event loop closes it when the job ends.
        self._lock = threading.Lock()

    def __del__(self) -> None:
        self._close_kept()  # of a job that nobody has closed

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def keep(self) -> None:
        """Leave the file open after each transaction from now on, until `close`."""
        with self._lock:
            self._keeps = True

    def close(self) -> None:
        """Close the file, after a transaction that is under way. Later ones open it each for itself."""
        with self._lock:
            self._keeps = False
            self._close_kept()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Read and write under one lock. Raises ConfigError or JobFailed, and has then changed nothing."""
        with self._opened() as database:
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Read what the last transaction has left."""
        with self._opened() as database:
            database.execute("BEGIN")
            yield database

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            database = self._taken()
            try:
                yield database
                if self._keeps:
                    if database.in_transaction:
                        database.execute("ROLLBACK")  # of one that has only read
                    self._kept = database
            except sqlite3.DatabaseError as error:
                if _busy(error):
                    raise JobFailed(self._held(error)) from error
                raise JobFailed(
                    f"{self.path}: cannot be read or written ({_code(error)}): see that the disk is intact and has "
                    "free space; no table of a sealed job is opened without it"
                ) from error
            finally:
                if database is not self._kept:
                    # What was not committed is rolled back.
                    database.close()

    def _held(self, error: sqlite3.DatabaseError) -> str:
        return (
            f"{self.path}: another process holds it ({_code(error)}) for more than {_BUSY_S:g} s: end what has opened "
            "it beside the daemon, such as a backup or a viewer of databases; the file itself is not damaged"
        )

    def _taken(self) -> sqlite3.Connection:
        """The connection that was kept, or a new one: also where another file has taken the place of that one."""
        kept = self._kept
        if kept is None:
            return self._connected()
        if self._file is None or self._file != _identity(self.path):
            self._close_kept()
            return self._connected()
        self._kept = None
        return kept

    def _close_kept(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _connected(self) -> sqlite3.Connection:
        try:
            make_directory(self.path.parent)
            # Never opened beside SQLite if it is there: closing it would drop all locks that this process has on it.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE))
            self._file = _identity(self.path)
            database = sqlite3.connect(
                self.path.absolute(),
                timeout=_BUSY_S,
                isolation_level=None,
                factory=self.connection_class,
                check_same_thread=False,  # `_lock` sees to that
            )
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or _code(error)
            raise ConfigError(f"{self.path}: cannot be written: {reason}: make room or set permissions") from error
        try:
            self._prepare(database)
        except sqlite3.DatabaseError as error:
            database.close()
            if _busy(error):
                raise ConfigError(self._held(error)) from error
            raise ConfigError(
                f"{self.path}: cannot be used ({_code(error)}): it has what sealed jobs have cost; restore it from a "
                "backup, or ask who changed it before you remove it"
            ) from error
        except BaseException:
            database.close()
            raise
        return database

    def _prepare(self, database: sqlite3.Connection) -> None:
        """Make writes durable, and write the tables of a new file. Raises ConfigError for the file of another."""
        if _pragma(database, "journal_mode = WAL") != "wal":
            raise ConfigError(f"{self.path}: this file system has no write-ahead log: keep the state on a local disk")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("PRAGMA secure_delete = ON")  # shares that are deleted are not left in free pages
        database.execute("PRAGMA foreign_keys = ON")
        if (_pragma(database, "application_id"), _pragma(database, "user_version")) == (_APPLICATION_ID, _LAYOUT):
            return
        database.execute("BEGIN IMMEDIATE")
        application, layout = _pragma(database, "application_id"), _pragma(database, "user_version")
        [(tables,)] = database.execute("SELECT count(*) FROM sqlite_master")
        if (application, layout, tables) == (0, 0, 0):
            for statement in _TABLES:
                database.execute(statement)
            # A pragma takes no parameter.
            database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {_LAYOUT}")
        elif (application, layout) != (_APPLICATION_ID, _LAYOUT):
            raise ConfigError(
                f"{self.path}: is of another program, or of a newer version of this one: run the version that wrote it"
            )
        database.execute("COMMIT")


def _identity(path: Path) -> tuple[int, int] | None:
    """Of a file, also when it is renamed; None: there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _pragma(database: sqlite3.Connection, pragma: str) -> Any:
    return database.execute(f"PRAGMA {pragma}").fetchone()[0]


def _busy(error: sqlite3.DatabaseError) -> bool:
    """Whether another process has the file for itself; codes of SQLite have further bits for the reason."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _code(error: BaseException) -> str:
    """SQLite's name of an error, such as SQLITE_FULL; not its text, which could quote a value."""
    return str(getattr(error, "sqlite_errorname", type(error).__name__))
