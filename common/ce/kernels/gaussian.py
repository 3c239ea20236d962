"""The object step of BC3E: Gaussian posteriors of two logits per object and class, updated coordinate by coordinate.

Each update maximises the bound over some variables with the others fixed, so that the bound never falls, whatever the
order of updates. omega is the Wright omega function, the solution of omega + ln omega = z: x - omega(ln(A/a) + x)
solves a (x - m) = A e^m for m. Iterations stop element by element, never for the array as a whole: the bits of an
object must not depend on other objects.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import wrightomega

from ce.kernels.special import over_clusters
from ce.ring import Reals

_MOST_STEPS = 100
_CLOSE = 1e-13  # both iterations converge quadratically: after such a step only rounding errors are left


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


def factorised_sweep(q: Gaussians, votes: Reals, sums: Reals, labels: Reals, prior: Prior) -> Gaussians:
    """One round of updates for q(y) q(theta)."""
    log_r1, log_r2 = _log(over_clusters(votes[None]))[:, None], _log(labels)
    precision = 1.0 / prior.sigma2 + 1.0 / prior.delta2

    x = (votes + prior.mu / prior.sigma2 + q.eps / prior.delta2) / precision
    mu = _mean(x, log_r1 - q.log_kappa() + 0.5 * q.s - np.log(precision))
    q = replace(q, mu=mu)
    q = replace(q, s=_variance(precision, log_r1 - q.log_kappa() + mu, np.zeros(())))

    eps = _mean(mu + prior.delta2 * sums, log_r2 - q.log_xi() + 0.5 * q.d + np.log(prior.delta2))
    q = replace(q, eps=eps)
    return replace(q, d=_variance(1.0 / prior.delta2, log_r2 - q.log_xi() + eps, np.zeros(())))


def joint_sweep(q: Gaussians, votes: Reals, sums: Reals, labels: Reals, prior: Prior) -> Gaussians:
    """One round of updates with the covariance r free."""
    log_r1, log_r2 = _log(over_clusters(votes[None]))[:, None], _log(labels)
    precision = 1.0 / prior.sigma2 + 1.0 / prior.delta2
    mu, eps = _joint_means(q, votes, sums, log_r1, log_r2, precision, prior)
    q = replace(q, mu=mu, eps=eps)

    v = _variance(precision, log_r1 - q.log_kappa() + mu, q.d / np.square(prior.delta2))
    slope = v / prior.delta2
    q = replace(q, s=v + np.square(slope) * q.d, r=slope * q.d)

    w = _variance(1.0 / prior.delta2, log_r2 - q.log_xi() + eps, q.s / np.square(prior.delta2))
    slope = w / prior.delta2
    return replace(q, d=w + np.square(slope) * q.s, r=slope * q.s)


def _joint_means(
    q: Gaussians, votes: Reals, sums: Reals, log_r1: Reals, log_r2: Reals, precision: Reals, prior: Prior
) -> tuple[Reals, Reals]:
    """(mu, eps) together: mu in closed form given eps, eps by a Newton step that treats its exponential exactly.

    mu(e) is concave in e, so that from the second step on eps decreases to the root, quadratically.
    """
    tie = 1.0 / prior.delta2
    log_rate1 = log_r1 - q.log_kappa() + 0.5 * q.s
    log_rate2 = log_r2 - q.log_xi() + 0.5 * q.d
    fixed = votes + prior.mu / prior.sigma2

    def mean_given(eps: Reals) -> Reals:
        return _mean((fixed + tie * eps) / precision, log_rate1 - np.log(precision))

    eps = q.eps
    moving = np.ones(eps.shape, dtype=bool)
    for _ in range(_MOST_STEPS):
        mu = mean_given(eps)
        follow = tie / (precision + np.exp(log_rate1 + mu))
        stiffness = (1.0 - follow) * tie
        target = (sums + tie * (mu - follow * eps)) / stiffness
        new = _mean(target, log_rate2 - np.log(stiffness))
        step = np.abs(new - eps)
        eps = np.where(moving, new, eps)
        moving &= step > _CLOSE * (1.0 + np.abs(eps))
        if not moving.any():
            break
    return mean_given(eps), eps


def _mean(x: Reals, log_rate: Reals) -> Reals:
    """The m that solves x - m = rate e^m; m = x where the rate is zero (no vote, no label)."""
    mean: Reals = x - wrightomega(log_rate + x)
    return mean


def _variance(precision: Reals, log_rate: Reals, curvature: Reals) -> Reals:
    """The v that solves 1/v = precision + rate exp((v + curvature v²)/2).

    In u = ln v the equation is increasing and convex: Newton's steps from above the root go down to it and never beyond
    it. Two upper bounds: 1/v >= precision + rate and, where v >= 1, exp((v + curvature v²)/2) <= 1/rate.
    """
    u = -np.logaddexp(np.log(precision), log_rate)
    with np.errstate(invalid="ignore"):  # with a rate of zero: fmin ignores the NaN
        room = np.maximum(-2.0 * log_rate, 0.0)
        u = np.fmin(u, np.log(np.maximum(1.0, 2.0 * room / (1.0 + np.sqrt(1.0 + 4.0 * curvature * room)))))
    moving = np.ones(u.shape, dtype=bool)
    for _ in range(_MOST_STEPS):
        v = np.exp(u)
        growth = np.exp(log_rate + u + 0.5 * (v + curvature * v * v))
        excess = precision * v + growth - 1.0
        slope = precision * v + growth * (1.0 + 0.5 * v + curvature * v * v)
        step = excess / slope
        u = np.where(moving, u - step, u)
        moving &= np.abs(step) > _CLOSE * (1.0 + np.abs(u))
        if not moving.any():
            break
    root: Reals = np.exp(u)
    return root


def _log(x: Reals) -> Reals:
    with np.errstate(divide="ignore"):
        return np.log(x)


def _log_sum_exp(x: Reals) -> Reals:
    """Over clusters, of (starts, k, n): (starts, 1, n)."""
    largest = x.max(axis=1, keepdims=True)
    total: Reals = largest + np.log(over_clusters(np.exp(x - largest)))[:, None]
    return total
