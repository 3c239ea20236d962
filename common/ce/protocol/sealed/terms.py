"""What all parties of a sealed job must agree on before anything leaves: columns, ring, noise, scale of the scores.

The coordinator computes it from the topology, every site from what all sites have enrolled and from the numbers of
categories that the task `meet` brings. Whatever is encrypted or masked is bound to `Terms.digest`: sites that were sent
different numbers cannot read each other.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError, MessageError
from ce.job import EXACT, Job
from ce.pair_tables import MOST_CLUSTERS, TableLayout, score_unit
from ce.privacy.derivation import joined, number
from ce.privacy.discrete_gaussian import LARGEST_SD
from ce.privacy.ring_words import Ring, ring_bits
from ce.privacy.secure_argmax import MOST_MEMBERS
from ce.privacy.zcdp import Noise, Unit, noise_of
from ce.protocol.topology.enrolment import EnrolmentSummary
from ce.protocol.topology.site_view import Block, SiteView
from ce.ring import Words

#: A cell, or the total of a table, may be so many standard deviations of its noise below 0 or above its largest value.
SPREAD = 8.0
#: A table with fewer objects per cell than this many standard deviations of the noise is worth a warning.
CLEAR_CELL = 0.5


@dataclass(frozen=True)
class SealedColumn:
    """A clustering of the job: the sites that enrol it, in order of name, and its number of categories."""

    name: str
    holders: tuple[str, ...]
    categories: int


@dataclass(frozen=True)
class Terms:
    """The public numbers of one sealed job. `Terms.of` makes them."""

    sites: tuple[str, ...]  # the roster, in order of name
    columns: tuple[SealedColumn, ...]  # in name order; those without a category have no part in the job
    objects: int  # different objects of all sites
    clusters: int | Literal["auto"]  # as the job asks
    job_digest: bytes = field(repr=False)
    noise: Noise | None  # None: exact

    @classmethod
    def of(
        cls, job: Job, job_digest: bytes, sites: tuple[str, ...], columns: Iterable[SealedColumn], objects: int
    ) -> Terms:
        """Raises InputError where no such job can run: too few columns or sites, too many clusters, too much noise."""
        taking_part = tuple(sorted((c for c in columns if c.categories), key=lambda column: column.name))
        if len(taking_part) < 2:
            raise InputError(f"a sealed job needs at least two clusterings, got {len(taking_part)}")
        clusters: int | Literal["auto"] = "auto" if job.clusters == "auto" else int(job.clusters or 0)
        if clusters != "auto" and not 1 <= clusters <= min(MOST_CLUSTERS, objects):
            raise InputError(
                f"clusters: a sealed job finds at most {MOST_CLUSTERS}, and not more than objects; got {clusters}"
            )
        noise = None
        if job.epsilon != EXACT:
            unit: Unit = job.unit  # type: ignore[assignment]
            noise = noise_of(
                {column.name: column.holders for column in taking_part},
                sites,
                epsilon=float(job.epsilon),
                delta=job.delta,
                unit=unit,
                collusion=job.collusion,
            )
            if noise.site_variance > LARGEST_SD**2:
                raise InputError(
                    f"epsilon: {job.epsilon:g} needs noise of standard deviation "
                    f"{math.sqrt(noise.site_variance):,.0f} at each site, and at most {LARGEST_SD:,} can be drawn: run "
                    "the job with a larger epsilon or delta"
                )
        return cls(sites, taking_part, objects, clusters, job_digest, noise)

    @cached_property
    def layout(self) -> TableLayout:
        return TableLayout(tuple(c.name for c in self.columns), tuple(c.categories for c in self.columns))

    @property
    def sd(self) -> float:
        """Standard deviation of the noise in each opened cell; 0: exact."""
        return 0.0 if self.noise is None else self.noise.opened_sd

    @property
    def rho(self) -> Mapping[str, float]:
        """What each site charges its objects; without noise there is no such number, and it is infinite."""
        return dict.fromkeys(self.sites, math.inf) if self.noise is None else self.noise.rho_of_site

    @cached_property
    def holder_counts(self) -> NDArray[np.int64]:
        """(M,) h of each column: the sites that enrol it."""
        return np.array([len(column.holders) for column in self.columns], dtype=np.int64)

    @cached_property
    def largest(self) -> Words:
        """(pairs,) the largest total that each table of `layout.pairs` can have: every object in one cell."""
        h = self.holder_counts
        return np.array([self.objects * int(h[i] * h[j]) for i, j in self.layout.pairs], dtype=np.int64)

    @cached_property
    def ring(self) -> Ring:
        return Ring(ring_bits(int(self.largest.max()), self.sd))

    @cached_property
    def score_unit(self) -> int:
        """f: the scores' fixed point, from the most labels that an object can have."""
        return score_unit(int(self.holder_counts.sum()))

    def columns_of(self, site: str) -> tuple[int, ...]:
        """Positions of a site's columns."""
        return tuple(at for at, column in enumerate(self.columns) if site in column.holders)

    def categories_of(self, site: str) -> tuple[int, ...]:
        """Numbers of categories of a site's columns."""
        return tuple(self.columns[at].categories for at in self.columns_of(site))

    def cells_of(self, site: str) -> NDArray[np.intp]:
        """(D_s,) the rows of the tables, of D, that are categories of a site's columns."""
        spans = (
            range(int(self.layout.offsets[at]), int(self.layout.offsets[at]) + self.columns[at].categories)
            for at in self.columns_of(site)
        )
        return np.array([cell for span in spans for cell in span], dtype=np.intp)

    @cached_property
    def widths(self) -> dict[str, int]:
        """D_s of every site: its categories."""
        return {site: sum(self.categories_of(site)) for site in self.sites}

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all of it."""
        columns = (
            joined(c.name.encode(), number(c.categories), *(holder.encode() for holder in c.holders))
            for c in self.columns
        )
        noise = b"" if self.noise is None else str(self.noise.site_variance).encode()
        sites = joined(*(site.encode() for site in self.sites))
        parts = (self.job_digest, sites, joined(*columns), number(self.objects), str(self.clusters).encode(), noise)
        return hashlib.sha256(joined(b"ce sealed terms 1", *parts)).digest()

    def fit_seed(self, cells: Words) -> int:
        """The seed of the fit, which follows from the job and the opened tables: the same for all parties."""
        content = np.ascontiguousarray(cells, dtype="<i8").tobytes()
        return int.from_bytes(hashlib.sha256(joined(b"ce sealed fit 1", self.job_digest, content)).digest()[:8], "big")

    @property
    def noise_warning(self) -> str:
        """A sentence where the noise hides what the tables say; else nothing."""
        most = max(self.columns[i].categories * self.columns[j].categories for i, j in self.layout.pairs)
        if self.objects / most >= CLEAR_CELL * self.sd:
            return ""
        return (
            f"the noise of this job is large for its tables: {self.objects / most:,.1f} objects per cell of the "
            f"largest table, and noise of standard deviation {self.sd:,.1f} in each; a larger epsilon, more objects or "
            "columns with fewer categories give better labels"
        )


def columns_of_topology(view: SiteView) -> list[SealedColumn]:
    """The columns as the coordinator knows them."""
    return [SealedColumn(c.name, c.holders, len(c.categories)) for c in view.clusterings]


def clusterings_of(summaries: Mapping[str, EnrolmentSummary]) -> dict[str, tuple[str, ...]]:
    """The holders of every clustering that a site has enrolled, by name in order."""
    holders: dict[str, list[str]] = {}
    for site in sorted(summaries):
        for column in summaries[site].columns:
            if column.kind == "clustering":
                holders.setdefault(column.name, []).append(site)
    return {name: tuple(holders[name]) for name in sorted(holders)}


def columns_of_enrolments(
    summaries: Mapping[str, EnrolmentSummary], categories: NDArray[np.generic], view: SiteView
) -> list[SealedColumn]:
    """The columns as a site knows them: `categories` is what the task `meet` says, in order of the columns' names.

    Raises MessageError where it differs from what this site knows itself: of its columns, of columns with one holder,
    and the sum.
    """
    holders = clusterings_of(summaries)
    if categories.dtype != np.int64 or categories.shape != (len(holders),):
        raise MessageError(f"categories: expected {len(holders)} numbers, got shape {categories.shape}")
    counts = [int(count) for count in categories.tolist()]
    here = {column.name: len(column.categories) for column in view.clusterings}
    for (name, sites), count in zip(holders.items(), counts, strict=True):
        known = here.get(name)
        if known is None and len(sites) == 1:
            known = next(column.categories for column in summaries[sites[0]].columns if column.name == name)
        if not 0 <= count <= view.sizes.categories or (known is not None and known != count):
            raise MessageError("categories: a column has another number of categories than its holders enrolled")
    if sum(counts) != view.sizes.categories:
        raise MessageError(f"categories: expected {view.sizes.categories:,} in all columns, got {sum(counts):,}")
    return [SealedColumn(name, sites, count) for (name, sites), count in zip(holders.items(), counts, strict=True)]


def block_digest(job_digest: bytes, block: Block, objects: bytes) -> bytes:
    """What a shared block is, the same in every attempt: job, members, and the digest of its objects in their order."""
    if len(block.members) > MOST_MEMBERS:
        raise InputError(f"a sealed job labels objects of at most {MOST_MEMBERS} sites, got {len(block.members)}")
    members = joined(*(site.encode() for site in block.members))
    return hashlib.sha256(joined(b"ce sealed block 1", job_digest, members, number(block.size), objects)).digest()
