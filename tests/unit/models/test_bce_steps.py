"""BCE: every step maximises the bound over its block, in the order of the schedule; a trial may be retracted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import reference
from support.bce_problems import (
    absurd_trials,
    bound_of_fit,
    clear_ensemble,
    drawn_tables,
    laws,
    problem,
    seeds,
    start_of,
)
from support.problems import problem as noisy_problem

from ce.labels import Column, LabelTable
from ce.metrics import ari
from ce.models import BCE
from ce.steps import dirichlet
from ce.steps.bce import BCESteps
from ce.steps.dirichlet import CEILING, FLOOR
from ce.steps.model import GlobalDecision

#: Fits here end after a few iterations, converged or not: tests/unit/models/test_convergence.py has the warning.
pytestmark = pytest.mark.filterwarnings("ignore::ce.errors.ConvergenceWarning")


def assert_alpha_is_best(alpha: np.ndarray, mean_log: np.ndarray) -> None:
    slope = reference.bce_alpha_slope(alpha, mean_log)
    for a, gradient in zip(alpha, slope, strict=True):
        assert FLOOR <= a <= CEILING
        if a > FLOOR:
            assert gradient > -2e-5
        if a < CEILING:
            assert gradient < 2e-5


def labelled_rows(table: LabelTable) -> np.ndarray:
    return table.labelled


# (c) Every step maximises the bound over its block.


def small_problem(seed: int) -> LabelTable:
    return problem(seed, soft=True, largest=8)


def perturbed(values: np.ndarray, at: tuple[int, ...], by: float) -> np.ndarray:
    moved = values.copy()
    moved[at] += by
    return moved


def slope_of(function: Callable[[float], float], width: float) -> float:
    return (function(width) - function(-width)) / (2 * width)


@pytest.mark.promise("Every step of a model maximises the bound over its block.")
@settings(laws, max_examples=8)
@given(seed=seeds, k=st.integers(2, 3), smoothing=st.sampled_from([0.01, 1.0]))
def test_numerical_gradients_vanish_in_each_block_after_its_update(seed: int, k: int, smoothing: float) -> None:
    table = small_problem(seed)
    cells = reference.cells_of(table)
    rows = labelled_rows(table)
    model = BCE(k, init="dirichlet", n_init=1, max_iter=15, tol=0, smoothing=smoothing, random_state=seed)
    model.fit(table)
    gamma, alpha, beta = model.gamma_, model.alpha_, model.beta_
    phi = reference.bce_phi(cells, gamma, beta)
    largest = 1.0 + abs(model.lower_bound_)

    # Cells: phi in the direction of one cluster, renormalised.
    for at in range(0, len(cells), max(len(cells) // 5, 1)):
        for h in range(k):

            def cell_bound(step: float, at: int = at, h: int = h) -> float:
                moved = list(phi)
                weights = moved[at] * np.exp(step * (np.arange(k) == h))
                moved[at] = weights / weights.sum()
                return reference.bce_bound(cells, moved, gamma, alpha, beta, smoothing)

            assert abs(slope_of(cell_bound, 1e-4)) < 1e-6 * largest

    # Columns: each row of beta along the simplex.
    beta = reference.bce_column_step(cells, phi, beta, smoothing)
    for j, b in enumerate(beta):
        for h, r in itertools.product(range(k), range(b.shape[1])):

            def column_bound(step: float, j: int = j, h: int = h, r: int = r) -> float:
                moved = [t.copy() for t in beta]
                row = moved[j][h] * np.exp(step * (np.arange(len(moved[j][h])) == r))
                moved[j][h] = row / row.sum()
                return reference.bce_bound(cells, phi, gamma, alpha, moved, smoothing)

            assert abs(slope_of(column_bound, 1e-4)) < 1e-6 * largest

    # Objects.
    gamma = alpha + reference.bce_object_sums(cells, phi, gamma.shape)
    for at in itertools.product(range(len(gamma)), range(k)):

        def object_bound(step: float, at: tuple[int, ...] = at) -> float:
            return reference.bce_bound(cells, phi, perturbed(gamma, at, step * gamma[at]), alpha, beta, smoothing)

        assert abs(slope_of(object_bound, 1e-4)) < 1e-6 * largest

    # Global: alpha given the objects, of which those without a label do not count.
    mean_log = reference.expected_logs(gamma)[rows].mean(axis=0)
    alpha = dirichlet.maximise(alpha[None], mean_log[None])[0]
    for h in range(k):

        def alpha_bound(step: float, h: int = h) -> float:
            moved = perturbed(alpha, (h,), step * alpha[h])
            return (
                reference.bce_bound(cells, phi, gamma[rows], moved, beta, smoothing)
                if rows.all()
                else reference.bce_bound(*without_unlabelled(cells, rows), phi, gamma[rows], moved, beta, smoothing)
            )

        slope = slope_of(alpha_bound, 1e-4)
        if alpha[h] > FLOOR * 1.001:
            assert slope > -1e-4 * largest
        if alpha[h] < CEILING * 0.999:
            assert slope < 1e-4 * largest


def without_unlabelled(cells: Sequence[reference.Cell], rows: np.ndarray) -> tuple[list[reference.Cell]]:
    place = np.cumsum(rows) - 1
    return ([reference.Cell(int(place[c.i]), c.j, c.r, c.p) for c in cells],)


Fit = Callable[[int], BCE]


def successive(fit: Fit, last: int) -> Iterator[tuple[int, BCE, BCE]]:
    """The states after t and t + 1 iterations."""
    before = fit(0)
    for t in range(last):
        after = fit(t + 1)
        assert len(after.bound_path_) == t + 2
        yield t, before, after
        before = after


@pytest.mark.promise("Every step of a model maximises the bound over its block.")
@settings(laws, max_examples=4)
@given(
    seed=seeds,
    k=st.integers(2, 4),
    smoothing=st.sampled_from([0.0, 0.01, 1.0]),
    schedule=st.sampled_from(["joint", "newton"]),
    loops=st.sampled_from([1, 3]),
)
def test_the_engines_steps_are_the_maximisers_in_the_order_of_the_schedule(
    seed: int, k: int, smoothing: float, schedule: str, loops: int
) -> None:
    table = problem(seed, soft=True, largest=9)
    cells, rows = reference.cells_of(table), labelled_rows(table)
    hold = 2

    def fit(iterations: int) -> BCE:
        return BCE(
            k,
            n_init=1,
            init="anneal",
            anneal_iter=hold,
            schedule=schedule,  # type: ignore[arg-type]
            smoothing=smoothing,
            local_loops=loops,
            max_iter=iterations,
            tol=0,
            random_state=seed,
        ).fit(table)

    for t, before, after in successive(fit, hold + 13):
        phi = reference.bce_phi(cells, before.gamma_, before.beta_)
        sums = reference.bce_object_sums(cells, phi, before.gamma_.shape)
        # object: g = alpha + a
        np.testing.assert_allclose(after.gamma_, after.alpha_ + sums, rtol=1e-9)
        # column, then the local loops under the new message
        beta = reference.bce_column_step(cells, phi, before.beta_, smoothing)
        for _ in range(loops - 1):
            beta = reference.bce_column_step(cells, reference.bce_phi(cells, after.gamma_, beta), beta, smoothing)
        for found, expected in zip(after.beta_, beta, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-15)
        # global
        iteration = t + 1
        if iteration <= hold:
            np.testing.assert_array_equal(after.alpha_, np.full(k, 3.0))
        elif schedule == "newton" or iteration <= hold + 3:
            assert_alpha_is_best(after.alpha_, reference.expected_logs(before.gamma_)[rows].mean(axis=0))
        else:
            trial, fallback = reference.bce_joint_newton(before.alpha_, sums[rows])
            expected = trial if np.allclose(after.alpha_, trial, rtol=1e-5) else fallback  # a trial taken back
            np.testing.assert_allclose(after.alpha_, expected, rtol=1e-5)


def test_a_given_or_other_start_learns_alpha_by_newton_ten_times_and_then_jointly() -> None:
    for init in ("dirichlet", "given"):
        table = problem(11, largest=25, missing=0.2)
        cells, rows = reference.cells_of(table), labelled_rows(table)
        kinds = {}

        def fit(iterations: int, init: str = init, table: LabelTable = table) -> BCE:
            start = start_of(init, table, 3, 4)
            return BCE(3, n_init=1, init=start, max_iter=iterations, tol=0, random_state=4).fit(table)

        for t, before, after in successive(fit, 14):
            sums = reference.bce_object_sums(
                cells, reference.bce_phi(cells, before.gamma_, before.beta_), before.gamma_.shape
            )
            slope = reference.bce_alpha_slope(after.alpha_, reference.expected_logs(before.gamma_)[rows].mean(axis=0))
            jointly = any(
                np.allclose(after.alpha_, a, rtol=1e-6) for a in reference.bce_joint_newton(before.alpha_, sums[rows])
            )
            kinds[t + 1] = "joint" if jointly else "newton" if np.abs(slope).max() < 1e-4 else "other"
        assert [kinds[t] for t in range(1, 11)] == ["newton"] * 10
        assert {kinds[t] for t in kinds if t > 10} == {"joint"}


def test_gamma_starts_at_alpha_plus_the_labels_spread_evenly() -> None:
    table = problem(5, missing=0.4)
    labels = np.zeros(table.n_objects)
    for column in table.clusterings:
        labels += column.observed
    model = BCE(4, n_init=1, init="dirichlet", alpha=0.7, max_iter=0, random_state=3).fit(table)
    np.testing.assert_allclose(model.gamma_, 0.7 + np.tile(labels[:, None] / 4, 4), rtol=1e-14)
    np.testing.assert_array_equal(model.alpha_, np.full(4, 0.7))
    annealed = BCE(4, n_init=1, alpha=0.7, anneal_alpha=2.5, max_iter=0, random_state=3).fit(table)
    np.testing.assert_array_equal(annealed.alpha_, np.full(4, 2.5))
    for drawn, found in zip(reference.start_tables(table, 3, 1, 4), model.beta_, strict=True):
        np.testing.assert_array_equal(found, drawn[0])
        np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)


def test_alpha_keeps_its_value_when_it_is_not_learnt() -> None:
    _, labels = clear_ensemble()
    for init in ("anneal", "dirichlet", "seeds++", "base"):
        model = BCE(3, init=init, alpha=0.4, learn_alpha=False, n_init=2, max_iter=30, random_state=0).fit(labels)  # type: ignore[arg-type]
        np.testing.assert_array_equal(model.alpha_, np.full(3, 0.4))
    uneven = np.array([0.2, 0.5, 2.0])
    model = BCE(3, alpha=uneven, learn_alpha=False, n_init=2, max_iter=30, random_state=0).fit(labels)
    np.testing.assert_array_equal(model.alpha_, uneven)


@laws
@given(seed=seeds, k=st.integers(2, 4))
def test_with_no_smoothing_a_row_of_a_table_that_nobody_uses_keeps_its_old_value(seed: int, k: int) -> None:
    table = problem(seed, largest=6, unused=False)
    # Cluster 0 produces nothing but a category that no object has: in the first column it gets no count at all.
    first = table.columns[0]
    wider = Column(first.name, "clustering", (*first.categories, "zz"), first.codes, None)  # type: ignore[arg-type]
    table = LabelTable(table.ids, (wider, *table.columns[1:]))
    beta = drawn_tables(np.random.default_rng(seed), table, k)
    beta[0][0] = np.eye(len(wider.categories))[-1]
    model = BCE(k, init={"beta": beta, "alpha": 0.5}, smoothing=0.0, max_iter=3, tol=0).fit(table)
    np.testing.assert_array_equal(model.beta_[0][0], beta[0][0])
    reference.assert_never_decreases(model.bound_path_)


# (d) The joint step's trial may overshoot; it is then taken back.


class Retries:
    """Counts the starts that were told to go back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        original = BCESteps.global_step

        def global_step(steps: BCESteps, *args: Any) -> GlobalDecision:
            decision = original(steps, *args)
            self.count += int(decision.retry.sum())
            return decision

        monkeypatch.setattr(BCESteps, "global_step", global_step)


