"""Whether a model that somebody sent is what the pair tables give: a site asks this before it scores with the model.

A coordinator that could choose beta could make the winner of an object equal to a label of one column. Every site knows
the opened tables, so it fits them itself, with the same start and the same stop, and compares.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ce.errors import InputError
from ce.pair_tables.fit import (
    MOST_CLUSTERS,
    SEALED_TOLERANCE,
    Objective,
    PairFit,
    checked_clusters,
    default_smoothing,
    fit_residuals,
)
from ce.pair_tables.layout import Reals, TableLayout
from ce.pair_tables.residuals import Residuals, clusters_above_edge

#: How much better the refit may be, relative, and how far one step, or the refit, may be away.
LARGEST_GAIN, LARGEST_MOVE = 1e-6, 1e-3
#: Rounding differs between machines: an eigenvalue this close to the edge, relative, may count or not.
_EDGE_SLACK = 1e-6


def check_fit(
    tables: Reals,
    layout: TableLayout,
    sd: float,
    seed: int,
    weights: Reals,
    beta: Reals,
    n_clusters_asked: int | Literal["auto"],
) -> str | None:
    """None for an acceptable model; otherwise a sentence that says what is wrong, without a number of the tables.

    Acceptable: the own refit is not better, and a step of EM stays where it is; or the model is the own refit. The
    second way is for models of more clusters than there are, where steps still move when the stop is reached.
    """
    problem = _improper(layout, weights, beta, n_clusters_asked)
    if problem is not None:
        return problem
    residuals = Residuals.of(tables, layout, sd)
    k = len(weights)
    if n_clusters_asked == "auto":
        fewest = min(clusters_above_edge(residuals, _EDGE_SLACK), MOST_CLUSTERS)
        most = min(clusters_above_edge(residuals, -_EDGE_SLACK), MOST_CLUSTERS)
        if not fewest <= k <= most:
            return "the model has another number of clusters than the pair tables give"
    own = fit_residuals(residuals, k, seed=seed, tolerance=SEALED_TOLERANCE)
    if _away(own, weights, beta) <= LARGEST_MOVE:
        return None
    value, next_weights, next_beta = Objective(residuals, default_smoothing(residuals)).step(weights, beta)
    if own.log_composite - value > LARGEST_GAIN * abs(own.log_composite):
        return "the model fits the pair tables worse than a fit of them here"
    moved = max(float(np.abs(next_weights - weights).max()), float(np.abs(next_beta - beta).max()))
    if moved > LARGEST_MOVE:
        return "the model is not where a fit of the pair tables ends: a step of the fit changes it"
    return None


def _away(own: PairFit, weights: Reals, beta: Reals) -> float:
    return max(float(np.abs(own.weights - weights).max()), float(np.abs(own.beta - beta).max()))


def _improper(layout: TableLayout, weights: Reals, beta: Reals, asked: int | Literal["auto"]) -> str | None:
    """What is wrong with the arrays themselves."""
    try:
        k = checked_clusters(asked)
    except InputError as error:
        return str(error)
    for name, array in (("weights", weights), ("beta", beta)):
        if not isinstance(array, np.ndarray) or array.dtype != np.float64:
            return f"{name} of the model is not an array of 64-bit numbers"
    if weights.ndim != 1 or not 1 <= len(weights) <= MOST_CLUSTERS or (k is not None and len(weights) != k):
        return "the model has not the number of clusters that the job asks for"
    if beta.shape != (layout.width, len(weights)):
        return "beta of the model has not the shape of the columns and clusters"
    if not np.isfinite(weights).all() or not np.isfinite(beta).all():
        return "the model has a number that is not finite"
    if (weights < 0).any() or (beta <= 0).any():
        return "the model has a chance that is not positive"
    sums = layout.per_column(beta)
    if abs(float(weights.sum()) - 1.0) > 1e-9 or float(np.abs(sums - 1.0).max()) > 1e-9:
        return "the chances of the model do not sum to 1"
    return None
