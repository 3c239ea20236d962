"""The object step of BC3E: Gaussian posteriors of two logits per object and class, updated coordinate by coordinate.

Each update maximises the bound over its block with the others held, so that any order of them never lowers it.
omega is the Wright omega function, the solution of omega + ln omega = z: x - omega(ln(A/a) + x) solves
a (x - m) = A e^m for m. Iterations stop element by element, never for the array as a whole: an object's bits must not
depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import wrightomega

from ce.kernels.special import over_clusters
from ce.ring import Reals

_MOST_STEPS = 100
_CLOSE = 1e-15


@dataclass(frozen=True)
class Gaussians:
    """q(y_ni, theta_ni): means mu and eps, variances s and d, covariance r; all (starts, k, n)."""

    mu: Reals
    eps: Reals
    s: Reals
    d: Reals
    r: Reals

    def kappa(self) -> Reals:
        """sum_i exp(mu_ni + s_ni/2), the best Taylor point of the votes' log-sum-exp: (starts, 1, n)."""
        return over_clusters(np.exp(self.mu + 0.5 * self.s))[:, None]

    def xi(self) -> Reals:
        """sum_i exp(eps_ni + d_ni/2), the same for the cluster labels: (starts, 1, n)."""
        return over_clusters(np.exp(self.eps + 0.5 * self.d))[:, None]


@dataclass(frozen=True)
class Prior:
    """mu (starts, k, 1), sigma² (starts, k, 1), delta² (starts, 1, 1)."""

    mu: Reals
    sigma2: Reals
    delta2: Reals


def factorised_sweep(q: Gaussians, votes: Reals, sums: Reals, labels: Reals, prior: Prior) -> Gaussians:
    """One round of updates for q(y) q(theta)."""
    r1 = over_clusters(votes[None])
    precision = 1.0 / prior.sigma2 + 1.0 / prior.delta2

    rate = r1 / q.kappa()
    x = (votes + prior.mu / prior.sigma2 + q.eps / prior.delta2) / precision
    mu = _mean(x, rate * np.exp(0.5 * q.s) / precision)
    q = Gaussians(mu, q.eps, q.s, q.d, q.r)
    s = _variance(precision, r1 / q.kappa() * np.exp(mu), 0.0)
    q = Gaussians(mu, q.eps, s, q.d, q.r)

    rate = labels / q.xi()
    eps = _mean(mu + prior.delta2 * sums, rate * np.exp(0.5 * q.d) * prior.delta2)
    q = Gaussians(mu, eps, s, q.d, q.r)
    d = _variance(1.0 / prior.delta2, labels / q.xi() * np.exp(eps), 0.0)
    return Gaussians(mu, eps, s, d, q.r)


def joint_sweep(q: Gaussians, votes: Reals, sums: Reals, labels: Reals, prior: Prior) -> Gaussians:
    """One round of updates with the covariance r free."""
    r1 = over_clusters(votes[None])
    precision = 1.0 / prior.sigma2 + 1.0 / prior.delta2
    mu, eps = _joint_means(q, votes, sums, r1, labels, precision, prior)
    q = Gaussians(mu, eps, q.s, q.d, q.r)

    v = _variance(precision, r1 / q.kappa() * np.exp(mu), q.d / np.square(prior.delta2))
    slope = v / prior.delta2
    q = Gaussians(mu, eps, v + np.square(slope) * q.d, q.d, slope * q.d)

    w = _variance(1.0 / prior.delta2, labels / q.xi() * np.exp(eps), q.s / np.square(prior.delta2))
    slope = w / prior.delta2
    return Gaussians(mu, eps, q.s, w + np.square(slope) * q.s, slope * q.s)


def _joint_means(
    q: Gaussians, votes: Reals, sums: Reals, r1: Reals, r2: Reals, precision: Reals, prior: Prior
) -> tuple[Reals, Reals]:
    """(mu, eps) together: mu in closed form given eps, eps by a Newton step that keeps its exponential exact.

    mu(e) is concave in e, so from the second step on eps decreases to the root, quadratically.
    """
    tie = 1.0 / prior.delta2
    rate1 = r1 / q.kappa() * np.exp(0.5 * q.s)
    rate2 = r2 / q.xi() * np.exp(0.5 * q.d)
    fixed = votes + prior.mu / prior.sigma2

    def mean_given(eps: Reals) -> Reals:
        return _mean((fixed + tie * eps) / precision, rate1 / precision)

    eps = q.eps
    moving = np.ones(eps.shape, dtype=bool)
    for _ in range(_MOST_STEPS):
        mu = mean_given(eps)
        follow = tie / (precision + rate1 * np.exp(mu))
        stiffness = (1.0 - follow) * tie
        target = (sums + tie * (mu - follow * eps)) / stiffness
        new = _mean(target, rate2 / stiffness)
        step = np.abs(new - eps)
        eps = np.where(moving, new, eps)
        moving &= step > _CLOSE * (1.0 + np.abs(eps))
        if not moving.any():
            break
    return mean_given(eps), eps


def _mean(x: Reals, rate: Reals) -> Reals:
    """The m that solves x - m = rate e^m; m = x where the rate is zero (no vote, no label)."""
    with np.errstate(divide="ignore"):
        log_rate = np.log(rate)
    mean: Reals = x - wrightomega(log_rate + x)
    return mean


def _variance(precision: Reals, rate: Reals, curvature: Reals | float) -> Reals:
    """The v that solves 1/v = precision + rate exp((v + curvature v²)/2).

    In u = ln v the equation is increasing and convex; from v = 1/(precision + rate), which is not below the root,
    Newton's steps go down to it and never past it.
    """
    u = -np.log(precision + rate)
    moving = np.ones(u.shape, dtype=bool)
    for _ in range(_MOST_STEPS):
        v = np.exp(u)
        growth = rate * v * np.exp(0.5 * (v + curvature * v * v))
        excess = precision * v + growth - 1.0
        slope = precision * v + growth * (1.0 + 0.5 * v + curvature * v * v)
        step = excess / slope
        u = np.where(moving, u - step, u)
        moving &= np.abs(step) > _CLOSE * (1.0 + np.abs(u))
        if not moving.any():
            break
    return np.exp(u)
