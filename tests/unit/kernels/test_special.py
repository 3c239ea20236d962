"""Special functions, Dirichlet steps and Gaussian object steps: each as defined, none ever lowering its bound.

The objectives here are written out from MATH.md, term by term and object by object.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import polygamma, psi
from support import reference

from ce.kernels.gaussian import Gaussians, Prior, factorised_sweep, joint_sweep
from ce.kernels.special import log_beta, over_clusters, trigamma
from ce.steps import dirichlet
from ce.steps.dirichlet import CEILING, FLOOR

laws = settings(deadline=None, max_examples=40, derandomize=True)

seeds = st.integers(0, 2**32 - 1)


# Special functions.


def test_trigamma_agrees_with_scipy_from_1e_minus_4_to_1e6() -> None:
    x = np.concatenate([np.geomspace(1e-4, 1e6, 20001), np.linspace(0.5, 40.0, 4001)])
    np.testing.assert_allclose(trigamma(x), polygamma(1, x), rtol=1e-13, atol=0.0)


@laws
@given(x=st.floats(1e-4, 1e6))
def test_trigamma_of_a_number_does_not_depend_on_its_neighbours(x: float) -> None:
    alone = trigamma(np.array([x]))[0]
    np.testing.assert_allclose(alone, polygamma(1, x), rtol=1e-13)
    assert trigamma(np.array([0.3, 7.0, x, 1e3, 2.5]))[2] == alone
    assert trigamma(np.full((2, 3, 7), x))[1, 2, 6] == alone


def test_trigamma_satisfies_its_recurrence() -> None:
    x = np.geomspace(1e-3, 1e3, 500)
    np.testing.assert_allclose(trigamma(x), trigamma(x + 1.0) + 1.0 / x**2, rtol=1e-13)


@laws
@given(seed=seeds, k=st.integers(1, 9), n=st.integers(1, 40))
def test_a_sum_over_clusters_has_the_same_bits_in_any_company(seed: int, k: int, n: int) -> None:
    x = np.random.default_rng(seed).standard_normal((2, k, n))
    total = over_clusters(x)
    for i in range(n):
        expected = 0.0
        for h in range(k):
            expected += x[1, h, i]
        assert total[1, i] == pytest.approx(expected, rel=1e-12, abs=1e-14)
        assert over_clusters(np.ascontiguousarray(x[1:, :, i : i + 1]))[0, 0] == total[1, i]


@laws
@given(seed=seeds, k=st.integers(1, 6))
def test_log_beta_is_the_normaliser_of_a_dirichlet(seed: int, k: int) -> None:
    a = np.random.default_rng(seed).gamma(1.0, 3.0, (1, k, 3)) + 0.01
    for i in range(3):
        row = a[0, :, i].tolist()
        expected = sum(math.lgamma(v) for v in row) - math.lgamma(sum(row))
        assert log_beta(a)[0, i] == pytest.approx(expected, rel=1e-12, abs=1e-12)


# The parameter of a Dirichlet distribution, given mean logarithms.


def drawn_alpha(rng: np.random.Generator, k: int) -> np.ndarray:
    """Anywhere in the box, often on its faces."""
    alpha = np.exp(rng.uniform(np.log(FLOOR), np.log(CEILING), k))
    face = rng.random(k)
    alpha[face < 0.15] = FLOOR
    alpha[face > 0.9] = CEILING
    return alpha


def drawn_mean_log(rng: np.random.Generator, k: int) -> np.ndarray:
    """mean_i [psi(g_ih) - psi(sum_h g_ih)] of some g: what the object states of BCE add up to."""
    n = int(rng.integers(1, 30))
    g = FLOOR + rng.gamma(rng.uniform(0.05, 3.0), rng.uniform(0.1, 30.0), (n, k))
    if rng.random() < 0.3:
        g = g * rng.uniform(0.01, 1.0, k) + FLOOR
    return (psi(g) - psi(g.sum(axis=1, keepdims=True))).mean(axis=0)


def assert_maximum(alpha: np.ndarray, mean_log: np.ndarray) -> None:
    """The gradient vanishes, or points out of the box."""
    assert (alpha >= FLOOR).all()
    assert (alpha <= CEILING).all()
    slope = reference.bce_alpha_slope(alpha, mean_log)
    inside = (alpha > FLOOR) & (alpha < CEILING)
    assert np.abs(slope[inside]).max(initial=0.0) < 2e-5
    assert slope[alpha <= FLOOR].max(initial=-1.0) < 2e-5
    assert slope[alpha >= CEILING].min(initial=1.0) > -2e-5


@laws
@given(seed=seeds, k=st.integers(2, 8))
def test_maximise_ends_where_the_gradient_vanishes_or_at_a_bound(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    alpha, mean_log = drawn_alpha(rng, k), drawn_mean_log(rng, k)
    result = dirichlet.maximise(alpha[None], mean_log[None])[0]
    assert_maximum(result, mean_log)
    before, after = reference.dirichlet_objective(alpha, mean_log), reference.dirichlet_objective(result, mean_log)
    assert after >= before - 1e-12 * abs(before)


@laws
@given(seed=seeds, k=st.integers(2, 6))
def test_maximise_reaches_the_same_maximum_from_anywhere(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    mean_log = drawn_mean_log(rng, k)
    starts = np.stack([drawn_alpha(rng, k) for _ in range(6)])
    reached = dirichlet.maximise(starts, np.tile(mean_log, (6, 1)))
    best = [reference.dirichlet_objective(alpha, mean_log) for alpha in reached]
    assert max(best) - min(best) < 1e-9 * (1.0 + abs(max(best)))


@laws
@given(seed=seeds, k=st.integers(2, 6), others=st.integers(1, 4))
def test_maximise_treats_every_start_as_if_it_were_alone(seed: int, k: int, others: int) -> None:
    rng = np.random.default_rng(seed)
    alpha = np.stack([drawn_alpha(rng, k) for _ in range(others + 1)])
    mean_log = np.stack([drawn_mean_log(rng, k) for _ in range(others + 1)])
    together = dirichlet.maximise(alpha, mean_log)
    for start in range(others + 1):
        alone = dirichlet.maximise(alpha[start : start + 1], mean_log[start : start + 1])[0]
        np.testing.assert_array_equal(together[start], alone)


@laws
@given(seed=seeds, k=st.integers(2, 6))
def test_maximise_leaves_no_newton_step_to_take(seed: int, k: int) -> None:
    # To 1e-9: machines whose psi differs in the last bit must agree that far, and alpha moves every later bound.
    rng = np.random.default_rng(seed)
    mean_log = drawn_mean_log(rng, k)
    alpha = dirichlet.maximise(np.ones((1, k)), mean_log[None])[0]
    assume(alpha.max() < 30.0)
    gradient = psi(alpha.sum()) - psi(alpha) + mean_log
    free = alpha > FLOOR
    assume(free.any())
    hessian = (polygamma(1, alpha.sum()) - np.diag(polygamma(1, alpha)))[np.ix_(free, free)]
    step = np.linalg.solve(hessian, gradient[free])
    np.testing.assert_allclose(step / alpha[free], 0.0, atol=1e-9)


@pytest.mark.parametrize("alpha", [[0.5, 2.0, 7.0], [0.02, 0.02], [1.0, 1.0], [30.0, 1.0, 4.0, 5.0]])
def test_maximise_recovers_the_parameter_of_its_own_expectations(alpha: list[float]) -> None:
    # To 1e-9: results on different machines, whose psi differs in the last bit, must agree that far.
    truth = np.array(alpha)
    mean_log = psi(truth) - psi(truth.sum())
    for start in (np.ones((1, len(truth))), np.full((1, len(truth)), 3.0)):
        found = dirichlet.maximise(start, mean_log[None])[0]
        np.testing.assert_allclose(found, truth, rtol=1e-9)


# The joint step: alpha and all object states together.


def drawn_sums(rng: np.random.Generator, k: int) -> np.ndarray:
    """Per-object sums S (n, k): fractional counts that add up to the number of the object's labels."""
    n = int(rng.integers(1, 40))
    labels = rng.integers(0, 12, n)
    labels[0] = max(labels[0], 1)
    weights = rng.gamma(rng.uniform(0.05, 4.0), 1.0, (n, k)) + 1e-12
    if rng.random() < 0.2:
        weights[:, 0] = 1e-30  # a cluster without objects
    return labels[:, None] * weights / weights.sum(axis=1, keepdims=True)


