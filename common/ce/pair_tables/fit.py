"""The latent class model of pair tables, by EM from spectral starts.

    Q_ab = sum over h of pi_h beta_h(a) beta_h(b)
    F    = 1/2 sum of P_ab ln Q_ab + s sum of ln beta        negative cells of P, which only noise makes, count as 0
    step   N = beta pi o ((P / Q) beta),  pi in proportion to sum of N,  beta in proportion to N + s per column

F never falls. beta is not identified by pairs alone (other beta give the same Q): objects are scored with it, and it is
no estimate of the columns' confusion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ce.cancellation import check_cancelled
from ce.errors import InputError
from ce.pair_tables.layout import Reals, TableLayout
from ce.pair_tables.residuals import Residuals, clusters_above_edge
from ce.pair_tables.starting_points import starting_points

#: With the candidate "no label anywhere" 32, which is what five bits of a sealed winner can name.
MOST_CLUSTERS = 31
#: Nats per object at which coordinator and sites of a sealed job stop. With different stops honest models are refused.
SEALED_TOLERANCE = 1e-8
MOST_ITERATIONS = 2_000


@dataclass(frozen=True, eq=False)
class PairFit:
    """A fitted model of pair tables."""

    weights: Reals  # (k,) pi
    beta: Reals  # (D, k), each column's categories sum to 1 in each cluster
    log_composite: float  # F of these parameters
    eigenvalues: Reals  # the largest of the residuals, largest first
    n_clusters: int
    n_iter: int  # of the start that was best
    converged: bool


def fit_pairs(
    tables: Reals,
    layout: TableLayout,
    n_clusters: int | Literal["auto"],
    *,
    sd: float = 0.0,
    seed: int = 0,
    tolerance: float = 1e-5,
    smoothing: float | None = None,
    max_iterations: int = MOST_ITERATIONS,
    on_iteration: Callable[[int, float], None] | None = None,
) -> PairFit:
    """Fit `n_clusters` clusters, or as many as stand out, to tables whose cells have noise of deviation `sd`.

    Stops when a step gains less than `tolerance` nats per object. `smoothing` is the pseudo-count s of every beta.
    `on_iteration` is called with each iteration of each start, and F.
    """
    return fit_residuals(
        Residuals.of(tables, layout, sd),
        n_clusters,
        seed=seed,
        tolerance=tolerance,
        smoothing=smoothing,
        max_iterations=max_iterations,
        on_iteration=on_iteration,
    )


def fit_residuals(
    residuals: Residuals,
    n_clusters: int | Literal["auto"],
    *,
    seed: int,
    tolerance: float,
    smoothing: float | None = None,
    max_iterations: int = MOST_ITERATIONS,
    on_iteration: Callable[[int, float], None] | None = None,
) -> PairFit:
    """`fit_pairs` of residuals that are known already."""
    k = checked_clusters(n_clusters)
    if k is None:
        k = min(clusters_above_edge(residuals), MOST_CLUSTERS)
    objective = Objective(residuals, default_smoothing(residuals) if smoothing is None else smoothing)
    best: PairFit | None = None
    for weights, beta in starting_points(residuals, k, seed):
        fitted = _climb(objective, weights, beta, tolerance, max_iterations, on_iteration)
        # Starts often end in one optimum; the first is kept then, whatever rounding makes of the difference.
        if best is None or fitted.log_composite - best.log_composite > 1e-9 * abs(best.log_composite):
            best = fitted
    assert best is not None
    return best


def checked_clusters(n_clusters: object) -> int | None:
    """A number of clusters, None for "auto"; InputError for anything else."""
    if isinstance(n_clusters, str) and n_clusters == "auto":
        return None
    whole = isinstance(n_clusters, (int, np.integer)) and not isinstance(n_clusters, bool)
    if not whole or not 1 <= int(n_clusters) <= MOST_CLUSTERS:  # type: ignore[call-overload]
        raise InputError(
            f'n_clusters is a whole number from 1 to {MOST_CLUSTERS}, or "auto": pair tables are fitted with at most '
            f"{MOST_CLUSTERS} clusters"
        )
    return int(n_clusters)  # type: ignore[call-overload, no-any-return]


def default_smoothing(residuals: Residuals) -> float:
    """s: half a count for each table of a column, and a part of the objects that is larger where cells have noise."""
    part = 50.0 if residuals.sd else 500.0
    return 0.5 * (residuals.layout.n_columns - 1) + residuals.n_objects / part


class Objective:
    """F and its EM step, with two (D, D) arrays that every evaluation uses again."""

    def __init__(self, residuals: Residuals, smoothing: float) -> None:
        self.residuals = residuals
        self.smoothing = smoothing
        self._chances = np.empty_like(residuals.counts)
        self._ratios = np.empty_like(residuals.counts)

    def step(self, weights: Reals, beta: Reals) -> tuple[float, Reals, Reals]:
        """F of these parameters, and the parameters after one step."""
        counts, q, ratios = self.residuals.counts, self._chances, self._ratios
        np.matmul(beta * weights, beta.T, out=q)
        np.maximum(q, 1e-300, out=q)
        np.log(q, out=ratios)
        value = 0.5 * float(np.vdot(counts, ratios))
        value += self.smoothing * float(np.log(np.maximum(beta, 1e-300)).sum())
        np.divide(counts, q, out=ratios)
        shares = beta * weights * (ratios @ beta)
        total = shares.sum(axis=0)
        # Tables without a count say nothing of the weights.
        after = total / total.sum() if total.sum() > 0 else weights
        return value, after, self.residuals.layout.normalised(shares + self.smoothing)


def _climb(
    objective: Objective,
    weights: Reals,
    beta: Reals,
    tolerance: float,
    max_iterations: int,
    on_iteration: Callable[[int, float], None] | None,
) -> PairFit:
    """EM until a step gains less than the tolerance. The value is that of the parameters that are returned."""
    residuals = objective.residuals
    enough = tolerance * max(residuals.n_objects, 1.0)
    value, next_weights, next_beta = objective.step(weights, beta)
    iterations, converged = 0, False
    while iterations < max_iterations and not converged:
        check_cancelled()
        weights, beta, before = next_weights, next_beta, value
        value, next_weights, next_beta = objective.step(weights, beta)
        iterations += 1
        if on_iteration is not None:
            on_iteration(iterations, value)
        converged = tolerance > 0 and value - before < enough
    return PairFit(weights, beta, value, residuals.eigenvalues, len(weights), iterations, converged)
