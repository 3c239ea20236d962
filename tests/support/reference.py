"""The formulas of MATH.md in plain loops, cell by cell and object by object: tests compare the library with them.

Slow and easy to compare with the text; nothing here calls a step or a kernel of the library. Each formula stands once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln, polygamma, psi, wrightomega

from ce.labels import LabelTable
from ce.protocol.engine.starting_parameters import SeededStarts
from ce.protocol.topology.site_view import TopologyColumn
from ce.steps.dirichlet import CEILING, FLOOR


def assert_never_decreases(path: Sequence[float]) -> None:
    for before, after in itertools.pairwise(path):
        assert after >= before - 1e-9 * abs(before)


def start_tables(table: LabelTable, seed: int, starts: int, k: int) -> list[np.ndarray]:
    """The tables (starts, k, categories) that a fit with this seed begins with."""
    seeded = SeededStarts.of(seed, [table])
    columns = enumerate(table.clusterings)
    return [seeded.beta(TopologyColumn(j, c.name, c.kind, c.categories, ("here",)), starts, k) for j, c in columns]


def smoothed(counts: np.ndarray, old: np.ndarray, s: float) -> np.ndarray:
    """beta_h(r) = (n_hr + s) / sum_r (n_hr + s); an all-zero row keeps its old value."""
    beta = old.copy()
    for h in range(len(counts)):
        if (counts[h] + s).sum() > 0.0:
            beta[h] = (counts[h] + s) / (counts[h].sum() + s * counts.shape[1])
    return beta


def beta_log_prior(beta: Sequence[np.ndarray], s: float) -> float:
    """s sum ln beta."""
    return sum(s * float(np.log(b).sum()) for b in beta if s > 0.0)


# BCE.


@dataclass(frozen=True)
class Cell:
    """Object i has label r in column j, for a share p of a cell (1 if the label is hard)."""

    i: int
    j: int
    r: int
    p: float


def cells_of(table: LabelTable) -> list[Cell]:
    found = []
    for j, column in enumerate(table.clusterings):
        for i in range(table.n_objects):
            if column.codes is not None:
                if column.codes[i] >= 0:
                    found.append(Cell(i, j, int(column.codes[i]), 1.0))
                continue
            assert column.probabilities is not None
            for r, p in enumerate(column.probabilities[i]):
                if p > 0.0:  # False for NaN
                    found.append(Cell(i, j, r, float(p)))
    return found


def expected_logs(gamma: np.ndarray) -> np.ndarray:
    """El_ih = psi(g_ih) - psi(sum_h g_ih)."""
    return psi(gamma) - psi(gamma.sum(axis=1, keepdims=True))


def bce_phi(cells: Sequence[Cell], gamma: np.ndarray, beta: Sequence[np.ndarray]) -> list[np.ndarray]:
    """phi_ijh ∝ exp(El_ih) beta_hj(x_ij)."""
    el = expected_logs(gamma)
    result = []
    for cell in cells:
        weights = np.exp(el[cell.i]) * beta[cell.j][:, cell.r]
        result.append(weights / weights.sum())
    return result


def bce_bound(
    cells: Sequence[Cell],
    phi: Sequence[np.ndarray],
    gamma: np.ndarray,
    alpha: np.ndarray,
    beta: Sequence[np.ndarray],
    s: float,
) -> float:
    """L = sum_i L_i + s sum ln beta."""
    el = expected_logs(gamma)
    total = 0.0
    for i in range(len(gamma)):
        total += gammaln(alpha.sum()) - gammaln(alpha).sum() + ((alpha - 1.0) * el[i]).sum()
        total -= gammaln(gamma[i].sum()) - gammaln(gamma[i]).sum() + ((gamma[i] - 1.0) * el[i]).sum()
    for cell, q in zip(cells, phi, strict=True):
        used = q > 0.0
        likelihood = np.log(beta[cell.j][used, cell.r])
        total += cell.p * (q[used] * (el[cell.i][used] + likelihood - np.log(q[used]))).sum()
    return float(total) + beta_log_prior(beta, s)


def bce_object_sums(cells: Sequence[Cell], phi: Sequence[np.ndarray], shape: tuple[int, int]) -> np.ndarray:
    """a_ih = sum_{j in O_i} phi_ijh."""
    sums = np.zeros(shape)
    for cell, q in zip(cells, phi, strict=True):
        sums[cell.i] += cell.p * q
    return sums


def bce_column_step(
    cells: Sequence[Cell], phi: Sequence[np.ndarray], old: Sequence[np.ndarray], s: float
) -> list[np.ndarray]:
    """beta_hj(r) = (n_hjr + s) / (sum_r n_hjr + s k_j); see `smoothed`."""
    counts = [np.zeros_like(b) for b in old]
    for cell, q in zip(cells, phi, strict=True):
        counts[cell.j][:, cell.r] += cell.p * q
    return [smoothed(n, before, s) for n, before in zip(counts, old, strict=True)]


def bce_alpha_slope(alpha: np.ndarray, mean_log: np.ndarray) -> np.ndarray:
    """alpha_h times the derivative, per object, of lnG(sum a) - sum lnG(a_h) + sum_h (a_h - 1) ss_h / N."""
    return alpha * (psi(alpha.sum()) - psi(alpha) + mean_log)


def dirichlet_objective(alpha: np.ndarray, mean_log: np.ndarray) -> float:
    """lnG(sum a) - sum lnG(a_h) + sum_h (a_h - 1) ss_h, per object."""
    value = math.lgamma(float(alpha.sum()))
    for a, m in zip(alpha.tolist(), mean_log.tolist(), strict=True):
        value += -math.lgamma(a) + (a - 1.0) * m
    return value


def polya_likelihood(alpha: np.ndarray, sums: np.ndarray) -> float:
    """sum_i [ln B(alpha + S_i) - ln B(alpha)]."""
    total = 0.0
    for row in sums:
        total += gammaln(alpha + row).sum() - gammaln((alpha + row).sum())
        total -= gammaln(alpha).sum() - gammaln(alpha.sum())
    return total


def bce_joint_inputs(alpha: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, float]:
    rise, fall = np.zeros(len(alpha)), np.zeros(len(alpha))
    total_rise = total_fall = 0.0
    for row in sums:
        rise += psi(alpha + row) - psi(alpha)
        fall += polygamma(1, alpha) - polygamma(1, alpha + row)
        total_rise += psi(alpha.sum() + row.sum()) - psi(alpha.sum())
        total_fall += polygamma(1, alpha.sum()) - polygamma(1, alpha.sum() + row.sum())
    return rise, fall, float(total_rise), float(total_fall)


def bce_joint_hessian(alpha: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the Polya likelihood: the gradient, which coordinates are free (not at a bound with the gradient pointing
    outwards), and the Hessian of those."""
    rise, fall, total_rise, total_fall = bce_joint_inputs(alpha, sums)
    gradient = rise - total_rise
    free = ~(((alpha <= FLOOR) & (gradient <= 0)) | ((alpha >= CEILING) & (gradient >= 0)))
    return gradient, free, (total_fall - np.diag(fall))[np.ix_(free, free)]


