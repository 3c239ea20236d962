"""Which categories of a shared clustering take part in a job: agreed between the sites that hold it.

The sums of a category over all holders show one site's part if that site alone has it. So a category takes part only
if enough holders have enough labels of it. Enough are, S and M being the largest `min_sites` and `min_objects` that a
holder asks for,

    ceil(M / S)   labels of a category at a holder: then the category counts there
    S             holders at which it counts: then it has at least M labels in total

A holder tells the others only the categories that count at it, so that none learns of another's rare ones. Labels of
categories that do not take part are missing in the job. A soft label counts for its likeliest category; what is left
of it on categories that take part is scaled to 1. A column with one holder keeps all its categories.

Where every holder asks for one site and one object, there is no rule: each category that a holder lists takes part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ce.labels import Column, LabelTable
from ce.privacy.pseudonyms import tokens
from ce.protocol.topology.site_view import Categories

#: Largest wishes that a site may state: a larger one would keep everybody's categories out of every job.
MOST_SITES_ASKED, MOST_OBJECTS_ASKED = 1_000, 1_000_000


@dataclass(frozen=True)
class Wishes:
    """The least that one site asks for of a shared category: sites in its total, and labels."""

    min_sites: int = 1
    min_objects: int = 1

    @classmethod
    def of(cls, min_sites: int, min_objects: int) -> Wishes:
        """As a site states them, whatever its policy says."""
        return cls(min(min_sites, MOST_SITES_ASKED), min(min_objects, MOST_OBJECTS_ASKED))

    @property
    def within_bounds(self) -> bool:
        return 1 <= self.min_sites <= MOST_SITES_ASKED and 1 <= self.min_objects <= MOST_OBJECTS_ASKED


#: The numbers of labels from which a category may count: by its wishes a holder learns of which categories another one
#: has at least so many labels, and with few steps it cannot count them.
STEPS = (1, 2, 3, 4, 5, 6, 7, 20, 100, 1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Enough:
    """How many labels make a category count at a holder, and at how many holders it must count."""

    labels: int
    holders: int

    @classmethod
    def of(cls, wishes: Iterable[Wishes]) -> Enough:
        """For a column whose holders have these wishes."""
        asked = list(wishes)
        sites = max(w.min_sites for w in asked)
        if sites == 1 and all(w.min_objects == 1 for w in asked):
            return cls(0, 1)
        # Each holder's own wish is a lower limit. With that many at `sites` holders there are min_objects in all.
        labels = max(-(-w.min_objects // w.min_sites) for w in asked)
        return cls(next(step for step in STEPS if step >= labels), sites)


def counting(column: Column, names: Categories, enough: Enough) -> Categories:
    """The categories of a column that count at its holder; `names` are what they are called between the sites."""
    codes = column.likeliest
    counts = np.bincount(codes[codes >= 0], minlength=len(names))
    found: list[Any] = [name for name, count in zip(names, counts.tolist(), strict=True) if count >= enough.labels]
    return tuple(sorted(found))


def agreed(by_holder: Iterable[Categories], enough: Enough) -> Categories:
    """The categories that take part, sorted: those that count at enough holders."""
    found: Counter[Any] = Counter(name for names in by_holder for name in names)
    return tuple(sorted(name for name, holders in found.items() if holders >= enough.holders))


def names_of(column: Column, job_key: bytes | None) -> Categories:
    """What the categories of a clustering are called between the sites: tokens, on one machine the categories."""
    return column.categories if job_key is None else tokens(job_key, column.name, column.categories)


def agree(
    tables: Mapping[str, LabelTable], wishes: Mapping[str, Wishes], job_key: bytes | None
) -> dict[str, Categories]:
    """The vocabularies of all shared clusterings of these sites, on one machine."""
    holders: dict[str, list[str]] = {}
    for site, table in sorted(tables.items()):
        for column in table.clusterings:
            holders.setdefault(column.name, []).append(site)
    found = {}
    for name, sites in holders.items():
        if len(sites) > 1:
            enough = Enough.of(wishes[site] for site in sites)
            columns = [tables[site].column(name) for site in sites]
            found[name] = agreed([counting(c, names_of(c, job_key), enough) for c in columns], enough)
    return found


def restricted(column: Column, names: Categories, vocabulary: Categories) -> Column:
    """The same column, labels of categories that are not in the vocabulary missing. `names`: see `counting`."""
    known = set(vocabulary)
    takes_part = np.array([name in known for name in names], dtype=bool)
    if takes_part.all():
        return column
    if column.codes is not None:
        codes = np.where(np.append(takes_part, False)[column.codes], column.codes, np.int32(-1))
        return replace(column, codes=codes.astype(np.int32))
    assert column.probabilities is not None
    has_label = np.append(takes_part, False)[column.likeliest]
    probabilities = np.full_like(column.probabilities, np.nan)
    left = column.probabilities[has_label] * takes_part
    probabilities[has_label] = left / left.sum(axis=1, keepdims=True)
    return replace(column, probabilities=probabilities)
