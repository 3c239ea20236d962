"""The durable records of one sealed job at this site: `ce.protocol.sealed.records.Records`, on the disk.

reserved    rho and labellings count, and are freed if the job ends here
committed   the same; a share is written that was never sent
opening     charged for good: the share and the commitments of all sites are written, and only these may be sent
failed      charged for good: the dealer's words were wrong

What the ledger must say about a change is written after the change and before anything is sent. If the process is
killed in between, the next attempt at the job writes it when it begins.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ce.errors import JobFailed, Refused
from ce.policy import Policy
from ce.protocol.sealed.records import LabelRecord, ReleaseRecord, ReleaseRequest
from ce.protocol.topology.topology import Rows
from ce_client.state.releases import allowances
from ce_client.state.releases.accounts import (
    ReleaseCost,
    cost_of,
    labelled,
    largest_epsilon,
    refuse,
    rho_of_objects,
    spendings,
)
from ce_client.state.releases.database import ReleaseDatabase
from ce_client.state.releases.keyed_ids import KeyedObjects, among, ids_of, stored


class RecordsReleases(Protocol):
    """A ledger, as far as it records sealed jobs."""

    def charge(
        self, job: str, objects: int, rho: float | None, epsilon: float | None, delta: float, sha256: str, state: str
    ) -> bytes: ...

    def release(self, job: str, epoch: int, size: int, sha256: str) -> bytes: ...

    def model(self, job: str, sha256: str) -> bytes: ...

    def labelling(self, job: str, block: str, objects: int, sha256: str) -> bytes: ...

    def allow_release(self, job: str, definition: str) -> bytes: ...


@dataclass(frozen=True)
class SealedJob:
    """Which job, and this site's objects in it, in the order of the rows of its input."""

    digest: str  # of the job, hex
    name: str
    definition: str  # hex: of the job without its name, and of its roster
    keyed: KeyedObjects = field(repr=False)


