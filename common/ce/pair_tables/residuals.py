"""Standardised residuals of pair tables, and how many clusters stand out of them.

    Z = (P - E) / sqrt(E + sd²),   E_ab = R_aj' R_bj / n_jj'

R_aj' is the row sum of label a in its table with column j', n_jj' the objects with both labels. Clusters beyond the
first are eigenvalues of Z above the edge of what independent columns give. The edge is not Wigner's: tables share their
objects, which widens it by (D - M) / sqrt(n).

With noise, margins and totals of single tables are useless where tables are small: all tables take one total and one
margin for each column, unless a table's total differs by more than three standard deviations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError
from ce.pair_tables.layout import Reals, TableLayout

#: Expected counts below this do not shrink the denominator of a residual further.
_LEAST_EXPECTED = 0.05
#: Standard deviations that a noisy total may be from the common one, or from zero, and still be taken for it.
_DEVIATIONS = 3.0
#: Eigenvalues and eigenvectors that are found, the largest ones; a fit has at most 31 clusters and needs 30.
MOST_EIGENVALUES = 32
#: Columns count as seen together if they share at least this part of the objects that columns of their sizes would
#: share if labels were missing independently.
_SEEN_TOGETHER = 0.25


@dataclass(frozen=True, eq=False)
class Residuals:
    """Pair tables with what follows from them before a fit. Made by `Residuals.of`."""

    layout: TableLayout
    sd: float  # standard deviation of the noise in each cell; 0 = exact
    tables: Reals  # (D, D), 0 within a column and where two columns were never seen together
    seen: NDArray[np.bool_]  # (M, M) whether the two columns have common objects
    totals: Reals  # (M, M) objects with both labels
    row_sums: Reals  # (D, M) R: objects with label a and any label in column j'
    margins: Reals  # (D,) objects with label a, as a mean over the tables of its column
    n_objects: float  # mean total of the tables

    @classmethod
    def of(cls, tables: Reals, layout: TableLayout, sd: float = 0.0) -> Residuals:
        """Of tables whose cells have noise of this standard deviation."""
        tables = np.array(tables, dtype=np.float64)
        layout.check_shape(tables)
        if not np.isfinite(tables).all() or not np.isfinite(sd) or sd < 0:
            raise InputError("pair tables: expected finite numbers, and a standard deviation of at least 0")
        column = layout.column_of
        tables[column[:, None] == column[None]] = 0.0
        row_sums = np.ascontiguousarray(layout.per_column(tables.T).T)
        totals = layout.per_column(row_sums)
        seen = totals > 0.5
        if sd:
            totals, seen = _common_totals(totals, layout, sd)
        np.fill_diagonal(seen, False)
        tables[~seen[column][:, column]] = 0.0
        n_objects = float(totals[seen].mean()) if seen.any() else 1.0
        margins = np.where(seen[column], row_sums, 0.0).sum(axis=1) / np.maximum(seen.sum(axis=1)[column], 1)
        if sd:
            margins = _positive_margins(margins, layout, sd, n_objects)
            row_sums = margins[:, None] / n_objects * totals[column]
        return cls(layout, float(sd), tables, seen, totals, row_sums, np.maximum(margins, 1e-3), n_objects)

    @cached_property
    def counts(self) -> Reals:
        """(D, D) the tables without negative cells, which only noise makes."""
        return np.maximum(self.tables, 0.0)

    @cached_property
    def expected(self) -> Reals:
        """(D, D) E: what the cells would be if columns were independent; 0 where there is no table."""
        column = self.layout.column_of
        rows = np.maximum(self.row_sums, 1e-9)[:, column]
        totals = np.where(self.seen, self.totals, 1.0)
        expected: Reals = rows * rows.T
        expected /= totals[column][:, column]
        expected[~self.seen[column][:, column]] = 0.0
        return expected

    @cached_property
    def standardised(self) -> Reals:
        """(D, D) Z, symmetric."""
        z = self.tables - self.expected
        z /= np.sqrt(np.maximum(self.expected, _LEAST_EXPECTED) + self.sd**2)
        column = self.layout.column_of
        z[~self.seen[column][:, column]] = 0.0
        symmetric: Reals = (z + z.T) / 2
        return symmetric

    @cached_property
    def eigenpairs(self) -> tuple[Reals, Reals]:
        """The largest eigenvalues of Z, largest first, and their eigenvectors (D, number)."""
        width = self.layout.width
        first = max(width - MOST_EIGENVALUES, 0)
        from scipy.linalg import eigh  # here, as daemons and commands that never fit would wait for it

        values, vectors = eigh(self.standardised, subset_by_index=(first, width - 1), driver="evr")
        return np.ascontiguousarray(values[::-1]), np.ascontiguousarray(vectors[:, ::-1])

    @property
    def eigenvalues(self) -> Reals:
        """The largest eigenvalues of Z, at most 32, largest first."""
        return self.eigenpairs[0]

    @property
    def edge(self) -> float:
        """What the largest eigenvalue of independent columns does not pass."""
        layout = self.layout
        sampled = 1.0
        if self.sd:
            cells = self.seen[layout.column_of][:, layout.column_of]
            expected = self.expected[cells]
            sampled = float(np.mean(expected / (expected + self.sd**2))) if expected.size else 0.0
        free = layout.width - layout.n_columns
        # Noise fills all D dimensions; sampling, whose share of the variance is `sampled`, only D - M of them.
        dimensions = max(free + layout.n_columns * (1.0 - sampled), 1.0)
        shared = sampled**1.5 * free / np.sqrt(self.n_objects)
        return float(2.0 * np.sqrt(dimensions) + shared + 2.0 * dimensions ** (-1.0 / 6.0))

    def of_columns(self, columns: list[int]) -> Residuals:
        """The residuals of some of the columns among themselves."""
        layout = self.layout
        rows = np.flatnonzero(np.isin(layout.column_of, columns))
        part = TableLayout(
            tuple(layout.names[j] for j in columns),
            tuple(layout.categories[j] for j in columns),
        )
        return Residuals.of(self.tables[np.ix_(rows, rows)], part, self.sd)


def clusters_above_edge(residuals: Residuals, slack: float = 0.0) -> int:
    """k-hat: one more than the eigenvalues above the edge, which `slack` moves up by this part of itself.

    Where columns are never seen together, each set of columns that are has the eigenvalues of all clusters, and the
    whole has them repeatedly: they are counted within such sets, and the largest count is taken.
    """
    most = 1
    for columns in _sets_seen_together(residuals):
        if len(columns) < 2:
            continue
        whole = len(columns) == residuals.layout.n_columns
        part = residuals if whole else residuals.of_columns(columns)
        most = max(most, 1 + int((part.eigenvalues > part.edge * (1.0 + slack)).sum()))
    return most


def _sets_seen_together(residuals: Residuals) -> list[list[int]]:
    """Sets of columns, each seen together with every other of its set, that together have all columns.

    A set begins with the first column that is in none yet, and takes the columns that share most objects with it first.
    """
    totals = np.where(residuals.seen, residuals.totals, 0.0)
    largest = totals.max(axis=1)
    independent = np.outer(largest, largest) / max(float(largest.max()), 1e-300)
    together = residuals.seen & (totals >= _SEEN_TOGETHER * independent)
    sets: list[list[int]] = []
    covered: set[int] = set()
    for first in range(residuals.layout.n_columns):
        if first in covered:
            continue
        members = [first]
        for other in np.argsort(-totals[first], kind="stable").tolist():
            if other != first and together[other][members].all():
                members.append(other)
        covered.update(members)
        sets.append(sorted(members))
    return sets


def _common_totals(totals: Reals, layout: TableLayout, sd: float) -> tuple[Reals, NDArray[np.bool_]]:
    """(M, M) totals of noisy tables, and which tables have objects at all."""
    others = ~np.eye(layout.n_columns, dtype=bool)
    deviation = sd * np.sqrt(np.outer(layout.categories, layout.categories))
    common = float(np.median(totals[others]))
    away = np.abs(totals - common) / deviation
    clear = others & (totals > _DEVIATIONS * deviation)
    if (away[others] > _DEVIATIONS).mean() > 0.1 and clear.any():
        # Columns that are never seen together have totals around zero; the common total is that of the others.
        common = float(np.median(totals[clear]))
    replaced = np.abs(totals - common) < _DEVIATIONS * deviation
    totals = np.where(replaced, max(common, 1.0), totals)
    seen = replaced | (totals > np.maximum(_DEVIATIONS * deviation, 0.5))
    return totals, seen & others


def _positive_margins(margins: Reals, layout: TableLayout, sd: float, n_objects: float) -> Reals:
    """Noisy margins, raised to what noise leaves uncertain, with the total of each column."""
    categories = np.array(layout.categories)
    uncertain = sd * np.sqrt(categories.mean() / max(layout.n_columns - 1, 1))
    raised = np.maximum(margins, 0.5 * uncertain + 0.02 * n_objects / categories[layout.column_of])
    positive: Reals = layout.normalised(raised) * n_objects
    return positive
