"""Where a fit begins: clusters of categories in the leading eigenvectors of the residuals.

Categories of one cluster have residuals in the same direction, so that weighted k-means on the rows of U sqrt(lambda)
groups them. One such start replaces many random ones. Where a column has fewer categories than there are clusters, some
category stands for several clusters; then the purest categories (successive projection) are a second start.

Two machines must begin at the same point, or a site would refuse an honest model; their eigenvectors differ by
rounding. So points and centres are whole numbers on a coarse grid, on which distances are exact in any order.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ce.pair_tables.layout import Reals
from ce.pair_tables.residuals import Residuals

_TRIES, _ITERATIONS = 10, 30
#: Steps of the grid up to the power of two above the largest coordinate, and in the largest squared length.
_GRID, _FINE_GRID = 2.0**16, 2.0**24
#: Eigenvalues below this part of the largest are zero but for rounding.
_ZERO = 1e-9
Start = tuple[Reals, Reals]  # weights (k,), beta (D, k)


def starting_points(residuals: Residuals, n_clusters: int, seed: int) -> list[Start]:
    """Weights and beta to begin with, one pair for each start."""
    if n_clusters == 1:
        return [(np.ones(1), residuals.layout.normalised(residuals.margins[:, None]))]
    points, step = _embedding(residuals, n_clusters)
    starts = [_start_of(residuals, _k_means(points, residuals.margins, n_clusters, seed), n_clusters)]
    if min(residuals.layout.categories) < n_clusters:
        starts.append(_start_of(residuals, _nearest_pure(residuals, points, step, n_clusters), n_clusters))
    return starts


def _embedding(residuals: Residuals, n_clusters: int) -> tuple[Reals, float]:
    """(D, k - 1) categories as points, close to each other if they go with the same labels of other columns: whole
    numbers of steps of the grid, and the length of a step."""
    values, vectors = residuals.eigenpairs
    positive = values[: n_clusters - 1] > _ZERO * max(float(values[0]), 1.0)
    values, vectors = values[: n_clusters - 1][positive], vectors[:, : n_clusters - 1][:, positive]
    points: Reals = vectors * np.sqrt(values)
    points *= np.sqrt(residuals.n_objects / residuals.margins)[:, None]
    largest = float(np.abs(points).max(initial=1e-9))
    step = 2.0 ** math.ceil(math.log2(largest)) / _GRID
    return np.rint(points / step), step


def _start_of(residuals: Residuals, groups: NDArray[np.intp], n_clusters: int) -> Start:
    """Parameters of clusters that are groups of categories, mixed a little so that no chance begins at zero."""
    n = residuals.n_objects
    members = np.zeros((len(groups), n_clusters))
    members[np.arange(len(groups)), groups] = 1.0
    counts = residuals.counts @ members
    counts += 0.05 * counts.sum(axis=1, keepdims=True) / n_clusters + 1e-3 * n
    weights = residuals.margins @ members + 0.01 * n
    return weights / weights.sum(), residuals.layout.normalised(counts)


def _nearest_pure(residuals: Residuals, points: Reals, step: float, n_clusters: int) -> NDArray[np.intp]:
    """(D,) the nearest of k categories, each the farthest from the span of those before it."""
    layout = residuals.layout
    frequent = residuals.margins > 0.2 * residuals.n_objects / np.array(layout.categories)[layout.column_of]
    rest = np.column_stack([points * step, np.ones(layout.width)]) * frequent[:, None]
    longest = max(float((rest**2).sum(axis=1).max()), 1e-300)
    pure = []
    for _ in range(n_clusters):
        farthest = int(np.rint((rest**2).sum(axis=1) / longest * _FINE_GRID).argmax())
        pure.append(farthest)
        direction = rest[farthest] / (np.linalg.norm(rest[farthest]) + 1e-12)
        rest = rest - np.outer(rest @ direction, direction)
    nearest: NDArray[np.intp] = _distances(points, points[pure]).argmin(axis=1)
    return nearest


def _k_means(points: Reals, weights: Reals, k: int, seed: int) -> NDArray[np.intp]:
    """(D,) the group of each point of the grid: the best of ten tries of weighted k-means from points far apart."""
    random = np.random.Generator(np.random.PCG64(seed))
    best, best_loss = np.zeros(len(points), dtype=np.intp), np.inf
    for _ in range(_TRIES):
        centres = _far_apart(points, weights, k, random)
        groups = np.full(len(points), -1)
        for _ in range(_ITERATIONS):
            distances = _distances(points, centres)
            nearest = distances.argmin(axis=1)
            if np.array_equal(nearest, groups):
                break
            groups = nearest
            members = np.zeros((len(points), k))
            members[np.arange(len(points)), groups] = weights
            total = members.sum(axis=0)
            means = np.rint(members.T @ points / np.maximum(total, 1e-300)[:, None])
            centres = np.where(total[:, None] > 0, means, centres)
        loss = float((_distances(points, centres).min(axis=1) * weights).sum())
        if loss < best_loss:
            best, best_loss = groups, loss
    return best


def _far_apart(points: Reals, weights: Reals, k: int, random: np.random.Generator) -> Reals:
    """(k, dimensions) points, each drawn in proportion to weight and squared distance from those before it."""
    chance = weights
    chosen: list[int] = []
    nearest = np.full(len(points), np.inf)
    for _ in range(k):
        summed = np.cumsum(chance)
        chosen.append(min(int(np.searchsorted(summed, random.random() * summed[-1], "right")), len(points) - 1))
        nearest = np.minimum(nearest, ((points - points[chosen[-1]]) ** 2).sum(axis=1))
        chance = nearest * weights + 1e-300
    return points[chosen]


def _distances(points: Reals, centres: Reals) -> Reals:
    """(points, centres) squared distances, exact for whole numbers below 2^23."""
    squared: Reals = (points**2).sum(axis=1)[:, None] - 2.0 * points @ centres.T + (centres**2).sum(axis=1)
    return squared
