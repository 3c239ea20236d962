"""Special functions that scipy lacks or computes slowly. They work element by element."""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from ce.ring import Reals

_SHIFT = 8
# Bernoulli numbers B2, B4, ... of the asymptotic series psi'(x) = 1/x + 1/2x² + sum B_2n / x^(2n+1).
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def trigamma(x: Reals) -> Reals:
    """psi'(x) for x > 0, to the last few bits; ten times as fast as scipy's zeta(2, x)."""
    total = np.zeros_like(x)
    for step in range(_SHIFT):
        total += 1.0 / np.square(x + step)
    y = x + _SHIFT
    inverse = 1.0 / y
    square = inverse * inverse
    series = np.full_like(x, _BERNOULLI[-1])
    for number in reversed(_BERNOULLI[:-1]):
        series *= square
        series += number
    total += inverse * (1.0 + 0.5 * inverse + series * square)
    return total


def over_clusters(x: Reals) -> Reals:
    """Sum (starts, k, n) over k, one cluster after the other: (starts, n).

    x.sum(axis=1) adds in an order that depends on n: for n = 1 numpy folds the axes and sums pairwise.
    """
    total = x[:, 0].copy()
    for h in range(1, x.shape[1]):
        total += x[:, h]
    return total


def log_beta(a: Reals) -> Reals:
    """ln B(a) = sum_h lnG(a_h) - lnG(sum_h a_h), the normaliser of Dirichlet distributions: (starts, n)."""
    result: Reals = over_clusters(gammaln(a)) - gammaln(over_clusters(a))
    return result
