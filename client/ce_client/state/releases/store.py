"""The releases of one site: what daemon and commands do with them beside the records of a job under way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ce.policy import Policy
from ce_client.state.ledger import entries
from ce_client.state.releases import allowances
from ce_client.state.releases.accounts import (
    Spending,
    labelled_times,
    largest_epsilon,
    rho_of_objects,
    spendings,
    usage,
)
from ce_client.state.releases.database import ReleaseDatabase
from ce_client.state.releases.job_records import JobRecords, SealedJob
from ce_client.state.releases.ledger_lines import RecordsReleases, write_lines


@dataclass(frozen=True)
class Budget:
    """What sealed jobs have cost this site's objects, and what jobs under way have reserved."""

    spent: dict[float | None, int]  # how many objects have each epsilon, the largest first; None: without limit
    reserved: dict[float | None, int]  # the same, with reservations
    jobs: tuple[tuple[Spending, float | None], ...]  # the oldest first, with the epsilon of each alone
    labelled: int = 0  # different objects whose labels were opened to their other holders
    relabelled: int = 0  # of these, objects that were labelled in more than one job


class Releases:
    """All sealed jobs of one site, in its state directory."""

    def __init__(self, state: Path) -> None:
        self.database = ReleaseDatabase(state)

    def records(self, job: SealedJob, policy: Policy, ledger: RecordsReleases) -> JobRecords:
        """Of a job under way."""
        return JobRecords(self.database, job, policy, ledger)

    def budget(self, delta: float) -> Budget:
        """What is spent, at this delta. Changes nothing."""
        if not self.database.exists:
            return Budget({}, {}, ())
        with self.database.reading() as database:
            found = spendings(database)
            times = labelled_times(database)
        alone = tuple((one, largest_epsilon(rho_of_objects(one.objects[:1], [one]), delta)) for one in found)
        spent, again = [one for one in found if one.spent], int((times > 1).sum())
        return Budget(usage(spent, delta), usage(found, delta), alone, len(times), again)

    def count(self) -> int:
        """Releases that were charged."""
        if not self.database.exists:
            return 0
        with self.database.reading() as database:
            [(count,)] = database.execute("SELECT count(*) FROM releases WHERE state IN ('opening', 'failed')")
        return int(count)

    def lacking(self, ledger: Path) -> tuple[int, int]:
        """Of the releases that the ledger has charged, how many this database lacks; and how many there are.

        It lacks some if it was deleted, or restored from an old backup: then it would let objects spend twice.
        """
        charged = {(line["job"], line["sha256"]) for line in entries(ledger) if line["kind"] == "charge"}
        if not charged or not self.database.exists:
            return len(charged), len(charged)
        known = set()
        with self.database.reading() as database:
            spent = database.execute("SELECT job, objects FROM releases WHERE state IN ('opening', 'failed')")
            for job, objects in spent:
                known.add((job, hashlib.sha256(objects).hexdigest()))
        return len(charged - known), len(charged)

    def allow(self, definition: str, job: str) -> bool:
        """Allow one release of a definition beyond the policy. False: one is allowed already, and not used."""
        with self.database.transaction() as database:
            return allowances.allow(database, definition, job)

    def allowed(self, definition: str) -> bool:
        """Whether one release of a definition is allowed, and not used."""
        if not self.database.exists:
            return False
        with self.database.reading() as database:
            return allowances.find(database, definition, "")

    def over(self, job: str) -> None:
        """A job has ended at this site: free what it has only reserved, and delete the bytes of its shares."""
        self._end("job = ?", (job,))

    def begin(self, jobs: Iterable[str], ledger: RecordsReleases, delta: float) -> None:
        """The daemon begins: write what the ledger lacks; all jobs but these have ended."""
        write_lines(self.database, ledger, delta)
        under_way = tuple(jobs)
        self._end(f"job NOT IN ({', '.join('?' * len(under_way))})", under_way)

    def _end(self, which: str, values: tuple[str, ...]) -> None:
        if not self.database.exists:
            return
        with self.database.transaction() as database:
            freed = database.execute(
                f"SELECT digest FROM releases WHERE {which} AND state IN ('reserved', 'committed')", values
            ).fetchall()
            for (digest,) in freed:
                database.execute("DELETE FROM releases WHERE digest = ?", (digest,))
                allowances.give_back(database, digest)
            ended = f"digest IN (SELECT digest FROM releases WHERE NOT over AND {which})"
            database.execute(f"DELETE FROM labels WHERE state = 'settled' AND {ended}", values)
            database.execute(
                f"UPDATE labels SET share = x'', key = x'', nonce = x'', commitments = '{{}}' WHERE {ended}", values
            )
            database.execute(
                "UPDATE releases SET over = 1, share = x'', nonce = x'', model = x'', commitments = '{}' "
                f"WHERE NOT over AND {which}",
                values,
            )
