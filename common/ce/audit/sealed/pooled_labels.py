"""The labels of all sites in the layout of a sealed job: known to the audit alone, which draws releases from them and
scores guesses against them. No attack is given this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ce.labels import LabelTable
from ce.pair_tables import TableLayout, log_scores, pair_tables
from ce.ring import Reals

Codes = NDArray[np.int32]
Flags = NDArray[np.bool_]
Winners = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class PooledLabels:
    """Every label of every site. Objects are those of all sites, in the order of their ids."""

    layout: TableLayout
    ids: NDArray[Any] = field(repr=False)
    held: Mapping[str, Flags] = field(repr=False)  # by site: (objects,)
    codes: Mapping[str, Codes] = field(repr=False)  # by site: (objects, M), -1: no label here
    holders: Mapping[str, tuple[str, ...]]  # by column: the sites that enrol it
    #: Of objects that two sites hold, a site with fewer labels in columns that the other lacks scores none: its policy.
    min_foreign_columns: int = 0

    @classmethod
    def of(cls, tables: Mapping[str, LabelTable], min_foreign_columns: int = 0) -> PooledLabels:
        ids = np.unique(np.concatenate([table.ids for table in tables.values()]))
        holders: dict[str, tuple[str, ...]] = {}
        categories: dict[str, set[Any]] = {}
        for site in sorted(tables):
            for column in tables[site].columns:
                if column.kind == "clustering":
                    holders[column.name] = (*holders.get(column.name, ()), site)
                    categories.setdefault(column.name, set()).update(column.categories)
        names = tuple(sorted(holders))
        known = {name: tuple(sorted(categories[name], key=str)) for name in names}
        layout = TableLayout(names, tuple(len(known[name]) for name in names))
        held, codes = {}, {}
        for site, table in tables.items():
            rows = np.searchsorted(ids, table.ids)
            mine = np.full((len(ids), len(names)), -1, dtype=np.int32)
            for column in table.columns:
                if column.kind == "clustering":
                    mine[rows, names.index(column.name)] = column.recode(known[column.name]).likeliest
            codes[site] = mine
            held[site] = np.isin(ids, table.ids)
        return cls(layout, ids, held, codes, holders, min_foreign_columns)

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(sorted(self.codes))

    @cached_property
    def counts(self) -> list[Reals]:
        """By column: (objects, k_j) how many sites give an object each label."""
        found = []
        for j, k in enumerate(self.layout.categories):
            column = np.zeros((len(self.ids), k))
            for codes in self.codes.values():
                labelled = np.flatnonzero(codes[:, j] >= 0)
                np.add.at(column, (labelled, codes[labelled, j]), 1.0)
            found.append(column)
        return found

    @cached_property
    def tables(self) -> Reals:
        """(D, D) the exact pair tables, which no job opens unless every site allows it."""
        return pair_tables(self.counts, self.layout)

    def winners(self, weights: Reals, beta: Reals) -> Winners:
        """(objects,) the cluster that scores best; -1 for objects without a label that is scored."""
        of_two = np.sum(list(self.held.values()), axis=0) == 2
        scored = {}
        for site, codes in self.codes.items():
            few = np.zeros(len(self.ids), dtype=bool)
            for other in self.codes.keys() - {site}:
                foreign = np.array([other not in self.holders[name] for name in self.layout.names], dtype=bool)
                few |= self.held[other] & ((codes[:, foreign] >= 0).sum(axis=1) < self.min_foreign_columns)
            few &= of_two
            scored[site] = np.where(few[:, None], np.int32(-1), codes)
        counts = replace(self, codes=scored).counts
        best: Winners = log_scores(counts, self.layout, weights, beta).argmax(axis=1).astype(np.intp)
        best[~np.any([(codes >= 0).any(axis=1) for codes in scored.values()], axis=0)] = -1
        return best

    def edited(self, site: str, codes: Codes) -> PooledLabels:
        """The same, after one site changed its file."""
        return replace(self, codes={**self.codes, site: codes})

    def without(self, site: str) -> PooledLabels:
        """The same job on a roster without one site: its labels are gone, and columns that only it had are empty."""
        rest = {name: codes for name, codes in self.codes.items() if name != site}
        held = {name: flags for name, flags in self.held.items() if name != site}
        holders = {name: tuple(h for h in sites if h != site) for name, sites in self.holders.items()}
        return replace(self, held=held, codes=rest, holders=holders)
