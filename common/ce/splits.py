"""Split one label table between several sites, for simulations and tests.

Every label goes to exactly one site. A site has only the objects and columns of which it has a label, as its label file
would; with columns:N it has all objects. Columns have the categories of the complete table.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError
from ce.labels import Column, LabelTable

ACCEPTED = "expected rows:N, columns:N or blocks:N with N sites, for example rows:4"
# Number of random splits that are tried until every site has a label.
DRAWS = 100


def split(table: LabelTable, how: str, seed: int = 0) -> dict[str, LabelTable]:
    """Split the table between sites "site1", "site2", ...; the same seed gives the same split.

    rows:N      objects at random, each with all its columns
    columns:N   columns in turn, clusterings before classifiers, each with all its objects
    blocks:N    rectangles of objects and columns at random: one site has some objects and some columns alone, the
                other objects and columns are shared between sites
    """
    match = re.fullmatch(r"(rows|columns|blocks):([0-9]{1,9})", how)
    if match is None or int(match[2]) < 1:
        raise InputError(f"unknown split {how!r}: {ACCEPTED}")
    kind, n_sites = match[1], int(match[2])
    # (n, m): the labels to split.
    observed = np.column_stack([column.observed for column in table.columns])
    rng = np.random.default_rng(seed)
    if kind == "rows":
        owner = deal_rows(observed, n_sites, rng)
    elif kind == "columns":
        owner = deal_columns(table, observed, n_sites)
    else:
        owner = deal_blocks(observed, n_sites, rng)
    if kind == "columns":
        return {f"site{site + 1}": with_columns(table, observed & (owner == site)) for site in range(n_sites)}
    return {f"site{site + 1}": at_site(table, observed & (owner == site)) for site in range(n_sites)}


def deal_rows(observed: NDArray[np.bool_], n_sites: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """(n, m) the site of every cell: labelled objects in random order, one site after the other."""
    labelled = np.flatnonzero(observed.any(axis=1))
    refuse_too_many(n_sites, len(labelled), "objects with a label")
    owner = np.zeros(observed.shape, dtype=np.intp)
    owner[rng.permutation(labelled)] = (np.arange(len(labelled)) % n_sites)[:, np.newaxis]
    return owner


def deal_columns(table: LabelTable, observed: NDArray[np.bool_], n_sites: int) -> NDArray[np.intp]:
    kinds = np.array([column.kind == "classifier" for column in table.columns])
    labelled = np.flatnonzero(observed.any(axis=0))
    refuse_too_many(n_sites, len(labelled), "columns with a label")
    in_turn = labelled[np.argsort(kinds[labelled], kind="stable")]
    owner = np.zeros(observed.shape, dtype=np.intp)
    owner[:, in_turn] = np.arange(len(labelled)) % n_sites
    return owner


def deal_blocks(observed: NDArray[np.bool_], n_sites: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """A random grid of rectangles: one site has its first row and its first column, all sites share the rest.

    The first row and the first column cross in a rectangle, so they must belong to the same site.
    """
    n, m = observed.shape
    if n_sites == 1:
        return np.zeros(observed.shape, dtype=np.intp)
    across = min(m, 1 + max(1, n_sites // 2))
    down = min(n, 1 + max(2, -(-(n_sites - 1) // max(1, across - 1))))
    refuse_too_many(n_sites, 1 + (down - 1) * (across - 1), f"rectangles in {n} objects and {m} columns")
    for _ in range(DRAWS):
        row_group = rng.permutation(np.arange(n) % down)
        column_group = rng.permutation(np.arange(m) % across)
        alone, *others = rng.permutation(n_sites)
        inner = (down - 1) * (across - 1)
        # Every other site once, then any site.
        sites = np.concatenate([others, rng.integers(n_sites, size=inner - len(others))])
        grid = np.full((down, across), alone)
        grid[1:, 1:] = rng.permutation(sites).reshape(down - 1, across - 1)
        owner: NDArray[np.intp] = grid[row_group[:, np.newaxis], column_group].astype(np.intp)
        if len(np.unique(owner[observed])) == n_sites:
            return owner
    raise InputError(f"too few labels to give {n_sites} sites a block each: {ACCEPTED}")


def refuse_too_many(n_sites: int, most: int, what: str) -> None:
    if n_sites > most:
        raise InputError(f"cannot split into {n_sites} sites: there are only {most} {what}; {ACCEPTED}")


def at_site(table: LabelTable, cells: NDArray[np.bool_]) -> LabelTable:
    """The objects and columns of one site's cells; labels in the cells of other sites are missing."""
    rows = np.flatnonzero(cells.any(axis=1))
    columns = tuple(
        without_cells(column.take(rows), ~cells[rows, at])
        for at, column in enumerate(table.columns)
        if cells[:, at].any()
    )
    return replace(table, ids=table.ids[rows], columns=columns)


def with_columns(table: LabelTable, cells: NDArray[np.bool_]) -> LabelTable:
    """All objects, and the columns of one site's cells."""
    return table.select(columns=[column.name for at, column in enumerate(table.columns) if cells[:, at].any()])


def without_cells(column: Column, cells: NDArray[np.bool_]) -> Column:
    """The column with these cells missing."""
    if column.codes is not None:
        return replace(column, codes=np.where(cells, np.int32(-1), column.codes))
    assert column.probabilities is not None
    return replace(column, probabilities=np.where(cells[:, np.newaxis], np.nan, column.probabilities))
