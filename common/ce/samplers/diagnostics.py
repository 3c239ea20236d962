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


def split_r_hat(draws: Reals) -> float:
    """R-hat of (chains, draws), each chain split in two: near 1 where chains agree; NaN of too few draws."""
    halves = _halves(draws)
    if halves is None:
        return math.nan
    within, whole = _variances(halves)
    if within == 0.0:
        return 1.0 if whole == 0.0 else math.inf
    return math.sqrt(whole / within)


def effective_draws(draws: Reals) -> float:
    """How many independent draws would say as much about the mean; NaN of too few draws."""
    halves = _halves(draws)
    if halves is None:
        return math.nan
    chains, n = halves.shape
    _, whole = _variances(halves)
    if whole == 0.0:
        return float(halves.size)
    correlations = 1.0 - np.array([_variogram(halves, lag) for lag in range(1, n)]) / (2.0 * whole)
    total, lag = 0.0, 0
    while lag + 1 < len(correlations) and correlations[lag] + correlations[lag + 1] > 0.0:
        total += float(correlations[lag] + correlations[lag + 1])
        lag += 2
    found: float = min(chains * n / (1.0 + 2.0 * total), float(halves.size))
    return found


def _halves(draws: Reals) -> Reals | None:
    n = draws.shape[1] // 2
    if 2 * n < FEWEST:
        return None
    return np.concatenate([draws[:, :n], draws[:, n : 2 * n]])


def _variances(chains: Reals) -> tuple[float, float]:
    """Within chains, and of all together."""
    n = chains.shape[1]
    within = float(chains.var(axis=1, ddof=1).mean())
    between = n * float(chains.mean(axis=1).var(ddof=1))
    return within, (n - 1) / n * within + between / n


def _variogram(chains: Reals, lag: int) -> float:
    return float(((chains[:, lag:] - chains[:, :-lag]) ** 2).mean())
