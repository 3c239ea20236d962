"""Whether a model that somebody sent is what the pair tables give: a site asks this before it scores with the model.

A coordinator that could choose beta could make the winner of an object equal to a label of one column. Every site knows
the opened tables, so it fits them itself, with the same start and the same stop, and compares.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError
from ce.pair_tables.fit import (
    MOST_CLUSTERS,
    SEALED_TOLERANCE,
    Objective,
    checked_clusters,
    default_smoothing,
    fit_residuals,
)
from ce.pair_tables.layout import Reals, TableLayout
from ce.pair_tables.residuals import Residuals, clusters_above_edge
from ce.pair_tables.scores import log_chances, log_weights

#: How much better the refit may be, relative, and how far one step, or the refit, may be away.
LARGEST_GAIN, LARGEST_MOVE = 1e-6, 1e-3
#: The same in nats of what scores add up, ln beta and ln weight above their floors: a chance of 1e-3 may not become 0.
LARGEST_SHIFT = 0.1
#: Steps of the fit shrink the weight of a cluster that is not there by a third; below this it labels no object.
_LEAST_WEIGHT = 1e-6
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

    Acceptable: the model is the own refit, in what a label or a cluster adds to a score within LARGEST_SHIFT nats; or
    the own refit is not better, has the same weights, and a step of EM stays where it is, as near. The first way is
    also for models of more clusters than there are, where steps still move when the stop is reached.
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
    if _is_near(own.weights, weights, own.beta, beta, np.ones(k, dtype=bool)):
        return None
    value, next_weights, next_beta = Objective(residuals, default_smoothing(residuals)).step(weights, beta)
    if own.log_composite - value > LARGEST_GAIN * abs(own.log_composite):
        return "the model fits the pair tables worse than a fit of them here"
    there = np.maximum(own.weights, weights) >= _LEAST_WEIGHT
    if _shift(log_weights(own.weights), log_weights(weights), there) > LARGEST_SHIFT:
        return "the model has other weights than a fit of the pair tables here"
    if not _is_near(next_weights, weights, next_beta, beta, there):
        return "the model is not where a fit of the pair tables ends: a step of the fit changes it"
    return None


def _is_near(weights: Reals, other_weights: Reals, beta: Reals, other_beta: Reals, clusters: NDArray[np.bool_]) -> bool:
    """Whether two models are the same, in nats as far as these clusters go."""
    moved = max(float(np.abs(weights - other_weights).max()), float(np.abs(beta - other_beta).max()))
    shifted = max(
        _shift(log_weights(weights), log_weights(other_weights), clusters),
        _shift(log_chances(beta), log_chances(other_beta), clusters),
    )
    return moved <= LARGEST_MOVE and shifted <= LARGEST_SHIFT


def _shift(logs: Reals, others: Reals, clusters: NDArray[np.bool_]) -> float:
    return float(np.abs(logs - others)[..., clusters].max(initial=0.0))


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
