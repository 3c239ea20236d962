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

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ce.kernels.special import digamma, dirichlet_posterior, log_beta, over_clusters, trigamma
from ce.ring import Precision, Reals, Scale
from ce.steps import dirichlet
from ce.steps.model import (
    AuditHints,
    GlobalDecision,
    Opening,
    Rest,
    Sizes,
    State,
    bound_scales,
)
from ce.steps.smoothed_beta import PosteriorCells

#: The start of a job, and of an estimator by default: alpha is held at this value, for at most so many iterations.
ANNEAL_ALPHA, ANNEAL_ITER = 3.0, 50
#: The hold ends sooner, though not before so many iterations, after which hopeless starts are dropped, ...
SHORTEST_HOLD = 8
#: ... once at most this share of the labels has moved in each of so many iterations in a row.
CALM_SHARE, CALM_ITERATIONS = 0.005, 3
#: So many iterations of Newton steps, without a hold and after one, come before joint steps: in the first iterations
#: these would go to the floor.
NEWTON_ITERATIONS, NEWTON_AFTER_HOLD = 10, 3
#: After a hold, what still moves then is the bound rather than the labels. Without local loops an iteration does less:
#: with 60 % of the labels wrong the larger share ends a fit too early.
ANNEALED_REST = Rest(iterations=4, share=0.0005, tolerance=1e-3)
LOOPED_REST = Rest(iterations=4, share=0.001, tolerance=1e-3)
#: A trial step is taken back when the bound falls by more than rounding can explain. In single precision phi of a cell
#: is rounded by up to 2^-21, to which the bound is most sensitive where alpha is small.
ROUNDING = {"double": 1e-11, "single": 1e-8}


class Phases(NamedTuple):
    """Which starts learn alpha by a Newton step, and which by a joint step; the others hold it."""

    newton: NDArray[np.bool_]
    joint: NDArray[np.bool_]


