"""Where each category of each column stands in the pair tables.

All categories of all columns, column after column in name order, are the D rows and D columns of one array. The tables
of the pairs i < j are its blocks above the diagonal; sites send them as one vector, each unordered pair once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError

Reals = NDArray[np.float64]

#: Categories of all columns together. The fit holds some ten arrays of (D, D) and finds eigenvalues in D³ steps: at
#: this width 1.2 GB and minutes. A column of ids or of measured values passes it; a clustering never does.
MOST_WIDTH = 4_000


@dataclass(frozen=True)
class TableLayout:
    """Columns in name order, and how many categories each has."""

    names: tuple[str, ...]
    categories: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "categories", tuple(int(k) for k in self.categories))
        if len(self.names) != len(self.categories):
            raise InputError(
                f"pair tables: expected a number of categories for each of {len(self.names)} columns, "
                f"got {len(self.categories)}"
            )
        if len(self.names) < 2:
            raise InputError(f"pair tables need at least two columns, got {len(self.names)}")
        if list(self.names) != sorted(set(self.names)):
            raise InputError("pair tables: columns are in name order, and each has another name")
        if min(self.categories) < 1:
            raise InputError("pair tables: a column has at least one category")
        if sum(self.categories) > MOST_WIDTH:
            raise InputError(
                f"pair tables take at most {MOST_WIDTH:,} categories of all columns together, got "
                f"{sum(self.categories):,}: leave out columns with a category for nearly every object"
            )

    @property
    def n_columns(self) -> int:
        """M, the number of columns."""
        return len(self.names)

    @cached_property
    def width(self) -> int:
        """D, the number of categories of all columns."""
        return sum(self.categories)

    @cached_property
    def offsets(self) -> NDArray[np.intp]:
        """(M,) where the categories of each column begin."""
        return np.concatenate([[0], np.cumsum(self.categories)[:-1]]).astype(np.intp)

    @cached_property
    def column_of(self) -> NDArray[np.intp]:
        """(D,) the column of each category."""
        return np.repeat(np.arange(self.n_columns), self.categories)

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs of columns i < j, in the order in which their tables are packed."""
        return [(i, j) for i in range(self.n_columns) for j in range(i + 1, self.n_columns)]

    @property
    def n_cells(self) -> int:
        """The cells of the tables of all pairs."""
        return (self.width**2 - sum(k * k for k in self.categories)) // 2

    def packed(self, tables: NDArray[np.generic]) -> NDArray[np.generic]:
        """(n_cells,) the cells of the pairs i < j, pair after pair, each table row by row."""
        self.check_shape(tables)
        spans = self._spans
        return np.concatenate([tables[spans[i], spans[j]].ravel() for i, j in self.pairs])

    def unpacked(self, cells: NDArray[np.generic]) -> NDArray[np.generic]:
        """(D, D) symmetric tables of packed cells; a column's block with itself is 0."""
        if cells.shape != (self.n_cells,):
            raise InputError(f"pair tables: expected {self.n_cells} cells, got an array of shape {cells.shape}")
        tables = np.zeros((self.width, self.width), dtype=cells.dtype)
        spans, at = self._spans, 0
        for i, j in self.pairs:
            shape = self.categories[i], self.categories[j]
            table = cells[at : at + shape[0] * shape[1]].reshape(shape)
            tables[spans[i], spans[j]] = table
            tables[spans[j], spans[i]] = table.T
            at += table.size
        return tables

    def per_column(self, values: Reals) -> Reals:
        """Sums over the categories of each column: (D, ...) to (M, ...)."""
        sums: Reals = np.add.reduceat(values, self.offsets, axis=0)
        return sums

    def normalised(self, counts: Reals) -> Reals:
        """(D, k) counts as distributions: each column's categories sum to 1 in each cluster."""
        chances: Reals = counts / self.per_column(counts)[self.column_of]
        return chances

    def check_shape(self, tables: NDArray[np.generic]) -> None:
        if tables.shape != (self.width, self.width):
            raise InputError(f"pair tables: expected shape {(self.width, self.width)}, got {tables.shape}")

    @cached_property
    def _spans(self) -> list[slice]:
        return [slice(at, at + k) for at, k in zip(self.offsets, self.categories, strict=True)]