class JobRecords:
    """The records of one job, over all its attempts."""

    def __init__(self, database: ReleaseDatabase, job: SealedJob, policy: Policy, ledger: RecordsReleases) -> None:
        """Writes to the ledger what a former process could not write any more."""
        self._database = database
        self._job = job
        self._policy = policy
        self._ledger = ledger
        if database.exists:
            self._write_ledger()

    def cost(self, request: ReleaseRequest) -> ReleaseCost:
        """What the job would cost. Changes nothing."""
        with self._database.transaction() as database:
            return self._cost(database, request)

    # The tables.

    def reserve(self, request: ReleaseRequest) -> None:
        """Raises Refused where a budget or a labelling is spent and no person here has allowed more."""
        job, keyed = self._job, self._job.keyed
        with self._database.transaction() as database:
            self._expect(database, None, "reserved")
            cost = self._cost(database, request)
            refuse(cost, job.name)
            self._delete(database)
            if cost.exceeds:
                allowances.use(database, job.definition, job.digest)
            database.execute(
                "INSERT INTO releases (digest, job, definition, state, allowed, at, rho, objects, labellings) "
                "VALUES (?, ?, ?, 'reserved', ?, ?, ?, ?, ?)",
                (
                    job.digest,
                    job.name,
                    job.definition,
                    cost.exceeds,
                    time.time(),
                    request.rho,
                    stored(keyed.objects[request.rows]),
                    stored(keyed.labellings[request.shared]),
                ),
            )

    def release(self) -> ReleaseRecord | None:
        if not self._database.exists:
            return None
        with self._database.transaction() as database:
            found = database.execute(
                "SELECT origin, context, state, nonce, share, commitments, model, over FROM releases "
                "WHERE digest = ? AND state != 'reserved'",
                (self._job.digest,),
            ).fetchone()
        if found is None:
            return None
        *fields, commitments, model, over = found
        if over:
            raise Refused("finished job", "the tables of this job were opened before: submit it by another name")
        return ReleaseRecord(*fields, commitments=_read(commitments), model=model)

    def commit(self, origin: int, context: bytes, nonce: bytes, share: bytes) -> None:
        with self._database.transaction() as database:
            self._expect(database, "reserved")
            self._change(database, state="committed", origin=origin, context=context, nonce=nonce, share=share)

    def open(self, commitments: Mapping[str, bytes]) -> None:
        with self._database.transaction() as database:
            if self._expect(database, "committed", "opening") == "committed":
                self._change(database, state="opening", commitments=_written(commitments), at=time.time())
        self._write_ledger()

    def fail(self, origin: int, context: bytes) -> None:
        with self._database.transaction() as database:
            if self._expect(database, "reserved", "failed") == "reserved":
                self._change(database, state="failed", origin=origin, context=context, at=time.time())
        self._write_ledger()

    def discard(self) -> None:
        with self._database.transaction() as database:
            self._expect(database, None, "reserved", "committed")
            self._delete(database)

    def accept_model(self, model: bytes) -> None:
        with self._database.transaction() as database:
            self._expect(database, "opening")
            [(before,)] = database.execute("SELECT model FROM releases WHERE digest = ?", (self._job.digest,))
            if before not in (b"", model):
                raise JobFailed("model: this site has accepted another one in this job")
            self._change(database, model=model)
        self._write_ledger()

    # The labels.

    def labels(self, block: bytes) -> LabelRecord | None:
        with self._database.transaction() as database:
            found = database.execute(
                "SELECT origin, state, share, key, nonce, commitments, n_clusters FROM labels "
                "WHERE digest = ? AND block = ?",
                (self._job.digest, block),
            ).fetchone()
        if found is None:
            return None
        *fields, commitments, n_clusters = found
        return LabelRecord(*fields, commitments=_read(commitments), n_clusters=n_clusters)

    def settle(self, block: bytes, origin: int, share: bytes, key: bytes, nonce: bytes, n_clusters: int) -> None:
        with self._database.transaction() as database:
            self._expect(database, "opening")
            self._expect_labels(database, block, None)
            database.execute(
                "INSERT INTO labels (digest, block, state, origin, share, key, nonce, n_clusters) "
                "VALUES (?, ?, 'settled', ?, ?, ?, ?, ?)",
                (self._job.digest, block, origin, share, key, nonce, n_clusters),
            )

    def enter(self, block: bytes, rows: Rows, commitments: Mapping[str, bytes]) -> None:
        """Raises Refused where another job has labelled one of these objects, and no person here has allowed it."""
        with self._database.transaction() as database:
            self._expect(database, "opening")
            if self._expect_labels(database, block, "settled", "entered") == "settled":
                self._enter(database, block, rows, commitments)
        self._write_ledger()

    def discard_labels(self, block: bytes) -> None:
        with self._database.transaction() as database:
            self._expect_labels(database, block, None, "settled")
            database.execute("DELETE FROM labels WHERE digest = ? AND block = ?", (self._job.digest, block))

    # Within a transaction.

    def _cost(self, database: sqlite3.Connection, request: ReleaseRequest) -> ReleaseCost:
        job, keyed = self._job, self._job.keyed
        check_key(database, keyed.key_check, self._database)
        return cost_of(
            job.definition,
            request.rho,
            keyed.objects[request.rows],
            keyed.labellings[request.shared],
            spendings(database, but=job.digest),
            self._policy,
            allowed=allowances.find(database, job.definition, job.digest),
        )

    def _enter(self, database: sqlite3.Connection, block: bytes, rows: Rows, commitments: Mapping[str, bytes]) -> None:
        labellings = self._job.keyed.labellings[rows]
        [(reserved, allowed)] = database.execute(
            "SELECT labellings, allowed FROM releases WHERE digest = ?", (self._job.digest,)
        )
        if not among(labellings, ids_of(reserved)).all():
            raise JobFailed("labels: of other objects than this site has reserved a labelling for")
        if not allowed and labelled(labellings, spendings(database, but=self._job.digest)).any():
            raise Refused("one labelling", "another job has labelled some of the same objects meanwhile")
        database.execute(
            "UPDATE labels SET state = 'entered', commitments = ?, labellings = ? WHERE digest = ? AND block = ?",
            (_written(commitments), stored(labellings), self._job.digest, block),
        )

    def _expect(self, database: sqlite3.Connection, *states: str | None) -> str | None:
        """The state of the release, one of these; None: there is none."""
        found = database.execute("SELECT state FROM releases WHERE digest = ?", (self._job.digest,)).fetchone()
        return _one_of("release", None if found is None else found[0], states)

    def _expect_labels(self, database: sqlite3.Connection, block: bytes, *states: str | None) -> str | None:
        found = database.execute(
            "SELECT state FROM labels WHERE digest = ? AND block = ?", (self._job.digest, block)
        ).fetchone()
        return _one_of("labels", None if found is None else found[0], states)

    def _change(self, database: sqlite3.Connection, **values: Any) -> None:
        assigned = ", ".join(f"{name} = ?" for name in values)
        database.execute(f"UPDATE releases SET {assigned} WHERE digest = ?", (*values.values(), self._job.digest))

    def _delete(self, database: sqlite3.Connection) -> None:
        """Whatever has never been opened."""
        database.execute("DELETE FROM releases WHERE digest = ?", (self._job.digest,))
        allowances.give_back(database, self._job.digest)

    # The ledger.

    def _write_ledger(self) -> None:
        """Write the lines about this job that are not in the ledger yet, then that they are.

        A process that is killed between the two writes a line once more, which says the same.
        """
        with self._database.transaction() as database:
            lines = [*self._lines_of_release(database), *self._lines_of_labels(database)]
        for write, _, _ in lines:
            write()
        if lines:
            with self._database.transaction() as database:
                for _, statement, values in lines:
                    database.execute(statement, values)

    def _lines_of_release(self, database: sqlite3.Connection) -> list[tuple[Callable[[], bytes], str, tuple[Any, ...]]]:
        found = database.execute(
            "SELECT state, allowed, rho, objects, origin, share, model, in_ledger FROM releases WHERE digest = ? "
            "AND state IN ('opening', 'failed') AND NOT over",
            (self._job.digest,),
        ).fetchone()
        if found is None:
            return []
        state, allowed, rho, objects, origin, share, model, in_ledger = found
        job, delta, ledger = self._job, self._policy.max_delta, self._ledger
        ids = ids_of(objects)
        spent = [one for one in spendings(database) if one.spent]
        after = largest_epsilon(rho_of_objects(ids, spent), delta)
        # What each letter of `in_ledger` stands for.
        lines: dict[str, Callable[[], bytes]] = {}
        if allowed:
            lines["a"] = lambda: ledger.allow_release(job.name, job.definition)
        lines["c"] = lambda: ledger.charge(
            job.name, len(ids), None if math.isinf(rho) else rho, after, delta, _sha256(objects), state
        )
        if state == "opening":
            lines["r"] = lambda: ledger.release(job.name, origin, len(share), _sha256(share))
        if model:
            lines["m"] = lambda: ledger.model(job.name, _sha256(model))
        return [
            (write, "UPDATE releases SET in_ledger = in_ledger || ? WHERE digest = ?", (letter, job.digest))
            for letter, write in lines.items()
            if letter not in in_ledger
        ]

    def _lines_of_labels(self, database: sqlite3.Connection) -> list[tuple[Callable[[], bytes], str, tuple[Any, ...]]]:
        job = self._job
        found = database.execute(
            "SELECT block, labellings FROM labels WHERE digest = ? AND state = 'entered' AND in_ledger = ''",
            (job.digest,),
        ).fetchall()

        def line(block: bytes, labellings: bytes) -> Callable[[], bytes]:
            return lambda: self._ledger.labelling(job.name, block.hex(), len(ids_of(labellings)), _sha256(labellings))

        statement = "UPDATE labels SET in_ledger = 'l' WHERE digest = ? AND block = ?"
        return [(line(block, labellings), statement, (job.digest, block)) for block, labellings in found]


def check_key(database: sqlite3.Connection, key_check: bytes, path: ReleaseDatabase) -> None:
    """Raises JobFailed if the ids were written with another secret: nothing could be counted. Stores the first key."""
    found = database.execute("SELECT key_check FROM site").fetchone()
    if found is None:
        database.execute("INSERT INTO site VALUES (?)", (key_check,))
    elif found[0] != key_check:
        raise JobFailed(
            f"{path.path}: was written with another secret, so that its objects cannot be counted: put the former file "
            "of the secret back; if it is lost, move the file to an archive"
        )


def _one_of(what: str, found: str | None, states: tuple[str | None, ...]) -> str | None:
    if found not in states:
        expected = " or ".join(state or "none" for state in states)
        raise JobFailed(f"{what} of this job: expected {expected}, got {found or 'none'}")
    return found


def _written(commitments: Mapping[str, bytes]) -> str:
    return json.dumps({site: commitment.hex() for site, commitment in commitments.items()})


def _read(commitments: str) -> dict[str, bytes]:
    return {site: bytes.fromhex(commitment) for site, commitment in json.loads(commitments).items()}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
