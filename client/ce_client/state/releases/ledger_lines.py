"""What the ledger says about sealed jobs: written after a change of the database, and before anything is sent.

    charge         what the tables cost each of so many objects (`rho`; null: they have no noise); `epsilon` is the
                   largest of one of these objects, over all jobs, at `delta`; `sha256` of their keyed ids in the
                   database; `state`: "opening", or "failed" if the words of the dealer were wrong
    release        the share of the tables that is about to be opened, and the attempt in which it was made
    model          the model that this site has accepted: with no other it scores an object in this job
    labelling      labels of a block's objects are about to be opened to its members; `sha256` of their keyed ids
    allow-release  an allowance is used: a release that costs more than the policy allows

The database knows which lines the ledger has. A process that is killed after a change and before its line writes it
when it is started again; one that is killed after the line writes it once more, and it says the same.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

from ce_client.state.releases.accounts import largest_epsilon, rho_of_objects, spendings
from ce_client.state.releases.database import ReleaseDatabase
from ce_client.state.releases.keyed_ids import ids_of


class RecordsReleases(Protocol):
    """A ledger, as far as it records sealed jobs."""

    def about_release(self, kind: str, job: str, **values: str | float | None) -> bytes: ...


class _Line(NamedTuple):
    """A line that the ledger lacks, and what to write when it has it."""

    write: Callable[[], bytes]
    statement: str
    values: tuple[Any, ...]


def write_lines(database: ReleaseDatabase, ledger: RecordsReleases, delta: float, digest: str = "") -> None:
    """Write all lines that the ledger lacks: about the job of this digest, or about all jobs.

    `delta`: at which epsilons are written.
    """
    if not database.exists:
        return
    with database.reading() as opened:
        lines = [*_of_releases(opened, ledger, delta, digest), *_of_labels(opened, ledger, digest)]
    for line in lines:
        line.write()
    if lines:
        with database.transaction() as opened:
            for line in lines:
                opened.execute(line.statement, line.values)


def _of_releases(opened: sqlite3.Connection, ledger: RecordsReleases, delta: float, digest: str) -> Iterator[_Line]:
    found = opened.execute(
        "SELECT digest, job, definition, state, allowed, rho, objects, origin, share, model, in_ledger FROM releases "
        "WHERE (digest = ? OR ? = '') AND state IN ('opening', 'failed') AND NOT over",
        (digest, digest),
    ).fetchall()
    spent = [one for one in spendings(opened) if one.spent] if found else []
    for key, job, definition, state, allowed, rho, objects, origin, share, model, in_ledger in found:
        ids = ids_of(objects)
        epsilon = largest_epsilon(rho_of_objects(ids, spent), delta)
        # By the letters of `in_ledger`.
        charge = {"objects": len(ids), "rho": None if math.isinf(rho) else rho, "epsilon": epsilon, "delta": delta}
        lines: dict[str, Callable[[], bytes]] = {
            "a": partial(ledger.about_release, "allow-release", job, definition=definition),
            "c": partial(ledger.about_release, "charge", job, **charge, sha256=_sha256(objects), state=state),
            "r": partial(ledger.about_release, "release", job, epoch=origin, size=len(share), sha256=_sha256(share)),
            "m": partial(ledger.about_release, "model", job, sha256=_sha256(model)),
        }
        happened = "a" * bool(allowed) + "c" + "r" * (state == "opening") + "m" * bool(model)
        for letter in happened:
            if letter not in in_ledger:
                statement = "UPDATE releases SET in_ledger = in_ledger || ? WHERE digest = ?"
                yield _Line(lines[letter], statement, (letter, key))


def _of_labels(opened: sqlite3.Connection, ledger: RecordsReleases, digest: str) -> Iterator[_Line]:
    found = opened.execute(
        "SELECT labels.digest, job, block, labels.labellings FROM labels JOIN releases USING (digest) "
        "WHERE (digest = ? OR ? = '') AND labels.state = 'entered' AND labels.in_ledger = ''",
        (digest, digest),
    ).fetchall()
    for key, job, block, labellings in found:
        values = {"block": block.hex(), "objects": len(ids_of(labellings)), "sha256": _sha256(labellings)}
        write = partial(ledger.about_release, "labelling", job, **values)
        yield _Line(write, "UPDATE labels SET in_ledger = 'l' WHERE digest = ? AND block = ?", (key, block))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
