"""Partitions of objects by rows of numbers: equal rows, nearly equal rows, or a number of groups of similar rows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage

from ce.ring import Reals, Words

Groups = NDArray[np.intp]

_STARTS = 6
_ITERATIONS = 50
#: Most objects for agglomeration, which compares all pairs.
_MOST_AGGLOMERATED = 2500
#: Directions whose singular value is below this, relative to the largest, are noise to k-means.
_NOISE = 1e-6
_MOST_DIRECTIONS = 30


def equal_rows(rows: Words | Reals) -> Groups:
    """(n, m) -> (n,): objects with equal rows."""
    _, groups = np.unique(np.ascontiguousarray(rows), axis=0, return_inverse=True)
    return groups.reshape(-1).astype(np.intp)


def nearly_equal_rows(rows: Reals, tolerance: float) -> Groups:
    """Objects whose rows differ by rounding errors only: no gap above `tolerance` in any of four random directions."""
    n, width = rows.shape
    directions = np.random.default_rng(0).normal(size=(width, 4)) / np.sqrt(max(width, 1))
    seen = np.zeros((n, directions.shape[1]), dtype=np.intp)
    for at, values in enumerate((rows @ directions).T):
        order = np.argsort(values, kind="stable")
        steps = np.diff(values[order], prepend=values[order[:1]]) > tolerance
        seen[order, at] = np.cumsum(steps)
    return equal_rows(seen)


def close_rows(rows: Reals, distance: float) -> Groups:
    """Single linkage: objects that are connected by steps no longer than `distance`."""
    if not rows.size:
        return np.zeros(len(rows), dtype=np.intp)
    groups: Groups = (fcluster(linkage(rows, "single"), distance, "distance") - 1).astype(np.intp)
    return groups


def features(arrays: Iterable[Reals], objects: int) -> Reals:
    """(starts, k, n) arrays side by side as (n, width), without columns that are constant or not finite."""
    blocks = [array.reshape(-1, objects) for array in arrays]
    rows: Reals = np.concatenate(blocks or [np.zeros((0, objects))]).T
    usable = np.isfinite(rows).all(axis=0)
    rows = rows[:, usable]
    return rows[:, np.ptp(rows, axis=0) > 0] if len(rows) else rows


def principal(rows: Reals) -> Reals:
    """The directions along which rows differ most."""
    if not rows.size:
        return rows
    centred = rows - rows.mean(axis=0)
    # Eigenvectors of the smaller of the two products: much faster than an SVD of the rows, and exact enough here.
    wide = rows.shape[1] > rows.shape[0]
    squares, vectors = np.linalg.eigh(centred @ centred.T if wide else centred.T @ centred)
    sizes = np.sqrt(np.maximum(squares[::-1], 0.0))
    rank = int(min((sizes > _NOISE * max(sizes[0], 1e-300)).sum(), _MOST_DIRECTIONS))
    first = vectors[:, ::-1][:, :rank]
    scores: Reals = first * sizes[:rank] if wide else centred @ first
    return scores


def similar_rows(rows: Reals, groups: int) -> list[Groups]:
    """Partitions into this many groups: by k-means and, up to 2,500 objects, by Ward's and average agglomeration."""
    found = [k_means(rows, groups)]
    if rows.size and groups < len(rows) <= _MOST_AGGLOMERATED:
        found += [(fcluster(linkage(rows, how), groups, "maxclust") - 1).astype(np.intp) for how in ("ward", "average")]
    return found


def k_means(rows: Reals, groups: int, seed: int = 0) -> Groups:
    """Lloyd's algorithm from k-means++ starts, the best of six. One group where all rows are alike."""
    if not rows.size or groups < 2 or len(rows) <= groups:
        return np.zeros(len(rows), dtype=np.intp)
    rng = np.random.default_rng(seed)
    best, least = np.zeros(len(rows), dtype=np.intp), np.inf
    squares = np.square(rows).sum(axis=1)
    for _ in range(_STARTS):
        centres = _spread_out(rows, squares, groups, rng)
        assigned = np.full(len(rows), -1, dtype=np.intp)
        for _ in range(_ITERATIONS):
            distances = _distances(rows, squares, centres)
            nearest = distances.argmin(axis=1)
            if (nearest == assigned).all():
                break
            assigned = nearest
            for g in np.unique(assigned):
                centres[g] = rows[assigned == g].mean(axis=0)
        cost = float(distances[np.arange(len(rows)), assigned].sum())
        if cost < least:
            best, least = assigned, cost
    return best


def _spread_out(rows: Reals, squares: Reals, groups: int, rng: np.random.Generator) -> Reals:
    centres: Reals = rows[rng.integers(len(rows))][None].copy()
    while len(centres) < groups:
        far = np.maximum(_distances(rows, squares, centres).min(axis=1), 0.0)
        total = far.sum()
        chosen = rng.choice(len(rows), p=far / total) if total > 0 else rng.integers(len(rows))
        centres = np.vstack([centres, rows[chosen]])
    return centres


def _distances(rows: Reals, squares: Reals, centres: Reals) -> Reals:
    between: Reals = squares[:, None] - 2.0 * rows @ centres.T + np.square(centres).sum(axis=1)
    return between
