"""The four steps.

    cell    l_ih = sum_j ln beta_hj(x_ij)                  first pass: per-object sums
    object  r_ih = 1 for h = argmax(ln pi_h + l_ih)        the message; ties to the lowest h
    cell    n_hjr = sum_{i: x_ij = r} r_ih                 second pass: per-column sums
    column  beta_hj(r) = (n_hjr + s) / (sum_r n_hjr + s k_j)
    global  pi_h = mean_i r_ih

The bound is sum_i max_h (ln pi_h + l_ih), plus the prior s sum ln beta: no step lowers it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ce.job import Job
from ce.kernels.cells import TileCells, count_sums, lookup_sums
from ce.ring import Reals, Scale, Words
from ce.steps.model import CELL_BOUND, AuditHints, GlobalDecision, Model, Opening, Sizes, State, bound_scales
from ce.steps.smoothed_beta import SmoothedBeta

#: Stands for ln 0: sums must be finite.
LOG_ZERO = -800.0


class HardMixtureSteps(SmoothedBeta):  # which has the column step and the prior of beta
    phases = 2
    broadcast = ("weights",)
    cell_terms = (LOG_ZERO, 0.0)
    linear = True
    audit = AuditHints(log_beta=True)

    def __init__(self, k: int, n_starts: int, *, max_iter: int, tol: float, smoothing: float) -> None:
        self.k = k
        self.n_starts = n_starts
        self.max_iter = max_iter
        self.tol = tol
        self.smoothing = smoothing

    # What is summed.

    def scales(self, sizes: Sizes) -> dict[str, Scale]:
        terms = sizes.objects * (sizes.clusterings + 1)
        return {
            "objects": Scale.for_sum(sizes.clusterings, CELL_BOUND),
            "columns": Scale.for_sum(sizes.objects, 1.0),
            **bound_scales(terms, sizes.clusterings + 1, self.k * sizes.categories, self.smoothing),
            "weights": Scale.for_sum(sizes.objects, 1.0),
        }

    def share_shapes(self, iteration: int) -> dict[str, tuple[int, ...]]:
        return {"weights": (self.k,)}

    # Starts.

    def start_globals(self, sizes: Sizes, before: State | None) -> State:
        return {"weights": np.full((self.n_starts, self.k), 1.0 / self.k)}

    def start_objects(self, opening: Opening, globals_: State, before: State | None) -> State:
        n = len(opening.labels)
        flat = np.full((self.n_starts, self.k, n), 1.0 / self.k)
        return {"chosen": flat, "log_likelihood": np.zeros((self.n_starts, 1, n))}

    # The four steps; the column step is that of `SmoothedBeta`.

    def message(self, state: State) -> Reals:
        return state["chosen"]

    def object_sums(self, tables: list[Reals], cells: TileCells, n: int, scales: Mapping[str, Scale]) -> Words:
        return lookup_sums([_log(beta) for beta in tables], cells, n, scales["objects"])

    def column_sums(self, message: Reals, cells: TileCells, scales: Mapping[str, Scale]) -> list[Words]:
        return count_sums(message, cells, scales["columns"])

    def objects(self, sums: Reals, state: State, opening: Opening, globals_: State) -> State:
        joint = sums + _log(globals_["weights"])[:, :, None]
        chosen = np.zeros_like(joint)
        np.put_along_axis(chosen, joint.argmax(axis=1)[:, None], 1.0, axis=1)
        return {"chosen": chosen, "log_likelihood": joint.max(axis=1, keepdims=True)}

    def shares(self, state: State, sums: Reals, opening: Opening, globals_: State, iteration: int) -> dict[str, Reals]:
        return {"bound": state["log_likelihood"][:, 0], "weights": state["chosen"]}

    def global_step(self, bound: Reals, totals: State, globals_: State, sizes: Sizes, iteration: int) -> GlobalDecision:
        weights = totals["weights"] / totals["weights"].sum(axis=-1, keepdims=True)
        return GlobalDecision(bound, {"weights": weights}, retry=np.zeros(len(bound), dtype=bool))

    # Results.

    def memberships(self, state: State) -> Reals:
        return state["chosen"]

    def prior_memberships(self, globals_: State) -> Reals:
        return globals_["weights"]


def steps_of_job(job: Job, k: int) -> Model:
    """What the declaration refers to. A job's values are checked already."""
    return HardMixtureSteps(k, job.restarts, max_iter=job.max_iterations, tol=job.tolerance, smoothing=job.smoothing)


def _log(p: Reals) -> Reals:
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(p), LOG_ZERO)
