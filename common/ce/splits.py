"""One table dealt out to several sites, for simulations and tests.

Every labelled cell lands at exactly one site. A site lists only the objects and the columns of which it has a
label, as its label file would. Columns keep the categories of the whole table.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError
from ce.labels import Column, LabelTable

ACCEPTED = "expected rows:N, columns:N or blocks:N with N sites, for example rows:4"
# How often a random deal is drawn again because a site got only missing cells.
DRAWS = 100


def split(table: LabelTable, how: str, seed: int = 0) -> dict[str, LabelTable]:
    """Deals the table to sites "site1", "site2", ...; the same seed deals the same.

    rows:N      objects at random, each with all its columns
    columns:N   columns in turn, clusterings before classifiers, each with all its objects
    blocks:N    rectangles of objects and columns at random: one site has some objects alone and some columns
                alone, the other objects and columns are shared between sites
    """
    match = re.fullmatch(r"(rows|columns|blocks):([0-9]{1,9})", how)
    if match is None or int(match[2]) < 1:
        raise InputError(f"unknown split {how!r}: {ACCEPTED}")
    kind, n_sites = match[1], int(match[2])
    # (n, m): what is there to deal out.
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
    """(n, m) the site of every cell: labelled objects shuffled, then dealt in turn."""
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

    Objects of one site alone and columns of one site alone meet in a rectangle, so it must be the same site.
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
        # Every other site once, then anybody.
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


def at_site(table: LabelTable, mine: NDArray[np.bool_]) -> LabelTable:
    """The cells of one site: its objects, its columns, and nothing in the cells of others."""
    rows = np.flatnonzero(mine.any(axis=1))
    columns = tuple(
        mask(column.take(rows), ~mine[rows, at]) for at, column in enumerate(table.columns) if mine[:, at].any()
    )
    return replace(table, ids=table.ids[rows], columns=columns)


def with_columns(table: LabelTable, mine: NDArray[np.bool_]) -> LabelTable:
    """All objects, and the columns of one site."""
    return table.select(columns=[column.name for at, column in enumerate(table.columns) if mine[:, at].any()])


def mask(column: Column, cells: NDArray[np.bool_]) -> Column:
    """The column with some cells missing."""
    if column.codes is not None:
        return replace(column, codes=np.where(cells, np.int32(-1), column.codes))
    assert column.probabilities is not None
    return replace(column, probabilities=np.where(cells[:, np.newaxis], np.nan, column.probabilities))
