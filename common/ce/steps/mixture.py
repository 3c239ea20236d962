"""The mixture model of cluster ensembles (Topchy, Jain, Punch) as four steps.

    cell    l_ih = sum_j ln beta_hj(x_ij)                  first pass: per-object sums
    object  r_ih ∝ pi_h exp(l_ih)                          the message
    cell    n_hjr = sum_{i: x_ij = r} r_ih                 second pass: per-column sums
    column  beta_hj(r) = (n_hjr + s) / (sum_r n_hjr + s k_j)
    global  pi_h = mean_i r_ih

The bound is the log-likelihood, sum_i ln sum_h pi_h exp(l_ih), plus the prior s sum ln beta.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ce.kernels.cells import TileCells, count_sums, lookup_sums
from ce.kernels.special import responsibilities
from ce.ring import Precision, Reals, Scale, Words
from ce.steps.model import (
    CELL_BOUND,
    AuditHints,
    GlobalDecision,
    Opening,
    Sizes,
    State,
    bound_scales,
)
from ce.steps.smoothed_beta import SmoothedBeta

#: Stands for ln 0 in sums, which must be finite. exp() of a smaller number is zero in double precision.
LOG_ZERO = -800.0
#: Hopeless starts are dropped in this iteration, and again after so many.
FIRST_HALVING, HALVING_ITERATIONS = 10, 5


class MixtureSteps(SmoothedBeta):
    phases = 2
    broadcast = ("weights",)
    cell_terms = (LOG_ZERO, 0.0)
    linear = True
    audit = AuditHints(message="weights", log_beta=True)

    def __init__(
        self,
        k: int,
        n_starts: int,
        *,
        max_iter: int,
        tol: float,
        smoothing: float,
        halving: bool = False,
        precision: Precision = "double",
    ) -> None:
        self.k = k
        self.n_starts = n_starts
        self.max_iter = max_iter
        self.tol = tol
        self.smoothing = smoothing
        self.halving = halving
        self.precision = precision
        self.weights: Reals = np.full(k, 1.0 / k)  # of every start, to begin with

    def scales(self, sizes: Sizes) -> dict[str, Scale]:
        terms = sizes.objects * (sizes.clusterings + 1)
        return {
            "objects": Scale.for_sum(sizes.clusterings, CELL_BOUND, self.precision),
            "columns": Scale.for_sum(sizes.objects, 1.0, self.precision),
            **bound_scales(terms, sizes.clusterings + 1, self.k * sizes.categories, self.smoothing),
            "weights": Scale.for_sum(sizes.objects, 1.0),
        }

    def share_shapes(self, iteration: int) -> dict[str, tuple[int, ...]]:
        return {"weights": (self.k,)}

    def start_globals(self, sizes: Sizes, before: State | None) -> State:
        return {"weights": np.tile(self.weights, (self.n_starts, 1))}

    def start_objects(self, opening: Opening, globals_: State, before: State | None) -> State:
        flat = np.full((self.n_starts, self.k, len(opening.labels)), 1.0 / self.k)
        return {"responsibility": flat, "log_likelihood": np.zeros((self.n_starts, 1, len(opening.labels)))}

    def message(self, state: State) -> Reals:
        return state["responsibility"]

    def object_sums(self, betas: list[Reals], cells: TileCells, n: int, scales: Mapping[str, Scale]) -> Words:
        return lookup_sums([log_or_floor(beta) for beta in betas], cells, n, scales["objects"])

    def column_sums(self, message: Reals, cells: TileCells, scales: Mapping[str, Scale]) -> list[Words]:
        return count_sums(message, cells, scales["columns"])

    def objects(self, sums: Reals, state: State, opening: Opening, globals_: State) -> State:
        joint = sums + log_or_floor(globals_["weights"])[:, :, None]
        responsibility, log_likelihood = responsibilities(joint)
        return {"responsibility": responsibility, "log_likelihood": log_likelihood}

    def shares(self, state: State, sums: Reals, opening: Opening, globals_: State, iteration: int) -> dict[str, Reals]:
        return {"bound": state["log_likelihood"][:, 0], "weights": state["responsibility"]}

    def global_step(self, bound: Reals, totals: State, globals_: State, sizes: Sizes, iteration: int) -> GlobalDecision:
        weights = totals["weights"] / totals["weights"].sum(axis=-1, keepdims=True)
        halvings = np.full(len(bound), (iteration - FIRST_HALVING) // HALVING_ITERATIONS + 1.0)
        return GlobalDecision(bound, {"weights": weights}, np.zeros(len(bound), dtype=bool), halvings=halvings)

    def memberships(self, state: State) -> Reals:
        return state["responsibility"]

    def prior_memberships(self, globals_: State) -> Reals:
        return globals_["weights"]


def log_or_floor(p: Reals) -> Reals:
    """ln p, with LOG_ZERO for ln 0."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(p), LOG_ZERO)
