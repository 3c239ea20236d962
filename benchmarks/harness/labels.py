"""Labels to measure with: planted clusterings with wrong labels, and labels as k-means gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

import ce

Codes = NDArray[np.int32]


def planted(n: int, columns: int, k: int, *, wrong: float = 0.3, seed: int = 0) -> tuple[Codes, Codes]:
    """Truth (n,), and permuted copies of it (n, columns), a share of their labels drawn anew.

    With 20 columns and 30 % wrong labels almost no two rows are equal: none are merged.
    """
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, k, n).astype(np.int32)
    codes = np.column_stack([rng.permutation(k)[truth] for _ in range(columns)]).astype(np.int32)
    at = rng.random(codes.shape) < wrong
    codes[at] = rng.integers(0, k, int(at.sum()))
    return truth, codes


def like_k_means(n: int, columns: int, k: int, *, seed: int = 0) -> Codes:
    """(n, columns): labels of points in the plane by their nearest centre, centres a little different in each column.

    Many rows are equal, as in base clusterings by k-means.
    """
    rng = np.random.default_rng(seed)
    centres = rng.normal(scale=4.0, size=(k, 2))
    points = centres[rng.integers(0, k, n)] + rng.normal(size=(n, 2))
    found = np.empty((n, columns), dtype=np.int32)
    for c in range(columns):
        moved = centres[rng.permutation(k)] + rng.normal(scale=0.3, size=(k, 2))
        found[:, c] = (np.square(moved).sum(axis=1) - 2.0 * points @ moved.T).argmin(axis=1)
    return found


def by_columns(codes: Codes, sites: Sequence[str]) -> Mapping[str, ce.LabelTable]:
    """All objects at each site, columns in turn."""
    ids = [f"o{i}" for i in range(len(codes))]
    return {
        site: ce.LabelTable.from_arrays(
            codes[:, at :: len(sites)],
            ids=ids,
            columns=[f"{site}_{c}" for c in range(at, codes.shape[1], len(sites))],
        )
        for at, site in enumerate(sites)
    }


def by_rows(codes: Codes, sites: Sequence[str]) -> Mapping[str, ce.LabelTable]:
    """All columns at each site, objects in equal parts."""
    ids = np.array([f"o{i}" for i in range(len(codes))])
    parts = np.array_split(np.arange(len(codes)), len(sites))
    return {
        site: ce.LabelTable.from_arrays(codes[part], ids=ids[part]) for site, part in zip(sites, parts, strict=True)
    }
