"""Starts that need all labels in one place. Their tables are made of label rows: never for a distributed job."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError
from ce.labels import Column, LabelTable
from ce.models.pair_columns import PairColumns
from ce.pair_tables import fit_pairs, pair_tables
from ce.ring import Reals

#: How much of the uniform distribution is mixed into a table made of labels, so that no category is impossible.
_UNIFORM = 0.3


def seeds_start(table: LabelTable, k: int, n_starts: int, seed: int) -> dict[str, Reals]:
    """seeds++: k objects by D² sampling on the Hamming distance of label rows; each makes one cluster's table rows."""
    codes = _codes(table, "seeds++")
    rng = np.random.default_rng([seed & (2**64 - 1), 1])
    tables = {c.name: np.empty((n_starts, k, len(c.categories))) for c in table.clusterings}
    for start in range(n_starts):
        centres = _spread_out(codes, k, rng)
        for j, column in enumerate(table.clusterings):
            tables[column.name][start] = _mixed(_one_hot(codes[centres, j], len(column.categories)))
    return tables


def base_start(table: LabelTable, k: int, n_starts: int, seed: int) -> dict[str, Reals]:
    """One base clustering as the first consensus: its k largest clusters, completed by random rows if it has fewer."""
    codes = _codes(table, "base")
    rng = np.random.default_rng([seed & (2**64 - 1), 2])
    order = rng.permutation(len(table.clusterings))
    tables = {c.name: np.empty((n_starts, k, len(c.categories))) for c in table.clusterings}
    for start in range(n_starts):
        base = codes[:, order[start % len(order)]]
        sizes = np.bincount(base[base >= 0], minlength=k)
        largest = np.argsort(-sizes, kind="stable")[:k]
        for j, column in enumerate(table.clusterings):
            for h, cluster in enumerate(largest):
                inside = codes[(base == cluster) & (codes[:, j] >= 0), j]
                counts = np.bincount(inside, minlength=len(column.categories)).astype(np.float64)
                if counts.sum() == 0:
                    counts = rng.standard_exponential(len(column.categories)) + 1e-300
                tables[column.name][start, h] = _mixed(counts / max(counts.sum(), 1e-300))
    return tables


def pairs_start(table: LabelTable, k: int, seed: int) -> tuple[Reals, dict[str, Reals]]:
    """One start, from the fit of the pair tables: weights (k,), and the tables of all columns."""
    columns = PairColumns.of(table)
    fitted = fit_pairs(pair_tables(columns.labels(table), columns.layout), columns.layout, k, seed=seed & (2**64 - 1))
    tables = {c.name: np.empty((1, k, len(c.categories))) for c in table.clusterings}
    for name in columns.layout.names:
        tables[name][0] = columns.beta_of(name, fitted.beta)
    return fitted.weights, tables


def _codes(table: LabelTable, init: str) -> NDArray[np.int32]:
    if not table.clusterings:
        raise InputError(f"init={init!r} needs labels of at least one clustering")
    return np.stack([_hard(column, init) for column in table.clusterings], axis=1)


def _hard(column: Column, init: str) -> NDArray[np.int32]:
    if column.codes is None:
        raise InputError(f"init={init!r} needs hard labels, and column {column.name!r} is soft; use 'anneal'")
    return column.codes


def _spread_out(codes: NDArray[np.int32], k: int, rng: np.random.Generator) -> list[int]:
    candidates = np.flatnonzero((codes >= 0).any(axis=1))
    centres = [int(rng.choice(candidates))]
    nearest = np.full(len(candidates), np.inf)
    for _ in range(k - 1):
        centre = codes[centres[-1]]
        both = (codes[candidates] >= 0) & (centre >= 0)
        differ = (both & (codes[candidates] != centre)).sum(axis=1) / np.maximum(both.sum(axis=1), 1)
        nearest = np.minimum(nearest, np.square(differ))
        weight = nearest.sum()
        chances = nearest / weight if weight > 0 else np.full(len(candidates), 1.0 / len(candidates))
        centres.append(int(rng.choice(candidates, p=chances)))
    return centres


def _one_hot(codes: NDArray[np.int32], categories: int) -> Reals:
    """(rows, categories); a missing label is spread evenly."""
    rows: Reals = (codes[:, None] == np.arange(categories)).astype(np.float64)
    rows[codes < 0] = 1.0 / max(categories, 1)
    return rows


def _mixed(rows: Reals) -> Reals:
    mixed: Reals = (1.0 - _UNIFORM) * rows + _UNIFORM / max(rows.shape[-1], 1)
    return mixed
