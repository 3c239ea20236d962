"""The object step of BC3E: Gaussian posteriors of two logits per object and class, updated coordinate by coordinate.

Each update maximises the bound over some variables with the others fixed, so that the bound never falls, whatever the
order of updates. omega is the Wright omega function, the solution of omega + ln omega = z: x - omega(ln(A/a) + x)
solves a (x - m) = A e^m for m. Iterations stop element by element, never for the array as a whole: the bits of an
object must not depend on other objects.

Formulas of single numbers stand in functions of their own, which `ce.kernels.compiled_gaussian` compiles: the sweeps
have the same bits there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ce.kernels import backend
from ce.kernels.elementary import exp, log, wright_omega
from ce.kernels.special import exp as exp_of
from ce.kernels.special import log as log_of
from ce.kernels.special import log_or_infinite, over_clusters
from ce.ring import Reals

MOST_STEPS = 100
CLOSE = 1e-8  # both iterations converge quadratically: after such a step only rounding errors are left
_LARGEST_ROOM = 1e200


@dataclass(frozen=True)
class Gaussians:
    """q(y_ni, theta_ni): means mu and eps, variances s and d, covariance r; all (starts, k, n)."""

    mu: Reals
    eps: Reals
    s: Reals
    d: Reals
    r: Reals

    def log_kappa(self) -> Reals:
        """ln sum_i exp(mu_ni + s_ni/2), the best Taylor point of the votes' log-sum-exp: (starts, 1, n)."""
        return _log_sum_exp(self.mu + 0.5 * self.s)

    def log_xi(self) -> Reals:
        """ln sum_i exp(eps_ni + d_ni/2), the same for the cluster labels: (starts, 1, n)."""
        return _log_sum_exp(self.eps + 0.5 * self.d)


@dataclass(frozen=True)
class Prior:
    """mu (starts, k, 1), sigma² (starts, k, 1), delta² (starts, 1, 1)."""

    mu: Reals
    sigma2: Reals
    delta2: Reals


def factorised_sweep(
    q: Gaussians, votes: Reals, sums: Reals, labels: Reals, prior: Prior, rounds: int = 1
) -> Gaussians:
    """Rounds of updates for q(y) q(theta)."""
    return _sweeps(_factorised, q, votes, sums, labels, prior, rounds)


def joint_sweep(q: Gaussians, votes: Reals, sums: Reals, labels: Reals, prior: Prior, rounds: int = 1) -> Gaussians:
    """Rounds of updates with the covariance r free."""
    return _sweeps(_joint, q, votes, sums, labels, prior, rounds)


@dataclass(frozen=True)
class _Fixed:
    """What no round changes."""

    evidence: Reals  # c_n + mu/sigma²: (starts, k, n)
    sums: Reals
    log_r1: Reals  # (1, 1, n), -inf without a vote
    log_r2: Reals  # (n,), -inf without a label
    precision: Reals  # 1/sigma² + 1/delta²: (starts, k, 1)
    log_precision: Reals
    tie: Reals  # 1/delta²: (starts, 1, 1)


def _sweeps(sweep: Any, q: Gaussians, votes: Reals, sums: Reals, labels: Reals, prior: Prior, rounds: int) -> Gaussians:
    tie = 1.0 / prior.delta2
    precision = 1.0 / prior.sigma2 + tie
    fixed = _Fixed(
        votes + prior.mu / prior.sigma2,
        sums,
        log_or_infinite(over_clusters(votes[None]))[:, None],
        log_or_infinite(labels),
        precision,
        log_of(precision),
        tie,
    )
    if (kernels := backend.compiled()) is not None:
        found = [np.array(array, order="C") for array in (q.mu, q.eps, q.s, q.d, q.r)]
        kernels.gaussian_sweeps(
            rounds,
            sweep is _joint,
            *found,
            backend.plain(fixed.evidence),
            backend.plain(sums),
            backend.plain(fixed.log_r1.reshape(-1)),
            backend.plain(fixed.log_r2),
            backend.plain(precision[:, :, 0]),
            backend.plain(fixed.log_precision[:, :, 0]),
            backend.plain(tie[:, 0, 0]),
        )
        return Gaussians(*found)
    for _ in range(rounds):
        q = sweep(q, fixed)
    return q


def _factorised(q: Gaussians, fixed: _Fixed) -> Gaussians:
    x = (fixed.evidence + fixed.tie * q.eps) / fixed.precision
    mu = mean_of(x, fixed.log_r1 - q.log_kappa() + 0.5 * q.s - fixed.log_precision)
    q = replace(q, mu=mu)
    q = replace(q, s=_variance(fixed.precision, fixed.log_r1 - q.log_kappa() + mu, 0.0))

    log_rate = fixed.log_r2 - q.log_xi() + 0.5 * q.d - log_of(fixed.tie)
    eps = mean_of(mu + fixed.sums / fixed.tie, log_rate)
    q = replace(q, eps=eps)
    return replace(q, d=_variance(fixed.tie, fixed.log_r2 - q.log_xi() + eps, 0.0))


