"""Releases beyond the policy that a person here has allowed: each for one release of one definition, under any name."""

from __future__ import annotations

import sqlite3
import time


def allow(database: sqlite3.Connection, definition: str, job: str) -> bool:
    """Allow one release. False: one is allowed already, and not used."""
    if find(database, definition, ""):
        return False
    database.execute("INSERT INTO allowances VALUES (?, ?, ?, NULL)", (definition, job, time.time()))
    return True


def find(database: sqlite3.Connection, definition: str, digest: str) -> bool:
    """Whether there is one for this definition that is not used, or was used by the job of this digest."""
    found = database.execute(
        "SELECT 1 FROM allowances WHERE definition = ? AND (used_by IS NULL OR used_by = ?)", (definition, digest)
    )
    return found.fetchone() is not None


def use(database: sqlite3.Connection, definition: str, digest: str) -> None:
    """It is reserved for this job: no other one can use it."""
    used = database.execute("SELECT 1 FROM allowances WHERE definition = ? AND used_by = ?", (definition, digest))
    if used.fetchone() is None:
        database.execute(
            "UPDATE allowances SET used_by = ? WHERE rowid = "
            "(SELECT rowid FROM allowances WHERE definition = ? AND used_by IS NULL ORDER BY at LIMIT 1)",
            (digest, definition),
        )


def give_back(database: sqlite3.Connection, digest: str) -> None:
    """The job has ended before its tables were opened."""
    database.execute("UPDATE allowances SET used_by = NULL WHERE used_by = ?", (digest,))
