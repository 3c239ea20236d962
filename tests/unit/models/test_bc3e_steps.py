"""BC3E: starts and steps are those of MATH.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import reference
from support.bc3e_problems import arrays, laws, problem, seeds, start_of, state_of

from ce.labels import Column, LabelTable
from ce.models import BC3E
from ce.steps.bc3e import SWEEPS

#: Fits here end after a few iterations, converged or not: tests/unit/models/test_convergence.py has the warning.
pytestmark = pytest.mark.filterwarnings("ignore::ce.errors.ConvergenceWarning")


def test_the_votes_start_is_the_one_of_the_text() -> None:
    table = problem(3, 3, soft_votes=True)
    data = reference.bc3e_data(table, 3)
    model = BC3E(n_classes=3, max_iter=0).fit(table)
    logits = np.log(data.votes + 0.5)
    logits -= logits.mean(axis=1, keepdims=True)
    for name in ("mu", "eps"):
        np.testing.assert_allclose(model.posterior_[name][data.rows], logits, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(model.sigma2_, np.full(3, 4.0))
    assert model.delta2_ == 0.05
    for column, b in zip(table.clusterings, model.beta_, strict=True):
        np.testing.assert_allclose(b, np.full((3, len(column.categories)), 1 / len(column.categories)))


def test_a_given_start_is_where_the_fit_begins() -> None:
    table = problem(4, 2)
    start = start_of("given", table, 2, 9)
    model = BC3E(n_classes=2, start=start, max_iter=0).fit(table)
    known = reference.bc3e_data(table, 2).rows
    for name in ("mu", "eps"):
        np.testing.assert_array_equal(model.posterior_[name][known], start[name][known])


def diffusion(data: reference.BC3EData, k: int, tables: Sequence[Column], rounds: int) -> np.ndarray:
    """v_n = c_n / r1_n; {h_mj = mean of v over the objects with label j; v_n = mean over its columns of h}."""
    v = data.votes / data.votes.sum(axis=1, keepdims=True)
    for _ in range(rounds):
        h = [np.zeros((k, len(column.categories))) for column in tables]
        size = [np.zeros(len(column.categories)) for column in tables]
        for n, cells in enumerate(data.cells):
            for cell in cells:
                h[cell.m][:, cell.j] += v[n]
                size[cell.m][cell.j] += 1.0
        means = [a / np.maximum(b, 1.0) for a, b in zip(h, size, strict=True)]
        v = np.array([np.mean([means[c.m][:, c.j] for c in cells], axis=0) for cells in data.cells])
    return v


def test_the_diffused_start_is_the_one_of_the_text() -> None:
    _, clusterings, votes = arrays(n=40, k=2)
    table = LabelTable.from_arrays(
        np.hstack([clusterings, votes]), columns=[*"abcde", "v0", "v1", "v2"], classifiers=["v*"]
    )
    data = reference.bc3e_data(table, 2)
    v = diffusion(data, 2, table.clusterings, 100)
    expected = 2.0 * (v - v.mean(axis=0)) / np.sqrt(((v - v.mean(axis=0)) ** 2).mean())
    model = BC3E(n_classes=2, start="diffused", max_iter=0).fit(table)
    np.testing.assert_allclose(model.posterior_["mu"], expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(model.posterior_["eps"], expected, rtol=1e-6, atol=1e-9)


def test_clusterings_that_do_not_follow_the_classes_are_not_trusted_with_the_start() -> None:
    _, clusterings, votes = arrays(n=200, follow=False)
    diffused = BC3E(start="diffused").fit(clusterings, votes)
    plain = BC3E(start="votes").fit(clusterings, votes)
    np.testing.assert_array_equal(diffused.bound_path_, plain.bound_path_)
    np.testing.assert_array_equal(diffused.class_proba_, plain.class_proba_)


def successive(table: LabelTable, last: int, **parameters: Any) -> Iterator[tuple[int, BC3E, BC3E]]:
    """The fits after t and t + 1 iterations."""
    before = BC3E(max_iter=0, tol=0, **parameters).fit(table)
    for t in range(last):
        after = BC3E(max_iter=t + 1, tol=0, **parameters).fit(table)
        yield t, before, after
        before = after


@pytest.mark.promise("Every step of a model maximises the bound over its block.")
@pytest.mark.parametrize("posterior", ["joint", "factorised"])
@settings(laws, max_examples=4)
@given(seed=seeds, k=st.integers(2, 3), smoothing=st.sampled_from([0.0, 0.01, 1.0]))
def test_the_engines_steps_are_the_updates_of_the_text(posterior: str, seed: int, k: int, smoothing: float) -> None:
    table = problem(seed, k, largest=8, soft_votes=True, soft_labels=True)
    data = reference.bc3e_data(table, k)
    counts = reference.bc3e_labels(data)
    sweep = reference.bc3e_joint_sweep if posterior == "joint" else reference.bc3e_factorised_sweep
    parameters = {"n_classes": k, "posterior": posterior, "smoothing": smoothing}
    for t, earlier, later in successive(table, 4, **parameters):
        before, after = state_of(earlier, data), state_of(later, data)
        phi = reference.bc3e_phi(data, before)
        for found, expected in zip(
            after.beta, reference.bc3e_column_step(data, phi, before.beta, smoothing), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-14)
        if t == 0:  # the first object states are guesses: they teach the globals nothing
            np.testing.assert_array_equal(after.prior_mu, before.prior_mu)
            np.testing.assert_array_equal(after.sigma2, before.sigma2)
            assert after.delta2 == before.delta2
        else:
            mu = before.mu.mean(axis=0)
            np.testing.assert_allclose(after.prior_mu, mu, rtol=1e-9, atol=1e-12)
            sigma2 = (before.s + (before.mu - mu) ** 2).mean(axis=0)
            np.testing.assert_allclose(after.sigma2, np.maximum(sigma2, 1e-6), rtol=1e-8)
            delta2 = ((before.eps - before.mu) ** 2 + before.s + before.d - 2 * before.r).mean()
            assert after.delta2 == pytest.approx(max(delta2, 1e-6), rel=1e-8)
        sums = reference.bc3e_object_sums(data, phi, k)
        swept = replace(before, prior_mu=after.prior_mu, sigma2=after.sigma2, delta2=after.delta2)
        for n in range(len(data.rows)):
            for _ in range(SWEEPS):
                swept = sweep(swept, n, data.votes[n], sums[n], counts[n])
        for name in ("mu", "eps", "s", "d", "r"):
            np.testing.assert_allclose(getattr(after, name), getattr(swept, name), rtol=1e-6, atol=1e-9, err_msg=name)


def numerical_slopes(data: reference.BC3EData, state: reference.BC3EState, smoothing: float, name: str) -> np.ndarray:
    """Derivative of the bound in every entry of one array of q; phi, kappa and xi follow."""
    values = getattr(state, name)
    slopes = np.zeros_like(values)
    for at in np.ndindex(values.shape):
        width = 1e-5 * (1.0 if name in ("mu", "eps") else min(state.s[at], state.d[at]))
        ends = []
        for sign in (1, -1):
            moved = values.copy()
            moved[at] += sign * width
            ends.append(reference.bc3e_bound(data, replace(state, **{name: moved}), smoothing))
        slopes[at] = (ends[0] - ends[1]) / (2 * width)
    return slopes


@pytest.mark.promise("Every step of a model maximises the bound over its block.")
@pytest.mark.parametrize("posterior", ["joint", "factorised"])
@pytest.mark.parametrize("seed", [2])
def test_at_convergence_every_numerical_gradient_vanishes(posterior: str, seed: int) -> None:
    table = problem(seed, 2, largest=6, soft_votes=True)
    data = reference.bc3e_data(table, 2)
    model = BC3E(
        n_classes=2,
        posterior=posterior,  # type: ignore[arg-type]
        sigma2=1.0,
        delta2=0.5,
        smoothing=1.0,
        max_iter=120,
        tol=0,
    ).fit(table)
    state = state_of(model, data)
    for name in ("mu", "eps", "s", "d", *(("r",) if posterior == "joint" else ())):
        scale = 1.0 if name in ("mu", "eps") else np.minimum(state.s, state.d)
        np.testing.assert_allclose(numerical_slopes(data, state, 1.0, name) * scale, 0.0, atol=1e-3, err_msg=name)
    # Columns and mean: fixed points of their steps. kappa, xi and phi: their own slopes vanish.
    phi = reference.bc3e_phi(data, state)
    for found, expected in zip(state.beta, reference.bc3e_column_step(data, phi, state.beta, 1.0), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(state.prior_mu, state.mu.mean(axis=0), atol=1e-3)
    kappa, xi = reference.bc3e_taylor_points(state)
    best = reference.bc3e_bound(data, state, 1.0)
    for step in (0.99, 1.01):
        assert reference.bc3e_bound(data, state, 1.0, points=(kappa * step, xi)) <= best + 1e-12 * abs(best)
        assert reference.bc3e_bound(data, state, 1.0, points=(kappa, xi * step)) <= best + 1e-12 * abs(best)
    for n, rows in enumerate(phi):
        for at in range(len(rows)):
            moved = [list(r) for r in phi]
            tilted = moved[n][at] * np.array([1.01, 0.99])
            moved[n][at] = tilted / tilted.sum()
            assert reference.bc3e_bound(data, state, 1.0, phi=moved) <= best + 1e-12 * abs(best)
