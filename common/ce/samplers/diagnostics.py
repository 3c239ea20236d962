"""Do several chains tell the same, and how much do their draws say? Both of one number per draw, as the log joint.

Gelman et al., Bayesian Data Analysis, 3rd edition, sections 11.4 and 11.5: R-hat of half chains; effective number of
draws, with Geyer's initial positive sequence of autocorrelations.
"""

from __future__ import annotations

import math

import numpy as np

from ce.ring import Reals

#: Draws of each chain below which nothing is said.
FEWEST = 4
#: Standard deviations below this, relative to the numbers, are rounding: these draws are all the same.
ROUNDING = 1e-12


def split_r_hat(draws: Reals) -> float:
    """R-hat of (chains, draws), each chain split in two: near 1 where chains agree; NaN of too few draws."""
    halves = _halves(draws)
    if halves is None:
        return math.nan
    within, whole = _variances(halves)
    if whole == 0.0:
        return 1.0
    return math.sqrt(whole / within) if within > 0.0 else math.inf


def effective_draws(draws: Reals) -> float:
    """How many independent draws would say as much about the mean; NaN of too few draws."""
    halves = _halves(draws)
    if halves is None:
        return math.nan
    n = halves.shape[1]
    _, whole = _variances(halves)
    if whole == 0.0:
        return float(halves.size)
    correlations = 1.0 - np.array([0.0, *(_variogram(halves, lag) for lag in range(1, n))]) / (2.0 * whole)
    pairs = correlations[: n // 2 * 2].reshape(-1, 2).sum(axis=1)
    ends = np.flatnonzero(pairs <= 0.0)
    total = float(pairs[: ends[0] if len(ends) else None].sum())
    found: float = min(halves.size / max(2.0 * total - 1.0, 1.0), float(halves.size))
    return found


def _halves(draws: Reals) -> Reals | None:
    n = draws.shape[1] // 2
    if 2 * n < FEWEST:
        return None
    return np.concatenate([draws[:, :n], draws[:, n : 2 * n]])


def _variances(chains: Reals) -> tuple[float, float]:
    """Within chains, and of all together; zero for what is but rounding."""
    n = chains.shape[1]
    least = (ROUNDING * float(np.abs(chains).max())) ** 2
    within = float(chains.var(axis=1, ddof=1).mean())
    between = n * float(chains.mean(axis=1).var(ddof=1))
    whole = (n - 1) / n * within + between / n
    return within * (within > least), whole * (whole > least)


def _variogram(chains: Reals, lag: int) -> float:
    return float(((chains[:, lag:] - chains[:, :-lag]) ** 2).mean())