class BCESteps(PosteriorCells):
    broadcast = ("alpha", "learning")
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
        halving: bool | None,
        precision: Precision = "double",
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
        self.halving = halving
        annealed = LOOPED_REST if local_loops > 1 else ANNEALED_REST
        self.rest = annealed if hold_iter else Rest()
        self._newton_iter = NEWTON_AFTER_HOLD if hold_iter else NEWTON_ITERATIONS
        self.precision = precision

    def phases_of(self, globals_: State) -> Phases:
        """How each start treats alpha, by the number of iterations in which it has learnt it."""
        learning = globals_["learning"]
        newton = learning > 0
        if self.schedule != "joint":
            return Phases(newton, np.zeros(newton.shape, dtype=bool))
        joint = learning > self._newton_iter
        return Phases(newton & ~joint, joint)

    @property
    def _shortest_hold(self) -> int:
        return min(self.hold_iter, SHORTEST_HOLD)

    def takes_trial_steps(self, iteration: int) -> bool:
        first = self._shortest_hold + self._newton_iter + 1
        return self.learn_alpha and self.schedule == "joint" and iteration >= first

    def scales(self, sizes: Sizes) -> dict[str, Scale]:
        smallest = min(dirichlet.FLOOR, float(self.alpha.min()))
        largest_psi = 1.0 / smallest + 32.0
        terms = sizes.objects * (2 * sizes.clusterings + 1)
        return {
            **self.cell_scales(sizes),
            **bound_scales(terms, sizes.clusterings + 1, self.k * sizes.categories, self.smoothing),
            "mean_log": Scale.for_sum(sizes.objects, largest_psi),
            "rise": Scale.for_sum(sizes.objects, largest_psi),
            "fall": Scale.for_sum(sizes.objects, largest_psi**2),
        }

    def share_shapes(self, iteration: int) -> dict[str, tuple[int, ...]]:
        """Those of a start are zero in iterations in which it needs others, or none."""
        if not self.learn_alpha or iteration <= self._shortest_hold:
            return {}
        if self.schedule == "newton":
            return {"mean_log": (self.k,)}
        return {"mean_log": (self.k,), "rise": (self.k + 1,), "fall": (self.k + 1,)}  # per cluster, and of the whole

    def start_globals(self, sizes: Sizes, before: State | None) -> State:
        alpha = np.tile(self.alpha, (self.n_starts, 1))
        none = np.zeros(self.n_starts)
        return {
            "alpha": alpha,
            "fallback": alpha,
            "trial": none,
            "last_bound": np.full(self.n_starts, -np.inf),
            "calm": none,  # iterations in a row in which hardly a label has moved
            "learning": np.full(self.n_starts, float(self.learn_alpha and not self.hold_iter)),
        }

    def can_have(self, globals_: State, iteration: int) -> bool:
        """No start learns alpha before the shortest hold is over: the shares for it are not asked for."""
        most = max(iteration - self._shortest_hold, 0) * self.learn_alpha
        return all(0 <= learning <= most and learning.is_integer() for learning in globals_["learning"].tolist())

    def start_objects(self, opening: Opening, globals_: State, before: State | None) -> State:
        if "gamma" in opening.given:
            return _posterior(opening.given["gamma"][None] + np.zeros((self.n_starts, 1, 1)))
        flat = opening.labels / self.k
        if "weights" in opening.given:  # of shared objects in a distributed job; NaN where an object has none
            weights = opening.given["weights"]
            gamma = opening.labels * weights
            np.copyto(gamma, flat, where=np.isnan(weights))
            gamma += globals_["alpha"][:, :, None]
            return _posterior(gamma)
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
        newton, joint = self.phases_of(globals_)
        if in_newton := np.count_nonzero(newton):
            everywhere = in_newton == len(newton)
            shares["mean_log"] = mean_log if everywhere else np.where(newton[:, None, None], mean_log, 0.0)
        if (in_joint := np.count_nonzero(joint)) == len(joint):
            shares["rise"], shares["fall"] = self._joint_shares(alpha, sums, opening)
        elif in_joint:
            rise, fall = self._joint_shares(alpha[joint], sums[joint], opening)
            shares["rise"], shares["fall"] = _spread(rise, joint), _spread(fall, joint)
        return shares

    def _joint_shares(self, alpha: Reals, sums: Reals, opening: Opening) -> tuple[Reals, Reals]:
        """For each object psi(alpha_h + S_ih) - psi(alpha_h), and the same of the whole; and the same of -psi'."""
        # All arguments in one array: with few objects, the number of calls determines the time.
        k, total = self.k, alpha.sum(axis=1, keepdims=True)
        sizes = np.empty((len(alpha), k + 1, sums.shape[-1] + 1))
        sizes[:, :k, :1], sizes[:, k:, :1] = alpha, total
        np.add(alpha, sums, out=sizes[:, :k, 1:])
        np.add(total, opening.labels, out=sizes[:, k:, 1:])
        rise, fall = digamma(sizes), trigamma(sizes)
        return rise[..., 1:] - rise[..., :1], fall[..., :1] - fall[..., 1:]

    def global_step(self, bound: Reals, totals: State, globals_: State, sizes: Sizes, iteration: int) -> GlobalDecision:
        last = globals_["last_bound"]
        retry = (globals_["trial"] > 0) & (bound < last - ROUNDING[self.precision] * np.abs(last))
        alpha = fallback = globals_["alpha"]
        phases = self.phases_of(globals_)
        if phases.newton.any():
            learnt = dirichlet.maximise(alpha, totals["mean_log"] / sizes.objects)
            alpha = fallback = np.where(phases.newton[:, None], learnt, alpha)
        if phases.joint.any():
            rise, fall = totals["rise"], totals["fall"]
            trial, safe = dirichlet.joint_step(
                globals_["alpha"], rise[:, : self.k], fall[:, : self.k], rise[:, self.k], fall[:, self.k]
            )
            alpha, fallback = (np.where(phases.joint[:, None], new, alpha) for new in (trial, safe))
        calm, learning = self._next_phase(totals["moved"], globals_, sizes, iteration)
        return GlobalDecision(
            bound,
            {
                "alpha": np.where(retry[:, None], globals_["fallback"], alpha),
                "fallback": fallback,
                "trial": np.where(retry, 0.0, phases.joint),
                "last_bound": np.where(retry, last, bound),
                "calm": calm,
                "learning": learning,
            },
            retry,
            may_stop=(learning > self._newton_iter + 1) | (not self.learn_alpha),
            halvings=np.full(len(bound), float(iteration >= SHORTEST_HOLD)),
        )

    def decides_at_once(self, globals_: State) -> bool:
        """Newton steps are many, and each is halved until it does no harm; a joint step is one."""
        return not self.phases_of(globals_).newton.any()

    def _next_phase(self, moved: Reals, globals_: State, sizes: Sizes, iteration: int) -> tuple[Reals, Reals]:
        """`calm` and `learning` of the next iteration."""
        calm = np.where(moved <= CALM_SHARE * sizes.objects, globals_["calm"] + 1, 0.0)
        begins = (calm >= CALM_ITERATIONS) & (iteration >= SHORTEST_HOLD) | (iteration >= self.hold_iter)
        learning = globals_["learning"]
        return calm, np.where((learning > 0) | (begins & self.learn_alpha), learning + 1, 0.0)

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
    gamma = np.ascontiguousarray(gamma)
    mean_log, largest, message = dirichlet_posterior(gamma)
    return {"gamma": gamma, "mean_log": mean_log, "largest": largest, "message": message}


def _spread(values: Reals, where: NDArray[np.bool_]) -> Reals:
    """The values of some starts among zeros for the others."""
    whole = np.zeros((len(where), *values.shape[1:]))
    whole[where] = values
    return whole
