"""Planted ensembles for tests of pair tables: a partition, seen through columns with wrong and missing labels."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ce.pair_tables import TableLayout

Codes = NDArray[np.int64]
Reals = NDArray[np.float64]


def planted(
    n: int,
    columns: int,
    k: int,
    wrong: float,
    seed: int,
    *,
    missing: float = 0.0,
    uneven: bool = False,
    categories: int | None = None,
) -> tuple[Codes, Codes]:
    """(codes (n, columns) with -1 = missing, truth). `wrong` labels are drawn anew; with fewer categories than clusters
    some clusters share a label. Uneven: the largest cluster has three times as many objects as the smallest."""
    rng = np.random.default_rng(seed)
    sizes = np.linspace(1.0, 3.0 if uneven else 1.0, k)
    truth = rng.choice(k, n, p=sizes / sizes.sum())
    used = categories or k
    codes = np.empty((n, columns), dtype=np.int64)
    for j in range(columns):
        label_of = rng.permutation(used)
        if used < k:
            label_of = np.concatenate([label_of, rng.integers(used, size=k - used)])
        replaced = rng.random(n) < wrong
        codes[:, j] = np.where(replaced, rng.integers(used, size=n), label_of[truth])
    codes[rng.random(codes.shape) < missing] = -1
    return codes, truth


def chain(n: int, k: int, wrong: float, seed: int, *, windows: int = 4) -> tuple[Codes, Codes]:
    """The same where each object has nine labels, of three groups of three columns, and neighbours share one group:
    with four windows 135 of 351 pairs of columns have common objects."""
    codes, truth = planted(n, 3 * (2 * windows + 1), k, wrong, seed)
    window = np.random.default_rng([seed, 1]).integers(windows, size=n)
    group = np.arange(codes.shape[1]) // 3
    inside = (group[None] >= 2 * window[:, None]) & (group[None] <= 2 * window[:, None] + 2)
    return np.where(inside, codes, -1), truth


def layout_of(codes: Codes) -> TableLayout:
    """A layout with all categories up to the largest of each column."""
    return TableLayout(
        tuple(f"c{j:03}" for j in range(codes.shape[1])),
        tuple(int(column.max(initial=0)) + 1 for column in codes.T),
    )


def with_noise(tables: Reals, layout: TableLayout, sd: float, seed: int) -> Reals:
    """Whole-number noise of this deviation, once for each pair of columns."""
    cells = layout.packed(tables)
    noise = np.rint(np.random.default_rng(seed).normal(scale=sd, size=len(cells)))
    noisy: Reals = layout.unpacked(cells + noise)
    return noisy


def sd_of_epsilon_1(columns: int = 20, sites: int = 5) -> float:
    """Deviation of a cell opened by sites of equally many columns, one of which may collude: a site's row of an object
    counts for epsilon 1 at delta 1e-6, which is rho 0.0244."""
    at_a_site = columns // sites
    squared = 2.0 * (at_a_site * (columns - at_a_site) + at_a_site * (at_a_site - 1) / 2)
    return math.sqrt(squared / (2 * 0.0244)) * math.sqrt(sites / (sites - 1))
