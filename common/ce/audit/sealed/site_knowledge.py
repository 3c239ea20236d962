"""What a curious site knows after its sealed jobs: their releases, its own labels in each, and the winners of its
objects, which are opened once. It has no label of another site; `ce.audit.sealed.scoring` alone does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ce.audit.adversary_views import Guess
from ce.audit.partitions import Groups, equal_rows
from ce.audit.sealed.pooled_labels import Codes, Flags, PooledLabels, Winners
from ce.audit.sealed.releases import Release
from ce.pair_tables import TableLayout
from ce.ring import Reals


@dataclass(frozen=True)
class Target:
    """One column of one other site, and those of the attacker's objects that this site holds too."""

    column: int
    holder: str
    objects: Flags = field(repr=False, compare=False)  # (objects of the attacker,)
    groups: int  # how many labels there are

    @property
    def key(self) -> tuple[int, str]:
        return self.column, self.holder


#: One group per object of the attacker.
SiteGuesses = dict[tuple[int, str], Guess]


@dataclass(frozen=True, eq=False)
class Seen:
    """One job: what it opened, and the labels that the attacker entered in it."""

    release: Release
    own: Codes = field(repr=False)  # (objects of the attacker, M)

    @property
    def layout(self) -> TableLayout:
        return self.release.layout

    def one_hot(self, columns: Sequence[int]) -> Reals:
        """(objects, categories of these columns) the attacker's own labels."""
        parts = [self.own[:, [j]] == np.arange(self.layout.categories[j]) for j in columns]
        return np.hstack(parts).astype(np.float64)

    def cells(self, columns: Sequence[int], column: int) -> Reals:
        """(categories of these columns, categories of `column`) opened counts."""
        return self.release.tables[np.ix_(self.span(*columns), self.span(column))]

    def span(self, *columns: int) -> Groups:
        """Where the categories of these columns are in the tables."""
        layout = self.layout
        return np.concatenate([np.arange(layout.categories[j]) + layout.offsets[j] for j in columns]).astype(np.intp)


@dataclass(frozen=True, eq=False)
class SiteKnowledge:
    """All that one site can work with."""

    site: str
    seen: Sequence[Seen] = field(repr=False)  # the first one gave the winners
    winners: Winners = field(repr=False)  # (objects of the site,)
    available: Flags = field(repr=False)  # (objects of the site, M): another site of the object's block has the column
    holders: Mapping[str, tuple[str, ...]]
    targets: tuple[Target, ...]

    @classmethod
    def of(cls, labels: PooledLabels, site: str, seen: Sequence[Seen], winners: Winners) -> SiteKnowledge:
        """`labels` are read for what is public: who holds which object and which column."""
        mine = labels.held[site]
        layout = labels.layout
        available = np.zeros((int(mine.sum()), layout.n_columns), dtype=bool)
        targets = []
        for j, name in enumerate(layout.names):
            for other in labels.holders[name]:
                if other == site:
                    continue
                common = labels.held[other][mine]
                available[:, j] |= common
                groups = len(np.unique(labels.codes[other][mine][common, j])) if common.any() else 0
                if common.sum() > 1 and groups > 1:
                    targets.append(Target(j, other, common, layout.categories[j]))
        return cls(site, seen, winners[mine], available, labels.holders, tuple(targets))

    @property
    def own_columns(self) -> list[int]:
        return [j for j, name in enumerate(self.seen[0].layout.names) if self.site in self.holders[name]]

    @property
    def exclusive_columns(self) -> list[int]:
        """Columns that no other site has: their counts are of the site's own objects only."""
        return [j for j in self.own_columns if self.holders[self.seen[0].layout.names[j]] == (self.site,)]

    @cached_property
    def alike(self) -> Groups:
        """(objects,) objects that this site cannot tell apart: equal own labels in all jobs, equal winner, and the same
        foreign columns."""
        own = [seen.own for seen in self.seen]
        return equal_rows(np.hstack([*own, self.winners[:, None], self.available.astype(np.int32)]).astype(np.int64))