def bce_joint_newton(alpha: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One Newton step on the Polya likelihood by a dense solve, and Minka's fixed point, both limited to the box.

    Coordinates that are not free stay; where the Hessian is not negative definite the Newton step is the fixed point.
    """
    rise, _, total_rise, _ = bce_joint_inputs(alpha, sums)
    fixed_point = np.clip(alpha * rise / total_rise, FLOOR, CEILING)
    gradient, free, hessian = bce_joint_hessian(alpha, sums)
    if not free.any():
        return alpha, fixed_point
    if np.linalg.eigvalsh(hessian).max() >= 0.0:
        return fixed_point, fixed_point
    step = np.zeros(len(alpha))
    step[free] = -np.linalg.solve(hessian, gradient[free])
    return np.clip(alpha + step, FLOOR, CEILING), fixed_point


# Mixture.


def log_or_minus_infinity(x: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(x)


def mixture_responsibilities(
    cells: Sequence[Cell], weights: np.ndarray, beta: Sequence[np.ndarray], n: int
) -> tuple[np.ndarray, np.ndarray]:
    """r_ih ∝ pi_h prod_{j in O_i} beta_hj(x_ij), and ln of the normaliser."""
    joint = np.tile(log_or_minus_infinity(weights), (n, 1))
    for cell in cells:
        joint[cell.i] += cell.p * log_or_minus_infinity(beta[cell.j][:, cell.r])
    largest = joint.max(axis=1, keepdims=True)
    scaled = np.exp(joint - largest)
    total = scaled.sum(axis=1, keepdims=True)
    return scaled / total, (np.log(total) + largest)[:, 0]


def mixture_bound(logs: np.ndarray, beta: Sequence[np.ndarray], s: float) -> float:
    """The log_or_minus_infinity-likelihood plus s sum ln beta."""
    return float(logs.sum()) + beta_log_prior(beta, s)


def mixture_em_step(
    cells: Sequence[Cell], r: np.ndarray, labelled: np.ndarray, old: Sequence[np.ndarray], s: float
) -> tuple[np.ndarray, list[np.ndarray]]:
    """pi_h = mean_i r_ih;  beta_hj(q) = (n_hjq + s) / (sum_q n_hjq + s k_j)."""
    counts = [np.zeros_like(b) for b in old]
    for cell in cells:
        counts[cell.j][:, cell.r] += cell.p * r[cell.i]
    return r[labelled].mean(axis=0), [smoothed(n, before, s) for n, before in zip(counts, old, strict=True)]


# BC3E.


@dataclass(frozen=True)
class ClusterLabel:
    """Clustering m says j, for a share p of a cell (1 if the label is hard)."""

    m: int
    j: int
    p: float


@dataclass(frozen=True)
class BC3EData:
    """c_n and the cells of every object that has a vote or a label; `rows` are their places in the table."""

    rows: np.ndarray
    votes: np.ndarray  # (n, k)
    cells: list[list[ClusterLabel]]


@dataclass(frozen=True)
class BC3EState:
    """q of the objects of `BC3EData`, the globals and the tables."""

    mu: np.ndarray  # (n, k), also eps, s, d, r
    eps: np.ndarray
    s: np.ndarray
    d: np.ndarray
    r: np.ndarray
    prior_mu: np.ndarray
    sigma2: np.ndarray
    delta2: float
    beta: list[np.ndarray]


def bc3e_data(table: LabelTable, k: int) -> BC3EData:
    rows, votes, cells = [], [], []
    for n in range(table.n_objects):
        c = np.zeros(k)
        for column in table.classifiers:
            if column.codes is not None:
                if column.codes[n] >= 0:
                    c[column.categories[column.codes[n]]] += 1.0
            elif not np.isnan(column.probabilities[n]).any():
                for at, name in enumerate(column.categories):
                    c[name] += column.probabilities[n][at]
        found = []
        for m, column in enumerate(table.clusterings):
            if column.codes is not None:
                if column.codes[n] >= 0:
                    found.append(ClusterLabel(m, int(column.codes[n]), 1.0))
            else:
                found += [ClusterLabel(m, j, float(p)) for j, p in enumerate(column.probabilities[n]) if p > 0.0]
        if c.sum() > 0.0 or found:
            rows.append(n)
            votes.append(c)
            cells.append(found)
    return BC3EData(np.array(rows), np.array(votes), cells)


def bc3e_labels(data: BC3EData) -> np.ndarray:
    """r2_n: the number of cluster labels."""
    return np.array([sum(cell.p for cell in cells) for cells in data.cells])


def bc3e_phi(data: BC3EData, state: BC3EState) -> list[list[np.ndarray]]:
    """phi_nmi ∝ exp(eps_ni) beta_mi(w2_nm)."""
    result = []
    for n, cells in enumerate(data.cells):
        rows = []
        for cell in cells:
            weights = np.exp(state.eps[n] - state.eps[n].max()) * state.beta[cell.m][:, cell.j]
            rows.append(weights / weights.sum())
        result.append(rows)
    return result


def bc3e_object_sums(data: BC3EData, phi: Sequence[Sequence[np.ndarray]], k: int) -> np.ndarray:
    """S_n = sum_m phi_nm."""
    sums = np.zeros((len(data.rows), k))
    for n, cells in enumerate(data.cells):
        for cell, q in zip(cells, phi[n], strict=True):
            sums[n] += cell.p * q
    return sums


def bc3e_taylor_points(state: BC3EState) -> tuple[np.ndarray, np.ndarray]:
    """kappa_n = sum_i e^{mu_ni + s_ni/2}, xi_n = sum_i e^{eps_ni + d_ni/2}."""
    return np.exp(state.mu + state.s / 2).sum(axis=1), np.exp(state.eps + state.d / 2).sum(axis=1)


def bc3e_object_bound(
    state: BC3EState, n: int, c: np.ndarray, sums: np.ndarray, r2: float, kappa: float, xi: float
) -> float:
    """The terms of MATH.md's bound that depend on q(y_n) and q(theta_n), with the covariance r."""
    mu, eps, s, d, r = state.mu[n], state.eps[n], state.s[n], state.d[n], state.r[n]
    total = 0.0
    for i in range(len(mu)):
        sigma2 = state.sigma2[i]
        total -= 0.5 * (math.log(2 * math.pi * sigma2) + (s[i] + (mu[i] - state.prior_mu[i]) ** 2) / sigma2)
        total -= 0.5 * math.log(2 * math.pi * state.delta2)
        total -= 0.5 * ((eps[i] - mu[i]) ** 2 + s[i] + d[i] - 2 * r[i]) / state.delta2
        total += c[i] * mu[i] + sums[i] * eps[i]
        total += 0.5 * math.log((2 * math.pi * math.e) ** 2 * (s[i] * d[i] - r[i] * r[i]))
    total -= c.sum() * (math.log(kappa) + np.exp(mu + s / 2).sum() / kappa - 1.0)
    total -= r2 * (math.log(xi) + np.exp(eps + d / 2).sum() / xi - 1.0)
    return float(total)


def bc3e_bound(
    data: BC3EData,
    state: BC3EState,
    smoothing: float,
    phi: Sequence[Sequence[np.ndarray]] | None = None,
    points: tuple[np.ndarray, np.ndarray] | None = None,
) -> float:
    """MATH.md's bound, plus s sum ln beta. phi and the Taylor points are optimal where they are not given."""
    phi = bc3e_phi(data, state) if phi is None else phi
    kappa, xi = bc3e_taylor_points(state) if points is None else points
    sums, labels = bc3e_object_sums(data, phi, state.mu.shape[1]), bc3e_labels(data)
    total = 0.0
    for n, cells in enumerate(data.cells):
        total += bc3e_object_bound(state, n, data.votes[n], sums[n], labels[n], float(kappa[n]), float(xi[n]))
        for cell, q in zip(cells, phi[n], strict=True):
            used = q > 0.0
            total += cell.p * (q[used] * (np.log(state.beta[cell.m][used, cell.j]) - np.log(q[used]))).sum()
    return float(total) + beta_log_prior(state.beta, smoothing)


def bc3e_column_step(
    data: BC3EData, phi: Sequence[Sequence[np.ndarray]], old: Sequence[np.ndarray], smoothing: float
) -> list[np.ndarray]:
    """beta_mi(j) ∝ T_mij + s; see `smoothed`."""
    counts = [np.zeros_like(b) for b in old]
    for n, cells in enumerate(data.cells):
        for cell, q in zip(cells, phi[n], strict=True):
            counts[cell.m][:, cell.j] += cell.p * q
    return [smoothed(t, before, smoothing) for t, before in zip(counts, old, strict=True)]


def solve_mean(x: float, rate: float) -> float:
    """m with x - m = rate e^m."""
    return x if rate == 0.0 else x - float(wrightomega(math.log(rate) + x).real)


def solve_variance(precision: float, rate: float, curvature: float = 0.0) -> float:
    """v with 1/v = precision + rate e^{(v + curvature v²)/2}."""
    if rate == 0.0:
        return 1.0 / precision

    def excess(v: float) -> float:
        return precision * v + rate * v * math.exp((v + curvature * v * v) / 2) - 1.0

    return float(brentq(excess, 1e-12, 1.0 / (precision + rate), xtol=1e-16, rtol=1e-14))


def bc3e_factorised_sweep(state: BC3EState, n: int, c: np.ndarray, sums: np.ndarray, r2: float) -> BC3EState:
    """kappa, mu_n; kappa, s_n; xi, eps_n; xi, d_n: one object, updated in copies of the arrays."""
    mu, eps, s, d = (a[n].copy() for a in (state.mu, state.eps, state.s, state.d))
    r1, delta2 = c.sum(), state.delta2
    a = 1 / state.sigma2 + 1 / delta2
    kappa = np.exp(mu + s / 2).sum()
    x = (c + state.prior_mu / state.sigma2 + eps / delta2) / a
    mu = np.array([solve_mean(x[i], r1 / kappa * math.exp(s[i] / 2) / a[i]) for i in range(len(c))])
    kappa = np.exp(mu + s / 2).sum()
    s = np.array([solve_variance(a[i], r1 / kappa * math.exp(mu[i])) for i in range(len(c))])
    xi = np.exp(eps + d / 2).sum()
    x = mu + delta2 * sums
    eps = np.array([solve_mean(x[i], r2 / xi * math.exp(d[i] / 2) * delta2) for i in range(len(c))])
    xi = np.exp(eps + d / 2).sum()
    d = np.array([solve_variance(1 / delta2, r2 / xi * math.exp(eps[i])) for i in range(len(c))])
    return bc3e_with_row(state, n, mu, eps, s, d, np.zeros(len(c)))


def bc3e_joint_sweep(state: BC3EState, n: int, c: np.ndarray, sums: np.ndarray, r2: float) -> BC3EState:
    """(mu, eps) together by bisection on eps; then (s, r) given d; then (d, r) given s."""
    mu, eps, s, d, r = (a[n].copy() for a in (state.mu, state.eps, state.s, state.d, state.r))
    r1, delta2 = c.sum(), state.delta2
    a = 1 / state.sigma2 + 1 / delta2
    kappa, xi = np.exp(mu + s / 2).sum(), np.exp(eps + d / 2).sum()
    for i in range(len(c)):
        big_a, big_b = r1 / kappa * math.exp(s[i] / 2), r2 / xi * math.exp(d[i] / 2)

        def mean_given(e: float, i: int = i, big_a: float = big_a) -> float:
            return solve_mean((c[i] + state.prior_mu[i] / state.sigma2[i] + e / delta2) / a[i], big_a / a[i])

        def slope(e: float, i: int = i, big_b: float = big_b, mean_given: Any = mean_given) -> float:
            return sums[i] + (mean_given(e) - e) / delta2 - big_b * math.exp(e)

        eps[i] = brentq(slope, -200.0, 200.0, xtol=1e-14, rtol=1e-14)
        mu[i] = mean_given(eps[i])
    kappa, xi = np.exp(mu + s / 2).sum(), np.exp(eps + d / 2).sum()
    for i in range(len(c)):
        v = solve_variance(a[i], r1 / kappa * math.exp(mu[i]), d[i] / delta2**2)
        s[i] = v + (v / delta2) ** 2 * d[i]
    for i in range(len(c)):
        w = solve_variance(1 / delta2, r2 / xi * math.exp(eps[i]), s[i] / delta2**2)
        d[i], r[i] = w + (w / delta2) ** 2 * s[i], w / delta2 * s[i]
    return bc3e_with_row(state, n, mu, eps, s, d, r)


def bc3e_with_row(state: BC3EState, n: int, *rows: np.ndarray) -> BC3EState:
    changed = {}
    for name, row in zip(("mu", "eps", "s", "d", "r"), rows, strict=True):
        changed[name] = getattr(state, name).copy()
        changed[name][n] = row
    return replace(state, **changed)
