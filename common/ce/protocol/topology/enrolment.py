"""What a site enrols: made from its label table, and as far as every other site may know it.

With ids and categories on one machine; with pseudonyms, which only holders of the job key can make, where others see
it. Of its categories a site tells all others the number only; which of them take part, the holders of a column agree
on between themselves (`ce.protocol.topology.vocabularies`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ce.labels import Column, LabelTable
from ce.privacy.derivation import joined, number
from ce.privacy.pseudonyms import pseudonyms, tokens
from ce.protocol.topology.site_view import Categories, Kind
from ce.protocol.topology.vocabularies import Wishes

#: A column with more labels than this is enrolled as one with so many: enough for any minimum, and says no more.
MOST_SHOWN = 100

#: How a site writes the categories of a column; None: it has seen none.
Written = Literal["integers", "text"] | None


@dataclass(frozen=True)
class ColumnClaim:
    """A column as one site enrols it. The coordinator, which is told their number only, numbers the categories."""

    name: str
    kind: Kind
    soft: bool
    categories: Categories = field(repr=False)
    written: Written = None
    labels: int = 0  # of its objects that have one, at most MOST_SHOWN; in sealed jobs so many, or 0

    @property
    def summary(self) -> ColumnSummary:
        return ColumnSummary(self.name, self.kind, self.soft, self.written, len(self.categories), self.labels)


@dataclass(frozen=True)
class Enrolment:
    """What a site says it holds: one token per object (in the site's order), and its columns."""

    objects: NDArray[Any] = field(repr=False)
    columns: tuple[ColumnClaim, ...]

    def summary(
        self, revision: int = 0, salt: bytes = b"", key_commitment: bytes = b"", wishes: Wishes | None = None
    ) -> EnrolmentSummary:
        """`salt`: known to this site and the coordinator only, so that no other site can test a guess of its ids."""
        digest = hashlib.sha256(salt)
        digest.update(np.ascontiguousarray(self.objects).data)
        columns = tuple(claim.summary for claim in self.columns)
        return EnrolmentSummary(
            len(self.objects), columns, digest.digest(), revision, key_commitment, wishes or Wishes()
        )


@dataclass(frozen=True)
class ColumnSummary:
    """A column that a site has enrolled: of its categories only the number."""

    name: str
    kind: Kind
    soft: bool
    written: Written
    categories: int
    labels: int = 0

    def signed_bytes(self) -> bytes:
        return joined(
            self.name.encode(),
            self.kind.encode(),
            b"soft" if self.soft else b"hard",
            (self.written or "").encode(),
            number(self.categories),
            number(self.labels),
        )


@dataclass(frozen=True)
class EnrolmentSummary:
    """What a site has enrolled, as far as every other site may know. The site signs it."""

    objects: int
    columns: tuple[ColumnSummary, ...]
    pseudonym_digest: bytes = field(repr=False)  # SHA-256 of the salt and the pseudonyms, in the site's order
    revision: int = 0
    key_commitment: bytes = field(default=b"", repr=False)  # follows from the job key: equal at all sites
    wishes: Wishes = field(default_factory=Wishes)
    #: Of its objects, those that no other site holds. Follows from the alignment, and is not signed.
    private_objects: int = field(default=0, compare=False)

    def signed_bytes(self) -> bytes:
        columns = joined(*(column.signed_bytes() for column in self.columns))
        return joined(
            number(self.objects),
            columns,
            self.pseudonym_digest,
            number(self.revision),
            self.key_commitment,
            number(self.wishes.min_sites),
            number(self.wishes.min_objects),
        )

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """By column."""
        return {column.name: column.kind for column in self.columns}

    def labels(self, column: str) -> int:
        """How many objects have a label in a column, at most MOST_SHOWN."""
        return next(entry.labels for entry in self.columns if entry.name == column)

    def count(self, kind: Kind) -> int:
        return sum(column.kind == kind for column in self.columns)


def with_private_objects(
    summaries: Mapping[str, EnrolmentSummary], private: Mapping[str, int]
) -> dict[str, EnrolmentSummary]:
    return {site: replace(summary, private_objects=private[site]) for site, summary in summaries.items()}


def enrolment_digest(summaries: Mapping[str, EnrolmentSummary], private: Mapping[str, int]) -> bytes:
    """SHA-256 of what all sites have enrolled, and how many objects each holds alone.

    Masks are bound to it: they cancel only if all sites were sent the same, and each has checked its part.
    """
    parts = (
        part
        for site, summary in summaries.items()
        for part in (site.encode(), summary.signed_bytes(), number(private[site]))
    )
    return hashlib.sha256(joined(*parts)).digest()


def enrol(table: LabelTable, votes: bool, job_key: bytes | None = None, *, least: int | None = None) -> Enrolment:
    """A table's objects, and the columns that the model uses (classifiers where it takes `votes`).

    `least`: a sealed job, in which no exact count of labels leaves: a column tells whether it has so many labels, which
    is all that the minimums of the sites need, and not how many. None: another job.
    """
    columns = table.columns if votes else table.clusterings
    if job_key is None:
        return Enrolment(table.ids, tuple(_claim(column, column.categories, least) for column in columns))
    objects = pseudonyms(job_key, table.ids).view("V16").reshape(-1)
    # The classes of classifiers are the job's, so that they are not sent again.
    # Sorted: the order in which a site writes its categories would line them up with those of another job.
    shown: dict[str, Categories] = {
        column.name: tuple(sorted(map(str, column.categories))) for column in with_tokens(table, job_key).clusterings
    }
    return Enrolment(objects, tuple(_claim(column, shown.get(column.name, ()), least) for column in columns))


def by_pseudonym(table: LabelTable, job_key: bytes) -> LabelTable:
    """The same table, its objects in the order of their pseudonyms."""
    objects = pseudonyms(job_key, table.ids).view("V16").reshape(-1)
    return table.select(np.argsort(objects, kind="stable"))


def with_tokens(table: LabelTable, job_key: bytes) -> LabelTable:
    """The same labels, with tokens for the categories of clusterings. Classes are the job's, so they stay."""
    return replace(
        table,
        columns=tuple(
            replace(column, categories=tokens(job_key, column.name, column.categories))
            if column.kind == "clustering"
            else column
            for column in table.columns
        ),
    )


def _claim(column: Column, shown: Categories, least: int | None) -> ColumnClaim:
    labels = min(int(column.observed.sum()), MOST_SHOWN)
    if least is not None:
        labels = MOST_SHOWN if labels >= min(least, MOST_SHOWN) else 0
    return ColumnClaim(column.name, column.kind, column.soft, shown, _written(column), labels)


def _written(column: Column) -> Written:
    if not column.categories:
        return None
    return "integers" if isinstance(column.categories[0], int) else "text"