def _joint(q: Gaussians, fixed: _Fixed) -> Gaussians:
    mu, eps = _joint_means(q, fixed)
    q = replace(q, mu=mu, eps=eps)

    v = _variance(fixed.precision, fixed.log_r1 - q.log_kappa() + mu, q.d * fixed.tie * fixed.tie)
    slope = v * fixed.tie
    q = replace(q, s=v + slope * slope * q.d, r=slope * q.d)

    w = _variance(fixed.tie, fixed.log_r2 - q.log_xi() + eps, q.s * fixed.tie * fixed.tie)
    slope = w * fixed.tie
    return replace(q, d=w + slope * slope * q.s, r=slope * q.s)


def _joint_means(q: Gaussians, fixed: _Fixed) -> tuple[Reals, Reals]:
    """(mu, eps) together: mu in closed form given eps, eps by a Newton step that treats its exponential exactly.

    mu(e) is concave in e, so that from the second step on eps decreases to the root, quadratically.
    """
    log_rate1 = fixed.log_r1 - q.log_kappa() + 0.5 * q.s - fixed.log_precision
    log_rate2 = fixed.log_r2 - q.log_xi() + 0.5 * q.d
    eps = q.eps
    moving = np.ones(eps.shape, dtype=bool)
    for _ in range(MOST_STEPS):
        new = next_eps(eps, fixed.evidence, fixed.sums, log_rate1, log_rate2, fixed.precision, fixed.tie)
        step = np.abs(new - eps)
        eps = np.where(moving, new, eps)
        moving &= step > CLOSE * (1.0 + np.abs(eps))
        if not moving.any():
            break
    return mean_of((fixed.evidence + fixed.tie * eps) / fixed.precision, log_rate1), eps


def _variance(precision: Reals, log_rate: Reals, curvature: Reals | float) -> Reals:
    """The v that solves 1/v = precision + rate exp((v + curvature v²)/2).

    In u = ln v the equation is increasing and convex: Newton's steps from above the root go down to it and never beyond
    it. Two upper bounds: 1/v >= precision + rate and, where v >= 1, exp((v + curvature v²)/2) <= 1/rate.
    """
    u = -log(precision + exp(log_rate))
    if (u > 0.0).any():  # the second bound is not below zero, and so changes no other u
        u = np.minimum(u, log_variance_below(log_rate, curvature))
    moving = np.ones(u.shape, dtype=bool)
    for _ in range(MOST_STEPS):
        step = variance_step(u, precision, log_rate, curvature)
        u = np.where(moving, u - step, u)
        moving &= np.abs(step) > CLOSE * (1.0 + np.abs(u))
        if not moving.any():
            break
    root: Reals = exp(u)
    return root


# Of numbers, or of arrays number by number.


def mean_of(x: Any, log_rate: Any) -> Any:
    """The m that solves x - m = rate e^m; m = x where the rate is zero (no vote, no label)."""
    return x - wright_omega(log_rate + x)


def next_eps(eps: Any, evidence: Any, sums: Any, log_rate1: Any, log_rate2: Any, precision: Any, tie: Any) -> Any:
    """A step towards the eps of `_joint_means`. `follow` is the derivative of mu at eps."""
    x = (evidence + tie * eps) / precision
    omega = wright_omega(log_rate1 + x)
    follow = tie / (precision * (1.0 + omega))
    stiffness = (1.0 - follow) * tie
    target = (sums + tie * ((x - omega) - follow * eps)) / stiffness
    return mean_of(target, log_rate2 - log(stiffness))


def log_variance_below(log_rate: Any, curvature: Any) -> Any:
    """ln of the second upper bound of `_variance`, not below zero."""
    room = np.minimum(np.maximum(-2.0 * log_rate, 0.0), _LARGEST_ROOM)
    root = exp(0.5 * log(1.0 + 4.0 * curvature * room))
    return log(np.maximum(1.0, 2.0 * room / (1.0 + root)))


def variance_step(u: Any, precision: Any, log_rate: Any, curvature: Any) -> Any:
    """What Newton's step takes off u."""
    v = exp(u)
    growth = exp(log_rate + u + 0.5 * (v + curvature * v * v))
    excess = precision * v + growth - 1.0
    return excess / (precision * v + growth * (1.0 + 0.5 * v + curvature * v * v))


def _log_sum_exp(x: Reals) -> Reals:
    """Over clusters, of (starts, k, n): (starts, 1, n)."""
    largest = x.max(axis=1, keepdims=True)
    total: Reals = largest + log_of(over_clusters(exp_of(x - largest)))[:, None]
    return total
