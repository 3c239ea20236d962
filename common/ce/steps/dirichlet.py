"""Steps for the parameter of a Dirichlet distribution, for all starts at once; every alpha_h stays in [FLOOR, CEILING].

On ensembles of good clusterings the optimum is alpha -> 0, where BCE becomes the mixture model; plain EM approaches it
like 1/iteration. From flat starts alpha -> infinity is a bad local optimum. So there are a floor, a ceiling and
`joint_step`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, psi

from ce.kernels.special import trigamma
from ce.ring import Reals

FLOOR = 0.01
CEILING = 1e4
#: For a larger alpha the Hessian of the joint step is lost to cancellation, and its direction would be rounding errors.
NEWTON_CEILING = 100.0
_STEPS = 100
_HALVINGS = 40
ROUNDING = 1e-14


def objective(alpha: Reals, mean_log: Reals) -> Reals:
    """lnG(sum a) - sum lnG(a_h) + sum_h a_h mean_log_h: the part of the bound per object that depends on alpha."""
    value: Reals = gammaln(alpha.sum(axis=-1)) - gammaln(alpha).sum(axis=-1) + (alpha * mean_log).sum(axis=-1)
    return value


def maximise(alpha: Reals, mean_log: Reals) -> Reals:
    """The alpha (starts, k) that maximises `objective` given mean_log_h = mean_i E ln theta_ih; concave.

    Projected Newton, Hessian diagonal + rank one, each step halved until the objective does not fall.
    """
    value = objective(alpha, mean_log)
    open_ = np.ones(alpha.shape[0], dtype=bool)
    for _ in range(_STEPS):
        total = alpha.sum(axis=-1, keepdims=True)
        gradient = psi(total) - psi(alpha) + mean_log
        direction = _newton_direction(alpha, gradient, -trigamma(alpha), trigamma(total)[..., 0])
        size = np.where(open_, 1.0, 0.0)
        for _ in range(_HALVINGS):
            trial = _within_limits(alpha + size[:, None] * direction)
            reached = objective(trial, mean_log)
            # Near the optimum the objective is flat to the last bit: rounding errors must not stop a correct step.
            worse = reached < value - ROUNDING * (1.0 + np.abs(value))
            if not worse.any():
                break
            size = np.where(worse, 0.5 * size, size)
        taken = open_ & ~worse
        moved = (np.abs(trial - alpha) > 1e-14 * alpha).any(axis=-1)
        alpha = np.where(taken[:, None], trial, alpha)
        value = np.where(taken, reached, value)
        open_ = taken & moved
        if not open_.any():
            break
    return alpha


def joint_step(alpha: Reals, rise: Reals, fall: Reals, total_rise: Reals, total_fall: Reals) -> tuple[Reals, Reals]:
    """One step of alpha and all object states together: (trial, fallback), each (starts, k).

    Given per-object sums S, g = alpha + S is optimal for every alpha, and the bound becomes the Pólya likelihood
    sum_i [ln B(alpha + S_i) - ln B(alpha)]. Its derivatives need only
        rise_h = sum_i psi(alpha_h + S_ih) - psi(alpha_h)          fall_h = sum_i psi'(alpha_h) - psi'(alpha_h + S_ih)
    and the same two with sum alpha and M_i (total_rise, total_fall). The trial is a Newton step where the Hessian is
    negative definite; it may overshoot, and the caller takes it back if the next bound is lower. The fallback, Minka's
    fixed point, never lowers the bound.
    """
    fallback = _within_limits(alpha * rise / np.maximum(total_rise, 1e-300)[:, None])
    gradient = rise - total_rise[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        direction = _newton_direction(alpha, gradient, -fall, total_fall)
        usable = np.isfinite(direction).all(axis=-1) & ((direction * gradient).sum(axis=-1) > 0)
        usable &= alpha.max(axis=-1) <= NEWTON_CEILING
        trial = np.where(usable[:, None], _within_limits(alpha + direction), fallback)
    return trial, fallback


def _within_limits(alpha: Reals) -> Reals:
    """np.clip, which takes twice as long for a few numbers."""
    limited: Reals = np.minimum(np.maximum(alpha, FLOOR), CEILING)
    return limited


def _newton_direction(alpha: Reals, gradient: Reals, diagonal: Reals, rank_one: Reals) -> Reals:
    """-H⁻¹ gradient for H = diag(diagonal) + rank_one 11ᵀ, over the coordinates that are free to move.

    A coordinate at a bound whose gradient points outwards stays. NaN where H is not negative definite.
    """
    free: NDArray[np.bool_] = ~(((alpha <= FLOOR) & (gradient <= 0)) | ((alpha >= CEILING) & (gradient >= 0)))
    inverse = np.where(free, 1.0 / diagonal, 0.0)
    denominator = 1.0 + rank_one * inverse.sum(axis=-1)
    shift = rank_one * (gradient * inverse).sum(axis=-1) / denominator
    direction: Reals = -(gradient - shift[:, None]) * inverse
    return np.where((denominator > 0)[:, None], direction, np.nan)
