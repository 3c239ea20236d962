"""Bayesian cluster ensembles (Wang, Shan, Banerjee) as four steps.

    theta_i ~ Dirichlet(alpha);  z_ij ~ theta_i;  x_ij ~ beta_{z_ij, j}       for the labels that are there
    cell    phi_ijh ∝ exp(psi(g_ih)) beta_hj(x_ij);   a_ih = sum_j phi_ijh;   n_hjr = sum_{i: x_ij = r} phi_ijh
    column  beta_hj(r) = (n_hjr + s) / (sum_r n_hjr + s k_j)
    global  alpha from ss_h = sum_i E ln theta_ih (Newton), or from the new sums (joint step)
    object  g_ih = alpha_h + a_ih

The bound is L = sum_i L_i + prior with
    L_i = ln B(g_i) - ln B(alpha) + sum_h (alpha_h - g_ih) El_ih + sum_j ln sum_h exp(El_ih) beta_hj(x_ij)
where the last term is the cells' share, exact right after a cell step, and prior = s sum ln beta.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.special import psi

from ce.kernels.special import log_beta, over_clusters, trigamma
from ce.ring import Reals, Scale
from ce.steps import dirichlet
from ce.steps.model import (
    AuditHints,
    GlobalDecision,
    Opening,
    Sizes,
    State,
    bound_scales,
)
from ce.steps.smoothed_beta import PosteriorCells

NEWTON_ITERATIONS = 10
#: The start of a job, and of an estimator by default: alpha is held at this value for so many iterations.
ANNEAL_ALPHA, ANNEAL_ITER = 3.0, 50
#: A trial step is taken back when the bound falls by more than rounding can explain.
ROUNDING = 1e-11


class BCESteps(PosteriorCells):
    broadcast = ("alpha",)
    audit = AuditHints(message="dirichlet", posterior_sums=True)

    def __init__(
        self,
        k: int,
        n_starts: int,
        *,
        max_iter: int,
        tol: float,
        smoothing: float,
        alpha: Reals,
        learn_alpha: bool,
        hold_iter: int,
        schedule: Literal["joint", "newton"],
        local_loops: int,
    ) -> None:
        self.k = k
        self.n_starts = n_starts
        self.max_iter = max_iter
        self.tol = tol
        self.smoothing = smoothing
        self.alpha = np.broadcast_to(np.asarray(alpha, dtype=np.float64), (k,))
        self.learn_alpha = learn_alpha
        self.hold_iter = hold_iter
        self.schedule = schedule
        self.local_loops = local_loops

    def alpha_step(self, iteration: int) -> Literal["hold", "newton", "joint"]:
        """How this iteration (from 1) treats alpha."""
        if not self.learn_alpha or iteration <= self.hold_iter:
            return "hold"
        if self.schedule == "newton" or iteration <= self.hold_iter + NEWTON_ITERATIONS:
            return "newton"
        return "joint"

    def takes_trial_steps(self, iteration: int) -> bool:
        return self.alpha_step(iteration) == "joint"

    def may_stop(self, iteration: int) -> bool:
        if not self.learn_alpha:
            return True
        return iteration > self.hold_iter + NEWTON_ITERATIONS

    def scales(self, sizes: Sizes) -> dict[str, Scale]:
        smallest = min(dirichlet.FLOOR, float(self.alpha.min()))
        largest_psi = 1.0 / smallest + 32.0
        terms = sizes.objects * (2 * sizes.clusterings + 1)
        cell = Scale.for_sum(max(sizes.objects, sizes.clusterings), 1.0)
        return {
            "objects": cell,
            "columns": cell,
            **bound_scales(terms, sizes.clusterings + 1, self.k * sizes.categories, self.smoothing),
            "mean_log": Scale.for_sum(sizes.objects, largest_psi),
            "rise": Scale.for_sum(sizes.objects, largest_psi),
            "fall": Scale.for_sum(sizes.objects, largest_psi**2),
        }

    def share_shapes(self, iteration: int) -> dict[str, tuple[int, ...]]:
        match self.alpha_step(iteration):
            case "newton":
                return {"mean_log": (self.k,)}
            case "joint":
                return {"rise": (self.k + 1,), "fall": (self.k + 1,)}  # per cluster, and of the whole
            case _:
                return {}

    def start_globals(self, sizes: Sizes, before: State | None) -> State:
        alpha = np.tile(self.alpha, (self.n_starts, 1))
        return {
            "alpha": alpha,
            "fallback": alpha,
            "trial": np.zeros(self.n_starts),
            "last_bound": np.full(self.n_starts, -np.inf),
        }

    def start_objects(self, opening: Opening, globals_: State, before: State | None) -> State:
        if "gamma" in opening.given:
            return _posterior(opening.given["gamma"][None] + np.zeros((self.n_starts, 1, 1)))
        flat = opening.labels / self.k
        if "weights" in opening.given:  # of shared objects in a distributed job; NaN where an object has none
            weights = opening.given["weights"]
            return _posterior(
                globals_["alpha"][:, :, None] + np.where(np.isnan(weights), flat, opening.labels * weights)
            )
        return _posterior(globals_["alpha"][:, :, None] + flat)

    def message(self, state: State) -> Reals:
        """exp(psi(g_ih)) up to a factor per object."""
        return state["message"]

    def objects(self, sums: Reals, state: State, opening: Opening, globals_: State) -> State:
        return _posterior(globals_["alpha"][:, :, None] + sums)

    def shares(self, state: State, sums: Reals, opening: Opening, globals_: State, iteration: int) -> dict[str, Reals]:
        alpha = globals_["alpha"][:, :, None]
        gamma, mean_log = state["gamma"], state["mean_log"]
        bound = log_beta(gamma) - log_beta(alpha)
        bound += over_clusters((alpha - gamma) * mean_log)
        # The cell step used exp(El) divided by its largest entry; its logarithms lack that factor, once per label.
        bound += opening.labels * state["largest"][:, 0]
        shares = {"bound": bound}
        match self.alpha_step(iteration):
            case "newton":
                shares["mean_log"] = mean_log
            case "joint":
                total = alpha.sum(axis=1, keepdims=True)
                # All arguments in one array: with few objects, the number of calls determines the time.
                k = self.k
                sizes = np.empty((len(alpha), k + 1, sums.shape[-1] + 1))
                sizes[:, :k, :1], sizes[:, k:, :1] = alpha, total
                np.add(alpha, sums, out=sizes[:, :k, 1:])
                np.add(total, opening.labels, out=sizes[:, k:, 1:])
                rise, fall = psi(sizes), trigamma(sizes)
                shares["rise"] = rise[..., 1:] - rise[..., :1]
                shares["fall"] = fall[..., :1] - fall[..., 1:]
        return shares

    def global_step(self, bound: Reals, totals: State, globals_: State, sizes: Sizes, iteration: int) -> GlobalDecision:
        last = globals_["last_bound"]
        retry = (globals_["trial"] > 0) & (bound < last - ROUNDING * np.abs(last))
        alpha, fallback, trial = globals_["alpha"], globals_["alpha"], np.zeros(len(bound))
        match self.alpha_step(iteration):
            case "newton":
                alpha = dirichlet.maximise(alpha, totals["mean_log"] / sizes.objects)
            case "joint":
                rise, fall = totals["rise"], totals["fall"]
                alpha, fallback = dirichlet.joint_step(
                    alpha, rise[:, : self.k], fall[:, : self.k], rise[:, self.k], fall[:, self.k]
                )
                trial = np.ones(len(bound))
        return GlobalDecision(
            bound,
            {
                "alpha": np.where(retry[:, None], globals_["fallback"], alpha),
                "fallback": fallback,
                "trial": np.where(retry, 0.0, trial),
                "last_bound": np.where(retry, last, bound),
            },
            retry,
        )

    def memberships(self, state: State) -> Reals:
        gamma = state["gamma"]
        means: Reals = gamma / over_clusters(gamma)[:, None]
        return means

    def prior_memberships(self, globals_: State) -> Reals:
        alpha = globals_["alpha"]
        means: Reals = alpha / alpha.sum(axis=1, keepdims=True)
        return means


def _posterior(gamma: Reals) -> State:
    """The state that follows from g: El, and exp(El) scaled so that its largest entry per object is 1."""
    mean_log = psi(gamma) - psi(over_clusters(gamma))[:, None]
    largest = mean_log.max(axis=1, keepdims=True)
    return {
        "gamma": np.ascontiguousarray(gamma),
        "mean_log": mean_log,
        "largest": largest,
        "message": np.exp(mean_log - largest),
    }
