"""BC3E, classifiers and clusterings together (Acharya, Hruschka, Ghosh, Sarwar, Ruvini), as four steps.

    y_n ~ N(mu, diag sigma²);  theta_n ~ N(y_n, delta² I);  votes w1_nl ~ softmax(y_n)
    z_nm ~ softmax(theta_n);  cluster labels w2_nm ~ beta_{m, z_nm}
    q: (y_ni, theta_ni) ~ N((mu_ni, eps_ni), [[s_ni, r_ni], [r_ni, d_ni]]),  z_nm ~ phi_nm
    c_n = sum of the votes of object n, r1_n = sum_i c_ni;  S_n = sum_m phi_nm, r2_n = number of its cluster labels

    cell    phi_nmi ∝ exp(eps_ni) beta_mi(w2_nm)           only eps_n, up to a constant, is ever sent to a site
    column  beta_mi(j) ∝ T_mij + s
    global  mu = mean mu_n;  sigma_i² = mean[s_ni + (mu_ni - mu_i)²];  delta² = mean[(eps - mu)² + s + d - 2r]
    object  a few sweeps over (mu_n, eps_n), (s_n, r_n), (d_n, r_n), see `ce.kernels.gaussian`

`posterior="factorised"` is the paper's q(y) q(theta), r = 0. It costs 1/2 ln(1 + sigma²/delta²) nats per object and
class, which weakens the influence of the clusterings. The joint posterior, with r free, is the default.

The bound per object, with phi and the Taylor points kappa_n, xi_n of the two log-sum-exp at their optimum:
    -1/2 sum_i [ln 2pi sigma_i² + (s + (mu_ni - mu_i)²)/sigma_i² + ln 2pi delta² + ((eps - mu)² + s + d - 2r)/delta²]
    + sum_i c_ni mu_ni - r1 ln kappa_n - r2 ln xi_n + 1/2 sum_i ln((2 pi e)² (s d - r²))
    + sum_m ln sum_i exp(eps_ni) beta_mi(w2_nm)                                      (the cells' share)
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from ce.kernels.gaussian import Gaussians, Prior, factorised_sweep, joint_sweep
from ce.kernels.special import exp, log, log_or_infinite, over_clusters
from ce.ring import Precision, Reals, Scale
from ce.steps.diffusion import DiffusionSteps
from ce.steps.model import (
    AuditHints,
    GlobalDecision,
    Model,
    Opening,
    Sizes,
    State,
    bound_scales,
)
from ce.steps.smoothed_beta import PosteriorCells

START_SIGMA2 = 4.0
START_DELTA2 = 0.05
#: Lower limit of variances: with soft votes and many iterations sigma² can collapse.
SMALLEST_VARIANCE = 1e-6
#: Local sweeps of the object step per iteration. They need no communication, and halve the number of exchanges.
SWEEPS = 5
#: Limits of the logits' distance from their mean and of its square; the scales of their sums follow from them.
LARGEST_LOGIT = 128.0
LARGEST_SQUARE = 2.0**15
#: With a smaller Cohen's kappa the start does not use the clusterings, because they do not follow the classes.
GUARD = 0.3


class BC3ESteps(PosteriorCells):
    uses_votes = True
    audit = AuditHints(posterior_sums=True)
    broadcast = ("mu", "sigma2", "delta2", "diffused", "start_mean", "start_sd")

    def __init__(
        self,
        k: int,
        *,
        max_iter: int,
        tol: float,
        smoothing: float,
        posterior: Literal["joint", "factorised"],
        sigma2: float | None,
        delta2: float | None,
        local_loops: int,
        precision: Precision = "double",
    ) -> None:
        self.k = k
        self.n_starts = 1
        self.max_iter = max_iter
        self.tol = tol
        self.smoothing = smoothing
        self.posterior = posterior
        self.sigma2 = sigma2
        self.delta2 = delta2
        self.local_loops = local_loops
        self.precision = precision

    def scales(self, sizes: Sizes) -> dict[str, Scale]:
        per_object = sizes.clusterings + 1 + sizes.classifiers + 2 * self.k
        terms = sizes.objects * (sizes.clusterings + per_object)
        return {
            **self.cell_scales(sizes),
            "votes": Scale.for_sum(sizes.classifiers, 1.0),
            **bound_scales(terms, per_object, self.k * sizes.categories, self.smoothing),
            "deviation": Scale.for_sum(sizes.objects, LARGEST_LOGIT),
            "spread": Scale.for_sum(sizes.objects, LARGEST_SQUARE),
            "gap": Scale.for_sum(sizes.objects, LARGEST_SQUARE * self.k),
        }

    def share_shapes(self, iteration: int) -> dict[str, tuple[int, ...]]:
        return {"deviation": (self.k,), "spread": (self.k,), "gap": (1,)}

    def start_globals(self, sizes: Sizes, before: State | None) -> State:
        globals_ = {
            "mu": np.zeros((1, self.k)),
            "sigma2": np.full((1, self.k), START_SIGMA2 if self.sigma2 is None else self.sigma2),
            "delta2": np.full((1, 1), START_DELTA2 if self.delta2 is None else self.delta2),
            "diffused": np.zeros((1, 1)),
            "start_mean": np.zeros((1, self.k)),
            "start_sd": np.ones((1, 1)),
        }
        if before is not None:
            follows = (before["kappa"] >= GUARD) & (before["sd"] > 0)
            globals_["diffused"] = follows.astype(np.float64)
            globals_["start_mean"] = before["mean"]
            globals_["start_sd"] = np.where(follows, before["sd"], 1.0)
        return globals_

    def start_beta(self, drawn: Reals) -> Reals:
        """Uniform, so that the first round reveals no cluster label; the votes distinguish the classes."""
        return np.full_like(drawn, 1.0 / max(drawn.shape[-1], 1))

    def start_objects(self, opening: Opening, globals_: State, before: State | None) -> State:
        log_votes = log(opening.votes + 0.5)
        logits = log_votes[None] - over_clusters(log_votes[None])[:, None] / self.k
        if before is not None and globals_["diffused"][0, 0] > 0:
            logits = 2.0 * (before["votes"] - globals_["start_mean"][:, :, None])
            logits = logits / globals_["start_sd"][:, :, None]
        delta2 = globals_["delta2"][:, :, None]
        variance = 1.0 / (1.0 / globals_["sigma2"][:, :, None] + 1.0 / delta2) + np.zeros_like(logits)
        return _with_message(
            Gaussians(
                mu=opening.given.get("mu", logits) + np.zeros_like(logits),
                eps=opening.given.get("eps", logits) + np.zeros_like(logits),
                s=variance,
                d=delta2 + np.zeros_like(logits),
                r=np.zeros_like(logits),
            )
        )

    def message(self, state: State) -> Reals:
        """exp(eps_n) up to a factor per object."""
        return state["message"]

    def objects(self, sums: Reals, state: State, opening: Opening, globals_: State) -> State:
        prior = _prior(globals_)
        sweep = joint_sweep if self.posterior == "joint" else factorised_sweep
        return _with_message(sweep(_gaussians(state), opening.votes, sums, opening.labels, prior, SWEEPS))

    def shares(self, state: State, sums: Reals, opening: Opening, globals_: State, iteration: int) -> dict[str, Reals]:
        q, prior = _gaussians(state), _prior(globals_)
        deviation = q.mu - prior.mu
        spread = q.s + np.square(deviation)
        gap = np.square(q.eps - q.mu) + q.s + q.d - 2.0 * q.r
        r1 = over_clusters(opening.votes[None])
        bound = -0.5 * over_clusters(log(2 * math.pi * prior.sigma2) + spread / prior.sigma2)
        bound -= 0.5 * over_clusters(log(2 * math.pi * prior.delta2) + gap / prior.delta2)
        bound += over_clusters(opening.votes * q.mu) - r1 * q.log_kappa()[:, 0]
        bound += 0.5 * over_clusters(log_or_infinite((2 * math.pi * math.e) ** 2 * (q.s * q.d - np.square(q.r))))
        # The cell step used exp(eps) divided by its largest entry; its logarithms lack that factor, once per label.
        bound += opening.labels * (q.eps.max(axis=1) - q.log_xi()[:, 0])
        return {
            "bound": bound,
            "deviation": deviation,
            "spread": spread,
            "gap": over_clusters(gap)[:, None],
        }

    def global_step(self, bound: Reals, totals: State, globals_: State, sizes: Sizes, iteration: int) -> GlobalDecision:
        new = dict(globals_)
        # The first object states are guesses: sigma² and delta² are not updated before the first object step.
        if iteration > 1:
            shift = totals["deviation"] / sizes.objects
            new["mu"] = globals_["mu"] + shift
            if self.sigma2 is None:
                spread = totals["spread"] / sizes.objects - np.square(shift)
                new["sigma2"] = np.maximum(spread, SMALLEST_VARIANCE)
            if self.delta2 is None:
                gap = totals["gap"] / (sizes.objects * self.k)
                new["delta2"] = np.maximum(gap, SMALLEST_VARIANCE)
        return GlobalDecision(bound, new, np.zeros(len(bound), dtype=bool))

    def memberships(self, state: State) -> Reals:
        """softmax(mu_n)."""
        return _softmax(state["mu"])

    def prior_memberships(self, globals_: State) -> Reals:
        return _softmax(globals_["mu"][:, :, None])[:, :, 0]


class DiffusedBC3E(DiffusionSteps):
    """The diffused start as the first stage, followed by BC3E as the second."""

    def __init__(self, model: BC3ESteps) -> None:
        super().__init__(model.k, precision=model.precision)
        self._model = model

    def next_stage(self) -> Model:
        return self._model


def _prior(globals_: State) -> Prior:
    return Prior(globals_["mu"][:, :, None], globals_["sigma2"][:, :, None], globals_["delta2"][:, :, None])


def _gaussians(state: State) -> Gaussians:
    return Gaussians(state["mu"], state["eps"], state["s"], state["d"], state["r"])


def _softmax(logits: Reals) -> Reals:
    weights = exp(logits - logits.max(axis=1, keepdims=True))
    proba: Reals = weights / over_clusters(weights)[:, None]
    return proba


def _with_message(q: Gaussians) -> State:
    message = exp(q.eps - q.eps.max(axis=1, keepdims=True))
    return {"mu": q.mu, "eps": q.eps, "s": q.s, "d": q.d, "r": q.r, "message": message}