def test_real_problems_have_trials_that_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    retries = Retries(monkeypatch)
    table = noisy_problem(0, k=2, clusterings=3, missing=0.0, n=30).table
    for seed in range(3):
        model = BCE(2, n_init=2, init="dirichlet", max_iter=100, tol=1e-9, random_state=seed).fit(table)
        reference.assert_never_decreases(model.bound_path_)
        assert model.lower_bound_ == pytest.approx(bound_of_fit(model, table), rel=1e-9)
    assert retries.count > 0


@pytest.mark.parametrize("absurd", [CEILING, FLOOR])
@pytest.mark.parametrize("local_loops", [1, 3])
@pytest.mark.parametrize("n_init", [1, 4])
def test_a_rejected_trial_is_taken_back_and_the_fit_ends_where_it_would_have(
    absurd: float, local_loops: int, n_init: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(8)
    truth, labels = clear_ensemble(n=50)
    labels = np.where(rng.random(labels.shape) < 0.2, rng.integers(0, 3, labels.shape), labels)
    table = LabelTable.from_arrays(labels)

    def fit() -> BCE:
        # seeds++ ends in the good optimum from every seed; at the ceiling the absurd would be right.
        return BCE(
            3, init="seeds++", n_init=n_init, local_loops=local_loops, max_iter=250, tol=1e-10, random_state=2
        ).fit(table)

    undisturbed = fit()
    retries = Retries(monkeypatch)
    absurd_trials(monkeypatch, absurd)
    model = fit()
    reference.assert_never_decreases(model.bound_path_)
    assert model.lower_bound_ == pytest.approx(bound_of_fit(model, table), rel=1e-9)
    if absurd == CEILING:
        assert retries.count > 10
    assert model.lower_bound_ == pytest.approx(undisturbed.lower_bound_, rel=1e-3)
    assert ari(model.labels_, undisturbed.labels_) == pytest.approx(1.0)
    assert ari(model.labels_, truth) > 0.8


def test_after_a_rejected_trial_the_objects_follow_from_the_accepted_sums_and_the_fallback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, labels = clear_ensemble(n=40)
    table = LabelTable.from_arrays(labels)
    cells = reference.cells_of(table)

    def fit(iterations: int) -> BCE:
        return BCE(3, n_init=1, init="seeds++", max_iter=iterations, tol=0, random_state=1).fit(table)

    absurd_trials(monkeypatch, CEILING)
    # Iteration 11 is the first joint one: its trial is refused, and its result is the fallback's.
    accepted, after = fit(10), fit(11)
    assert len(accepted.bound_path_) == 11
    assert len(after.bound_path_) == 12
    phi = reference.bce_phi(cells, accepted.gamma_, accepted.beta_)
    sums = reference.bce_object_sums(cells, phi, accepted.gamma_.shape)
    _, fixed_point = reference.bce_joint_newton(accepted.alpha_, sums)
    np.testing.assert_allclose(after.alpha_, fixed_point, rtol=1e-9)
    np.testing.assert_allclose(after.gamma_, fixed_point + sums, rtol=1e-9)
    for found, expected in zip(after.beta_, reference.bce_column_step(cells, phi, accepted.beta_, 0.01), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)
