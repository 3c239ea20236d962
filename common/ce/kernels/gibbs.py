"""One sweep of a collapsed Gibbs sampler: every cell in turn is drawn anew, given all others.

These loops are sequential, so that numpy has no faster form of them: without numba they run as they are, some hundred
times slower. They use additions, multiplications, divisions and comparisons only, so that both give the same bits.
"""

from __future__ import annotations

from typing import Any

from ce.kernels import backend

#: Loops over these arrays are compiled where numba is: their elements have no Python types worth naming.
Numbers = Any


def bce_weights(
    of_category: Numbers, of_column: Numbers, of_object: Numbers, alpha: float, omega: float, width: int, out: Numbers
) -> None:
    """The chances of the clusters of one cell, up to a factor, given the counts without it:

    (omega + n_hjr) / (k_j omega + n_hj) * (alpha + n_ih).
    """
    for h in range(len(out)):
        out[h] = (of_category[h] + omega) / (of_column[h] + omega * width) * (of_object[h] + alpha)


def bce_sweep(
    codes: Numbers,
    widths: Numbers,
    clusters: Numbers,
    of_objects: Numbers,
    of_categories: Numbers,
    of_columns: Numbers,
    alpha: float,
    omega: float,
    uniforms: Numbers,
) -> None:
    """Draw the cluster of every cell of some objects. `codes` and `clusters` are (n, m); a code is an index into the
    categories of all columns, -1 where there is no label; a cluster of -1 was not drawn yet, and counts nowhere.

    Counts: of_objects (n, k), of_categories (categories, k), of_columns (m, k).
    """
    n, m = codes.shape
    k = of_objects.shape[1]
    weights = of_columns[0].copy()
    for i in range(n):
        for j in range(m):
            code = codes[i, j]
            if code < 0:
                continue
            old = clusters[i, j]
            if old >= 0:
                of_objects[i, old] -= 1.0
                of_categories[code, old] -= 1.0
                of_columns[j, old] -= 1.0
            bce_weights(of_categories[code], of_columns[j], of_objects[i], alpha, omega, widths[j], weights)
            for h in range(1, k):
                weights[h] += weights[h - 1]
            target = uniforms[i, j] * weights[k - 1]
            new = 0
            while new < k - 1 and weights[new] <= target:
                new += 1
            clusters[i, j] = new
            of_objects[i, new] += 1.0
            of_categories[code, new] += 1.0
            of_columns[j, new] += 1.0


def sweep_bce(*arguments: Any) -> None:
    """`bce_sweep`, compiled where numba is."""
    kernels = backend.compiled()
    (bce_sweep if kernels is None else kernels.bce_sweep)(*arguments)
