"""Diffusion of votes over the clusterings: a start for BC3E where few objects have reliable votes.

    column  h_mj = mean of v over the objects with label j in clustering m
    object  v_n = mean over its clusterings of h_{m, w2_nm}          v_n starts as the object's votes, c_n / r1_n

It has the same four steps as any model, so that it runs in any layout. Its bound is constant. The globals are what the
start needs: mean and standard deviation of v, and Cohen's kappa between the classes that v and the votes prefer, by
which clusterings that do not follow the classes are recognised.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ce.kernels.cells import TileCells, count_sums, lookup_sums
from ce.kernels.special import over_clusters
from ce.ring import Precision, Reals, Scale, Words, decode
from ce.steps.agreement import agreement, kappa
from ce.steps.model import GlobalDecision, Model, Opening, Sizes, State, bound_scales

ROUNDS = 100
#: Diffusion stops at this standard deviation: well-connected clusterings make the votes of all objects equal.
SMALLEST_DEVIATION = 0.01


class DiffusionSteps(Model):
    phases = 2
    linear = True
    uses_votes = True
    broadcast = ("mean", "sd", "kappa")

    def __init__(self, k: int, rounds: int = ROUNDS, *, precision: Precision = "double") -> None:
        self.k = k
        self.n_starts = 1
        self.max_iter = rounds
        self.tol = 0.0
        self.precision = precision

    def scales(self, sizes: Sizes) -> dict[str, Scale]:
        return {
            "objects": Scale.for_sum(sizes.clusterings, 1.0, self.precision),
            "columns": Scale.for_sum(sizes.objects, 1.0, self.precision),
            "votes": Scale.for_sum(sizes.classifiers, 1.0),
            **bound_scales(1, 1, 1, 0.0),
            "mean": Scale.for_sum(sizes.objects, 1.0),
            "square": Scale.for_sum(sizes.objects, 1.0),
            "agreement": Scale.counting(),
        }

    def share_shapes(self, iteration: int) -> dict[str, tuple[int, ...]]:
        return {"mean": (self.k,), "square": (self.k,), "agreement": (self.k * self.k,)}

    def start_globals(self, sizes: Sizes, before: State | None) -> State:
        return {"mean": np.zeros((1, self.k)), "sd": np.zeros((1, 1)), "kappa": np.zeros((1, 1))}

    def start_beta(self, drawn: Reals) -> Reals:
        return np.zeros_like(drawn)

    def start_objects(self, opening: Opening, globals_: State, before: State | None) -> State:
        return {"votes": _proportions(opening.votes[None], np.zeros((1, 1, 1)))}

    def message(self, state: State) -> Reals:
        return state["votes"]

    def object_sums(self, betas: list[Reals], cells: TileCells, n: int, scales: Mapping[str, Scale]) -> Words:
        return lookup_sums(betas, cells, n, scales["objects"])

    def column_sums(self, message: Reals, cells: TileCells, scales: Mapping[str, Scale]) -> list[Words]:
        return count_sums(message, cells, scales["columns"])

    def column(self, sums: Words, scale: Scale) -> Reals:
        """Each category's votes as proportions over the classes."""
        return _proportions(decode(sums, scale), np.zeros((1, 1, 1)))

    def prior(self, beta: Reals) -> Reals:
        return np.zeros_like(beta)

    def objects(self, sums: Reals, state: State, opening: Opening, globals_: State) -> State:
        # In the first round all column parameters and sums are zero, and the votes stay as they are.
        return {"votes": _proportions(sums, state["votes"])}

    def shares(self, state: State, sums: Reals, opening: Opening, globals_: State, iteration: int) -> dict[str, Reals]:
        votes = state["votes"]
        return {
            "bound": np.zeros((votes.shape[0], votes.shape[2])),
            "mean": votes,
            "square": np.square(votes),
            # Centred by the mean of the round before, like the start, because classes may differ in frequency.
            "agreement": agreement(votes - globals_["mean"][:, :, None], opening),
        }

    def global_step(self, bound: Reals, totals: State, globals_: State, sizes: Sizes, iteration: int) -> GlobalDecision:
        mean = totals["mean"] / sizes.objects
        variance = (totals["square"] / sizes.objects - np.square(mean)).mean(axis=1, keepdims=True)
        new = {"mean": mean, "sd": np.sqrt(np.maximum(variance, 0.0)), "kappa": kappa(totals["agreement"])}
        no = np.zeros(len(bound), dtype=bool)
        return GlobalDecision(bound, new, retry=no, stop=new["sd"][:, 0] < SMALLEST_DEVIATION)

    def memberships(self, state: State) -> Reals:
        return state["votes"]

    def prior_memberships(self, globals_: State) -> Reals:
        return globals_["mean"]


def _proportions(amounts: Reals, otherwise: Reals) -> Reals:
    """amounts (starts, k, ...) divided by their sum along k; `otherwise` where the sum is 0."""
    total = over_clusters(amounts)[:, None]
    something = total > 0
    result: Reals = np.where(something, amounts / np.where(something, total, 1.0), otherwise)
    return result
