"""The clusterings of a label table as pair tables take them: columns by name, and categories in a canonical order.

A category stands for the first object, by id, that has it, so that to rename the clusters of a column changes no bit of
a fit. Columns without a label take no part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError
from ce.labels import Column, LabelTable
from ce.pair_tables import TableLayout
from ce.ring import Reals


@dataclass(frozen=True, eq=False)
class PairColumns:
    """The layout of a table's clusterings, and which category of a column stands where in it."""

    layout: TableLayout
    places: dict[str, NDArray[np.intp]]  # by column: the place of each of its sorted categories

    @classmethod
    def of(cls, table: LabelTable) -> PairColumns:
        used = sorted((c for c in table.clusterings if c.observed.any()), key=lambda column: column.name)
        if len(used) < 2:
            raise InputError(
                f"pair tables need at least two clusterings with labels, got {len(used)}: a single clustering is its "
                "own consensus"
            )
        order = np.argsort(table.ids, kind="stable")
        layout = TableLayout(tuple(c.name for c in used), tuple(len(c.categories) for c in used))
        return cls(layout, {column.name: _places(column, order) for column in used})

    def labels(self, table: LabelTable) -> list[NDArray[Any]]:
        """The labels of each column of the layout, in its categories: codes, or fractions of a soft column."""
        return [self._labels(table.column(name), self.places[name]) for name in self.layout.names]

    def beta_of(self, name: str, beta: Reals) -> Reals:
        """(k, k_j) the part of a (D, k) beta for one column, its categories sorted."""
        at = self.layout.offsets[self.layout.names.index(name)] + self.places[name]
        return np.ascontiguousarray(beta[at].T)

    @staticmethod
    def _labels(column: Column, places: NDArray[np.intp]) -> NDArray[Any]:
        if column.codes is not None:
            return np.append(places, -1)[column.codes]
        assert column.probabilities is not None
        fractions = np.empty_like(column.probabilities)
        fractions[:, places] = column.probabilities
        return fractions


def _places(column: Column, order: NDArray[np.intp]) -> NDArray[np.intp]:
    """(k_j,) each category's rank by the first object that has it; those that no object has come last."""
    codes, first = np.unique(column.likeliest[order], return_index=True)
    seen_at = np.full(len(column.categories), len(order))
    seen_at[codes[codes >= 0]] = first[codes >= 0]
    places = np.empty(len(seen_at), dtype=np.intp)
    places[np.argsort(seen_at, kind="stable")] = np.arange(len(seen_at))
    return places
