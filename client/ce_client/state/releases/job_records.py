"""The durable records of one sealed job at this site: `ce.protocol.sealed.records.Records`, on the disk.

reserved    rho and labellings count, and are freed if the job ends here
committed   the same; a share is written that was never sent
opening     charged for good: the share and the commitments of all sites are written, and only these may be sent
failed      charged for good: the dealer's words were wrong

What the ledger must say about a change is written after the change and before anything is sent. If the process is
killed in between, the next attempt at the job writes it when it begins.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ce.errors import JobFailed, Refused
from ce.policy import Policy
from ce.protocol.sealed.records import LabelRecord, ReleaseRecord, ReleaseRequest
from ce.protocol.topology.topology import Rows
from ce_client.state.releases import allowances
from ce_client.state.releases.accounts import LABELLING_RULE, ReleaseCost, cost_of, labelled, refuse, spendings
from ce_client.state.releases.database import ReleaseDatabase
from ce_client.state.releases.keyed_ids import KeyedObjects, among, ids_of, stored
from ce_client.state.releases.ledger_lines import RecordsReleases, write_lines


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
            write_lines(self._database, self._ledger, self._policy.max_delta, self._job.digest)

    def keep_open(self) -> None:
        """The rounds of the job begin: leave the file open between them."""
        self._database.keep()

    def close(self) -> None:
        """The rounds are over. Records can still be read and written."""
        self._database.close()

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
        with self._database.reading() as database:
            found = database.execute(
                "SELECT origin, context, state, nonce, share, commitments, model, over FROM releases "
                "WHERE digest = ? AND state != 'reserved'",
                (self._job.digest,),
            ).fetchone()
        if found is None:
            return None
        origin, context, state, nonce, share, commitments, model, over = found
        if over:
            raise Refused("finished job", "the tables of this job were opened before: submit it by another name")
        return ReleaseRecord(origin, context, state, nonce, share, _read(commitments), model)

    def commit(self, origin: int, context: bytes, nonce: bytes, share: bytes) -> None:
        with self._database.transaction() as database:
            self._expect(database, "reserved")
            self._change(database, state="committed", origin=origin, context=context, nonce=nonce, share=share)

    def open(self, commitments: Mapping[str, bytes]) -> None:
        with self._database.transaction() as database:
            if self._expect(database, "committed", "opening") == "committed":
                self._change(database, state="opening", commitments=_written(commitments), at=time.time())
        write_lines(self._database, self._ledger, self._policy.max_delta, self._job.digest)

    def fail(self, origin: int, context: bytes) -> None:
        with self._database.transaction() as database:
            if self._expect(database, "reserved", "failed") == "reserved":
                self._change(database, state="failed", origin=origin, context=context, at=time.time())
        write_lines(self._database, self._ledger, self._policy.max_delta, self._job.digest)

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
        write_lines(self._database, self._ledger, self._policy.max_delta, self._job.digest)

    # The labels.

    def labels(self, block: bytes) -> LabelRecord | None:
        with self._database.reading() as database:
            found = database.execute(
                "SELECT origin, state, share, key, nonce, commitments, n_clusters FROM labels "
                "WHERE digest = ? AND block = ?",
                (self._job.digest, block),
            ).fetchone()
        if found is None:
            return None
        origin, state, share, key, nonce, commitments, n_clusters = found
        return LabelRecord(origin, state, share, key, nonce, _read(commitments), n_clusters)

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
        """Raises Refused where another job has labelled one of these objects, and no person here has allowed it; and
        where another block of this job has, whoever allows it."""
        with self._database.transaction() as database:
            self._expect(database, "opening")
            if self._expect_labels(database, block, "settled", "entered") == "settled":
                self._enter(database, block, rows, commitments)
        write_lines(self._database, self._ledger, self._policy.max_delta, self._job.digest)

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
            raise Refused(LABELLING_RULE, "another job has labelled some of the same objects meanwhile")
        for (entered,) in database.execute(
            "SELECT labellings FROM labels WHERE digest = ? AND state = 'entered'", (self._job.digest,)
        ):
            if among(labellings, np.sort(ids_of(entered))).any():
                raise Refused(LABELLING_RULE, "another block of this job has labelled some of the same objects")
        database.execute(
            "UPDATE labels SET state = 'entered', commitments = ?, objects = ?, labellings = ? "
            "WHERE digest = ? AND block = ?",
            (
                _written(commitments),
                stored(self._job.keyed.objects[rows]),
                stored(labellings),
                self._job.digest,
                block,
            ),
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


def check_key(database: sqlite3.Connection, key_check: bytes, path: ReleaseDatabase) -> None:
    """Raises JobFailed if the ids were written with another secret: nothing could be counted. Stores the first key."""
    found = database.execute("SELECT key_check FROM site").fetchone()
    if found is None:
        database.execute("INSERT INTO site VALUES (?)", (key_check,))
    elif found[0] != key_check:
        raise JobFailed(
            f"{path.path}: was written with another secret, so that its objects cannot be counted: put the former file "
            "of the secret back; if it is lost, stop the daemon and move the file and the ledger to an archive"
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