def joint_step(alpha: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rise, fall, total_rise, total_fall = reference.bce_joint_inputs(alpha, sums)
    trial, fallback = dirichlet.joint_step(
        alpha[None], rise[None], fall[None], np.array([total_rise]), np.array([total_fall])
    )
    return trial[0], fallback[0]


@laws
@given(seed=seeds, k=st.integers(2, 8))
def test_the_fallback_of_the_joint_step_never_lowers_the_polya_likelihood(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    alpha, sums = drawn_alpha(rng, k), drawn_sums(rng, k)
    trial, fallback = joint_step(alpha, sums)
    for result in (trial, fallback):
        assert np.isfinite(result).all()
        assert (result >= FLOOR).all()
        assert (result <= CEILING).all()
    # lnG of numbers near the ceiling is known to 1e-11 only, object by object.
    assert reference.polya_likelihood(fallback, sums) >= reference.polya_likelihood(alpha, sums) - 1e-10 * len(sums)


@laws
@given(seed=seeds, k=st.integers(2, 8))
def test_the_trial_of_the_joint_step_is_the_newton_step_of_a_dense_solve(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    alpha = np.exp(rng.uniform(np.log(FLOOR), np.log(50.0), k))
    alpha[rng.random(k) < 0.2] = FLOOR
    sums = drawn_sums(rng, k)
    _, free, hessian = reference.bce_joint_hessian(alpha, sums)
    assume(free.any())
    assume(abs(np.linalg.eigvalsh(hessian).max()) > 1e-9 * np.abs(hessian).max())
    trial, fallback = joint_step(alpha, sums)
    newton, fixed_point = reference.bce_joint_newton(alpha, sums)
    np.testing.assert_allclose(trial, newton, rtol=1e-6)
    np.testing.assert_allclose(fallback, fixed_point, rtol=1e-9)


@laws
@given(seed=seeds, k=st.integers(2, 6))
def test_the_joint_steps_inputs_are_the_derivatives_of_the_polya_likelihood(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    alpha, sums = np.exp(rng.uniform(-1.0, 2.0, k)), drawn_sums(rng, k)
    rise, fall, total_rise, total_fall = reference.bce_joint_inputs(alpha, sums)
    for h in range(k):
        step = np.zeros(k)
        step[h] = 1e-4 * alpha[h]
        up, here, down = (reference.polya_likelihood(alpha + sign * step, sums) for sign in (1, 0, -1))
        assert (up - down) / (2 * step[h]) == pytest.approx(rise[h] - total_rise, rel=1e-5, abs=1e-6)
        curvature = (up - 2 * here + down) / step[h] ** 2
        assert curvature == pytest.approx(total_fall - fall[h], rel=1e-2, abs=1e-2)


def test_minkas_fixed_point_and_the_newton_step_stay_at_a_maximum() -> None:
    rng = np.random.default_rng(5)
    sums = np.stack([rng.multinomial(20, p) for p in rng.dirichlet([2.0, 1.0, 3.0], 200)]).astype(float)
    alpha = np.ones(3)
    for _ in range(12):
        alpha, _ = joint_step(alpha, sums)
    trial, fallback = joint_step(alpha, sums)
    np.testing.assert_allclose(trial, alpha, rtol=1e-10)
    np.testing.assert_allclose(fallback, alpha, rtol=1e-10)
    np.testing.assert_allclose(alpha, [2.0, 1.0, 3.0], rtol=0.3)


# The object step of BC3E.


class Problem:
    """Random votes, cluster sums and globals; some objects without votes, some without labels."""

    def __init__(self, seed: int, k: int, *, spread: float = 3.0, flat: bool = False) -> None:
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 6))
        self.votes = rng.integers(0, 2, n) * rng.dirichlet(np.ones(k), n).T * rng.integers(0, 15, n)
        self.labels = (rng.integers(0, 2, n) * rng.integers(0, 30, n)).astype(float)
        self.sums = (rng.dirichlet(np.full(k, 0.3), n).T * self.labels)[None]
        self.prior = Prior(
            rng.normal(0.0, 1.0, (1, k, 1)),
            np.exp(rng.uniform(-spread, spread, (1, k, 1))),
            np.exp(rng.uniform(-spread, spread, (1, 1, 1))),
        )
        shape = (1, k, n)
        self.q = Gaussians(
            rng.normal(0.0, 2.0, shape),
            rng.normal(0.0, 2.0, shape),
            np.exp(rng.uniform(-3.0, 1.0, shape)),
            np.exp(rng.uniform(-3.0, 1.0, shape)),
            np.zeros(shape),
        )

        if flat:
            sigma2, delta2 = rng.uniform(50.0, 600.0, (1, k, 1)), rng.uniform(50.0, 600.0, (1, 1, 1))
            self.prior = Prior(self.prior.mu, sigma2, delta2)
            narrow, wide = 1.0 / (1.0 / sigma2 + 1.0 / delta2), np.zeros(shape) + delta2
            self.q = replace(self.q, s=narrow + np.zeros(shape), d=wide)

    @property
    def arguments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, Prior]:
        return self.votes, self.sums, self.labels, self.prior

    def state(self, q: Gaussians) -> reference.BC3EState:
        """The same as in the formulas of the text, objects first."""
        mu, eps, s, d, r = (array[0].T for array in (q.mu, q.eps, q.s, q.d, q.r))
        prior = self.prior
        return reference.BC3EState(
            mu, eps, s, d, r, prior.mu[0, :, 0], prior.sigma2[0, :, 0], float(prior.delta2[0, 0, 0]), []
        )

    def objects(self) -> Iterator[tuple[int, np.ndarray, np.ndarray, float]]:
        """Number, votes, sums and number of labels of each."""
        for n in range(len(self.labels)):
            yield n, self.votes[:, n], self.sums[0, :, n], float(self.labels[n])

    def bound(self, q: Gaussians) -> float:
        """kappa and xi optimal."""
        state = self.state(q)
        kappa, xi = reference.bc3e_taylor_points(state)
        return sum(
            reference.bc3e_object_bound(state, *one, float(kappa[one[0]]), float(xi[one[0]])) for one in self.objects()
        )


def assert_never_lower(bounds: list[float]) -> None:
    for before, after in itertools.pairwise(bounds):
        assert after >= before - 1e-10 * (1.0 + abs(before))


@pytest.mark.promise("Every step of a model maximises the bound over its block.")
@laws
@given(seed=seeds, k=st.integers(2, 5), flat=st.booleans())
def test_no_update_of_the_factorised_sweep_lowers_the_bound(seed: int, k: int, flat: bool) -> None:
    problem = Problem(seed, k, flat=flat)
    q = problem.q
    for _ in range(3):
        new = factorised_sweep(q, *problem.arguments)
        steps = [
            q,
            Gaussians(new.mu, q.eps, q.s, q.d, q.r),
            Gaussians(new.mu, q.eps, new.s, q.d, q.r),
            Gaussians(new.mu, new.eps, new.s, q.d, q.r),
            new,
        ]
        assert not new.r.any()
        assert_never_lower([problem.bound(state) for state in steps])
        q = new


@pytest.mark.promise("Every step of a model maximises the bound over its block.")
@laws
@given(seed=seeds, k=st.integers(2, 5), flat=st.booleans())
def test_no_update_of_the_joint_sweep_lowers_the_bound(seed: int, k: int, flat: bool) -> None:
    problem = Problem(seed, k, flat=flat)
    q, delta2 = problem.q, problem.prior.delta2
    for _ in range(3):
        new = joint_sweep(q, *problem.arguments)
        # s = v + (v/delta²)² d with the old d: v, and so the covariance between the two updates, follow from it.
        slope = q.d / delta2**2
        v = (np.sqrt(1.0 + 4.0 * slope * new.s) - 1.0) / (2.0 * slope)
        steps = [
            q,
            Gaussians(new.mu, new.eps, q.s, q.d, q.r),
            Gaussians(new.mu, new.eps, new.s, q.d, v / delta2 * q.d),
            new,
        ]
        assert (new.s * new.d > new.r**2).all()
        assert_never_lower([problem.bound(state) for state in steps])
        q = new


def numerical_gradient(problem: Problem, q: Gaussians, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    arrays = {name: getattr(q, name) for name in ("mu", "eps", "s", "d", "r")}
    result = {}
    for name in names:
        gradient = np.zeros_like(arrays[name])
        for at in np.ndindex(gradient.shape):
            width = 1e-5 * (1.0 if name in ("mu", "eps") else min(arrays["s"][at], arrays["d"][at]))
            values = []
            for sign in (1, -1):
                moved = arrays[name].copy()
                moved[at] += sign * width
                values.append(problem.bound(Gaussians(**{**arrays, name: moved})))
            gradient[at] = (values[0] - values[1]) / (2 * width)
        result[name] = gradient
    return result


def decision(problem: Problem, joint: bool) -> Gaussians:
    q = problem.q
    for _ in range(5000):
        new = (joint_sweep if joint else factorised_sweep)(q, *problem.arguments)
        moved = max(np.abs(getattr(new, name) - getattr(q, name)).max() for name in ("mu", "eps", "s", "d"))
        q = new
        if moved < 1e-10:
            return q
    raise AssertionError("the sweeps do not settle")


@settings(laws, max_examples=4)
@given(seed=seeds, k=st.integers(2, 3), joint=st.booleans())
def test_where_the_sweeps_end_every_gradient_vanishes(seed: int, k: int, joint: bool) -> None:
    problem = Problem(seed, k, spread=1.5)
    q = decision(problem, joint)
    gradients = numerical_gradient(problem, q, ("mu", "eps", "s", "d", "r") if joint else ("mu", "eps", "s", "d"))
    for name, gradient in gradients.items():
        scale = 1.0 if name in ("mu", "eps") else np.minimum(q.s, q.d)
        np.testing.assert_allclose(gradient * scale, 0.0, atol=1e-4, err_msg=name)


@laws
@given(seed=seeds, k=st.integers(2, 4), flat=st.booleans())
def test_the_factorised_updates_are_the_equations_of_the_text(seed: int, k: int, flat: bool) -> None:
    problem = Problem(seed, k, flat=flat)
    found = problem.state(factorised_sweep(problem.q, *problem.arguments))
    expected = problem.state(problem.q)
    for one in problem.objects():
        expected = reference.bc3e_factorised_sweep(expected, *one)
    for name in ("mu", "eps"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-9)
    for name in ("s", "d"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9)
    np.testing.assert_array_equal(found.r, 0.0)


@laws
@given(seed=seeds, k=st.integers(2, 4), flat=st.booleans())
def test_the_joint_updates_satisfy_the_equations_of_the_text(seed: int, k: int, flat: bool) -> None:
    problem = Problem(seed, k, flat=flat)
    q, prior = problem.q, problem.prior
    new = joint_sweep(q, *problem.arguments)
    delta2 = float(prior.delta2[0, 0, 0])
    for i in range(len(problem.labels)):
        r1, r2 = problem.votes[:, i].sum(), problem.labels[i]
        old_kappa = sum(math.exp(q.mu[0, h, i] + q.s[0, h, i] / 2) for h in range(k))
        old_xi = sum(math.exp(q.eps[0, h, i] + q.d[0, h, i] / 2) for h in range(k))
        kappa = sum(math.exp(new.mu[0, h, i] + q.s[0, h, i] / 2) for h in range(k))
        xi = sum(math.exp(new.eps[0, h, i] + q.d[0, h, i] / 2) for h in range(k))
        for h in range(k):
            sigma2, m = float(prior.sigma2[0, h, 0]), float(prior.mu[0, h, 0])
            mu, eps, s, d, r = (float(a[0, h, i]) for a in (new.mu, new.eps, new.s, new.d, new.r))
            old_s, old_d = float(q.s[0, h, i]), float(q.d[0, h, i])
            # Stationarity of (mu, eps), kappa, xi and covariance held.
            terms = [problem.votes[h, i], (m - mu) / sigma2, (eps - mu) / delta2]
            terms.append(-r1 / old_kappa * math.exp(mu + old_s / 2))
            assert abs(sum(terms)) < 1e-9 * (1.0 + sum(map(abs, terms)))
            terms = [problem.sums[0, h, i], (mu - eps) / delta2, -r2 / old_xi * math.exp(eps + old_d / 2)]
            assert abs(sum(terms)) < 1e-9 * (1.0 + sum(map(abs, terms)))
            # (s, r) given the old d, then (d, r) given the new s.
            a, big = 1 / sigma2 + 1 / delta2, old_d / delta2**2
            v = (math.sqrt(1.0 + 4.0 * big * s) - 1.0) / (2.0 * big)
            grown = r1 / kappa * math.exp(mu + (v + big * v * v) / 2)
            assert 1 / v == pytest.approx(a + grown, rel=1e-8)
            w = r * delta2 / s
            assert d == pytest.approx(w + (w / delta2) ** 2 * s, rel=1e-9)
            grown = r2 / xi * math.exp(eps + (w + s / delta2**2 * w * w) / 2)
            assert 1 / w == pytest.approx(1 / delta2 + grown, rel=1e-9)


@laws
@given(seed=seeds, k=st.integers(2, 5), joint=st.booleans())
def test_an_object_gets_the_same_bits_alone_as_among_others(seed: int, k: int, joint: bool) -> None:
    problem = Problem(seed, k)
    sweep = joint_sweep if joint else factorised_sweep
    n = len(problem.labels)
    together = sweep(problem.q, *problem.arguments)
    i = seed % n
    one = slice(i, i + 1)
    q = Gaussians(*(a[:, :, one].copy() for a in (problem.q.mu, problem.q.eps, problem.q.s, problem.q.d, problem.q.r)))
    alone = sweep(q, problem.votes[:, one].copy(), problem.sums[:, :, one].copy(), problem.labels[one], problem.prior)
    for name in ("mu", "eps", "s", "d", "r"):
        np.testing.assert_array_equal(getattr(alone, name)[0, :, 0], getattr(together, name)[0, :, i])


@pytest.mark.parametrize("sweep", [joint_sweep, factorised_sweep])
@pytest.mark.parametrize("variance", [1e-6, 400.0])
def test_an_object_with_neither_votes_nor_labels_keeps_the_prior_as_its_posterior(
    sweep: object, variance: float
) -> None:
    shape = (1, 2, 1)
    mu = np.array([0.5, -0.5]).reshape(1, 2, 1)
    prior = Prior(mu, np.full((1, 2, 1), variance), np.full((1, 1, 1), variance))
    q = Gaussians(np.zeros(shape), np.zeros(shape), np.full(shape, 0.1), np.full(shape, 0.1), np.zeros(shape))
    zero = np.zeros((2, 1))
    for _ in range(200):
        q = sweep(q, zero, np.zeros(shape), np.zeros(1), prior)  # type: ignore[operator]
    np.testing.assert_allclose(q.mu, mu, atol=1e-6)
    np.testing.assert_allclose(q.eps, mu, atol=1e-6)
    if sweep is joint_sweep:
        np.testing.assert_allclose(q.s, variance, rtol=1e-6)
        np.testing.assert_allclose(q.r, variance, rtol=1e-6)
        np.testing.assert_allclose(q.d, 2 * variance, rtol=1e-6)
    else:
        np.testing.assert_allclose(q.s, variance / 2, rtol=1e-9)
        np.testing.assert_allclose(q.d, variance, rtol=1e-9)
