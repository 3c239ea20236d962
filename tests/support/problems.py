"""Random problems and random ways to spread their cells over sites, for the tests of the protocol."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ce.labels import Column, LabelTable

CLASSES = ("a", "b", "c", "d", "e", "f")


@dataclass(frozen=True)
class Problem:
    """A pooled table and how many clusters or classes to look for."""

    table: LabelTable
    k: int

    @property
    def classes(self) -> tuple[str, ...]:
        return CLASSES[: self.k]


def problem(
    seed: int, *, k: int, clusterings: int, missing: float, classifiers: int = 0, n: int | None = None
) -> Problem:
    """Noisy labels of k groups; some columns soft, some cells, and so perhaps whole objects, missing."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(15, 60)) if n is None else n
    truth = rng.integers(0, k, n)
    columns = []
    for j in range(clusterings):
        categories = int(rng.integers(1, 8))
        codes = rng.integers(0, categories, k)[truth]
        noisy = rng.random(n) < 0.3
        codes[noisy] = rng.integers(0, categories, noisy.sum())
        gone = rng.random(n) < missing
        gone[j % n] = False
        columns.append(_column(f"c{j}", "clustering", tuple(range(categories)), codes, gone, rng.random() < 0.2, rng))
    for j in range(classifiers):
        votes = np.where(rng.random(n) < 0.4, rng.integers(0, k, n), truth)
        gone = rng.random(n) < missing
        gone[j % n] = False
        columns.append(_column(f"v{j}", "classifier", CLASSES[:k], votes, gone, rng.random() < 0.5, rng))
    ids = rng.permutation(10 * n)[:n].astype(np.str_)
    return Problem(LabelTable(ids, tuple(columns)), k)


def _column(name, kind, categories, codes, gone, soft, rng):  # type: ignore[no-untyped-def]
    if not soft:
        return Column(name, kind, categories, np.where(gone, -1, codes).astype(np.int32), None)
    probabilities = rng.dirichlet(np.full(len(categories), 0.5), len(codes))
    probabilities = 0.5 * probabilities + 0.5 * np.eye(len(categories))[codes]
    probabilities[gone] = np.nan
    return Column(name, kind, categories, None, probabilities)


def deal(table: LabelTable, owner: NDArray[np.intp], *, lists_all: bool = False) -> dict[str, LabelTable]:
    """Give the cell of object i and column j to site owner[i, j]; -1 drops nothing: every cell has an owner.

    A site lists the objects of which it owns a labelled cell or, with `lists_all`, of which it owns any cell.
    """
    tables = {}
    for s in np.unique(owner):
        mine = owner == s
        columns = []
        for j, column in enumerate(table.columns):
            if (mine[:, j] & column.observed).any():
                columns.append(_hide(column, ~mine[:, j]))
        if not columns:
            continue
        whole = LabelTable(table.ids, tuple(columns))
        rows = mine.any(axis=1) if lists_all else whole.labelled
        # A site's own order of objects is its own affair.
        order = np.random.default_rng(int(s)).permutation(np.flatnonzero(rows))
        tables[f"site{s}"] = whole.select(order)
    return tables


def _hide(column: Column, hidden: NDArray[np.bool_]) -> Column:
    if column.codes is not None:
        codes = np.where(hidden, -1, column.codes).astype(np.int32)
        return Column(column.name, column.kind, column.categories, codes, None)
    assert column.probabilities is not None
    probabilities = np.where(hidden[:, None], np.nan, column.probabilities)
    return Column(column.name, column.kind, column.categories, None, probabilities)


def rows(table: LabelTable, sites: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Row-distributed: each object at one site."""
    return np.tile(rng.integers(0, sites, table.n_objects)[:, None], (1, len(table.columns)))


def columns(table: LabelTable, sites: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Column-distributed: each column at one site."""
    return np.tile(rng.integers(0, sites, len(table.columns)), (table.n_objects, 1))


def rectangles(table: LabelTable, sites: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Object groups by column groups, each rectangle at one site."""
    groups = rng.integers(0, 3, table.n_objects)
    bundles = rng.integers(0, 3, len(table.columns))
    return rng.integers(0, sites, (3, 3))[groups][:, bundles]


def ragged(table: LabelTable, sites: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Each cell anywhere."""
    return rng.integers(0, sites, (table.n_objects, len(table.columns)))


def figure_3(table: LabelTable, sites: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """BC3E's Figure 3: objects X1, X2, X3 by columns G1, G2, G3; G1 shared by sites 0, 2, 4, which also share objects
    with sites 1, 3, 5: site 0 = X1 x G1, site 1 = X1 x (G2 + G3), site 2 = X2 x G1, site 3 = X2 x (G2 + G3), ...
    """
    objects = np.arange(table.n_objects) % 3
    first = np.arange(len(table.columns)) % 3 == 0
    return 2 * objects[:, None] + np.where(first, 0, 1)[None, :]


TOPOLOGIES = {"rows": rows, "columns": columns, "rectangles": rectangles, "ragged": ragged, "figure_3": figure_3}
