"""BCE against MATH.md: the bound, each block's maximiser, the schedule of alpha, and what the estimator promises.

The formulas below are written out from MATH.md, cell by cell; nothing in them calls the library.
"""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from support import reference
from support.problems import problem as noisy_problem

from ce.errors import InputError, LabelError
from ce.labels import Column, LabelTable
from ce.metrics import ari
from ce.models import BCE, Mixture
from ce.protocol.engine import cell_passes as holdings
from ce.ring import Reals
from ce.steps import dirichlet
from ce.steps.bce import BCESteps
from ce.steps.dirichlet import CEILING, FLOOR
from ce.steps.model import GlobalDecision

laws = settings(deadline=None, max_examples=6, derandomize=True)

seeds = st.integers(0, 2**32 - 1)


# Problems.


def one_soft(rng: np.random.Generator, codes: np.ndarray, categories: int) -> np.ndarray:
    """Probabilities around hard labels; NaN where the label is missing."""
    soft = rng.dirichlet(np.full(categories, 0.4), len(codes))
    soft = 0.5 * soft + 0.5 * np.eye(categories)[np.maximum(codes, 0)]
    soft[codes < 0] = np.nan
    return soft


def problem(
    seed: int, *, soft: bool = False, largest: int = 30, missing: float | None = None, unused: bool = True
) -> LabelTable:
    """A planted partition seen through 1 to 8 noisy columns, with 0 to 60 % of the labels missing.

    Column names are not in alphabetical order, some rows are equal, some categories are never used.
    """
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(2, largest)), int(rng.integers(1, 9))
    truth = rng.integers(0, int(rng.integers(2, 5)), n)
    noise, gaps = rng.uniform(0.0, 0.8), rng.uniform(0.0, 0.6) if missing is None else missing
    columns = []
    for j in range(m):
        categories = int(rng.integers(2, 6))
        codes = rng.integers(0, categories, 5)[truth]
        codes = np.where(rng.random(n) < noise, rng.integers(0, categories, n), codes)
        codes = np.where(rng.random(n) < gaps, -1, codes).astype(np.int32)
        if j == 0:
            codes[0] = max(codes[0], 0)
        if not unused:
            present = np.unique(codes[codes >= 0])
            codes = np.where(codes >= 0, np.searchsorted(present, codes), -1).astype(np.int32)
            categories = max(len(present), 1)
        names = tuple(range(10, 10 + categories)) if j % 2 else tuple("uvwxyz"[:categories])
        name = f"{'zyxwvuts'[j]}{j}"
        if soft and rng.random() < 0.6:
            columns.append(Column(name, "clustering", names, None, one_soft(rng, codes, categories)))
        else:
            columns.append(Column(name, "clustering", names, codes, None))
    return LabelTable(np.array([f"o{i}" for i in range(n)]), tuple(columns))


def clear_ensemble(n: int = 60, m: int = 6, k: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A partition and m nearly perfect copies of it, each with its own names."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.arange(n) % k)
    columns = []
    for _ in range(m):
        copied = rng.permutation(k)[truth]
        wrong = rng.random(n) < 0.05
        columns.append(np.where(wrong, rng.integers(0, k, n), copied))
    return truth, np.stack(columns, axis=1)


def drawn_tables(rng: np.random.Generator, table: LabelTable, k: int) -> list[np.ndarray]:
    return [rng.dirichlet(np.ones(len(column.categories)), k) for column in table.clusterings]


# MATH.md, cell by cell.


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


def bound_of_fit(model: BCE, table: LabelTable) -> float:
    cells = reference.cells_of(table)
    phi = reference.bce_phi(cells, model.gamma_, model.beta_)
    return reference.bce_bound(cells, phi, model.gamma_, model.alpha_, model.beta_, model.smoothing)


# (a) The bound never decreases.

INITS = ("anneal", "dirichlet", "seeds++", "base", "given", "given with gamma")
options = st.fixed_dictionaries(
    {
        "smoothing": st.sampled_from([0.0, 0.01, 1.0]),
        "local_loops": st.sampled_from([1, 5]),
        "learn_alpha": st.sampled_from([True, True, False]),
        "alpha": st.sampled_from([0.05, 1.0, 20.0]),
    }
)


def start_of(init: str, table: LabelTable, k: int, seed: int) -> Any:
    if not init.startswith("given"):
        return init
    rng = np.random.default_rng(seed)
    start: dict[str, Any] = {"beta": drawn_tables(rng, table, k), "alpha": rng.uniform(0.02, 5.0, k)}
    if "gamma" in init:
        start["gamma"] = rng.uniform(0.1, 5.0, (table.n_objects, k))
    return start


@pytest.mark.parametrize("schedule", ["joint", "newton"])
@pytest.mark.parametrize("init", INITS)
@settings(laws, max_examples=4)
@given(seed=seeds, k=st.integers(2, 6), extra=options)
def test_the_bound_never_decreases_and_is_the_one_of_the_text(
    init: str, schedule: str, seed: int, k: int, extra: dict[str, Any]
) -> None:
    table = problem(seed, soft=init not in ("seeds++", "base"), largest=20)
    model = BCE(
        k,
        init=start_of(init, table, k, seed),
        schedule=schedule,  # type: ignore[arg-type]
        n_init=2,
        anneal_iter=4,
        max_iter=25,
        tol=0,
        random_state=seed,
        **extra,
    ).fit(table)
    reference.assert_never_decreases(model.bound_path_)
    assert model.bound_path_[-1] == model.lower_bound_
    assert model.lower_bound_ == pytest.approx(bound_of_fit(model, table), rel=1e-9)


@laws
@given(seed=seeds, k=st.integers(2, 6), iterations=st.integers(0, 30))
def test_the_bound_of_every_iterate_is_the_one_of_the_text(seed: int, k: int, iterations: int) -> None:
    table = problem(seed, soft=True)
    model = BCE(k, n_init=1, init="anneal", anneal_iter=3, max_iter=iterations, tol=0, random_state=seed).fit(table)
    assert model.lower_bound_ == pytest.approx(bound_of_fit(model, table), rel=1e-9)


def assert_fits(model: BCE, labels: Any) -> None:
    """A value at the edge of what can be computed breaks nothing."""
    model.fit(labels)
    assert np.isfinite(model.lower_bound_)
    assert np.isfinite(model.memberships_).all()
    # At alpha = 1e6 the bound is a difference of numbers near 1e7 per object.
    for before, after in itertools.pairwise(model.bound_path_):
        assert after >= before - 1e-7 * abs(before)


@pytest.mark.parametrize("alpha", [1e-4, 1e5, 1e6])
@pytest.mark.parametrize("schedule", ["joint", "newton"])
def test_the_bound_never_decreases_from_an_alpha_outside_the_box_of_the_learning(alpha: float, schedule: str) -> None:
    model = BCE(3, init="dirichlet", n_init=1, alpha=alpha, max_iter=40, tol=0, random_state=0)
    assert_fits(model.set_params(schedule=schedule), problem(0))


def test_a_given_beta_whose_rows_are_no_distributions_is_refused() -> None:
    table = problem(3, missing=0.0)
    beta = [np.ones((3, len(column.categories))) for column in table.clusterings]
    with pytest.raises(InputError, match=r"rows of beta of column .* are distributions"):
        BCE(3, init={"beta": beta}, max_iter=20, tol=0).fit(table)


@pytest.mark.parametrize("smoothing", [0.0, 0.01])
def test_a_given_beta_may_have_zeros(smoothing: float) -> None:
    _, labels = clear_ensemble()
    beta = [np.eye(3) for _ in range(labels.shape[1])]
    assert_fits(BCE(3, init={"beta": beta}, max_iter=20, tol=0, smoothing=smoothing), labels)


def start_with_gamma(labels: np.ndarray, scale: float) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    beta = [rng.dirichlet(np.ones(3), 3) for _ in range(labels.shape[1])]
    return {"beta": beta, "gamma": scale * rng.uniform(0.5, 2.0, (len(labels), 3))}


@pytest.mark.parametrize("scale", [0.02, 1.0, 5e5])
def test_a_given_gamma_may_be_small_or_large(scale: float) -> None:
    _, labels = clear_ensemble()
    assert_fits(BCE(3, init=start_with_gamma(labels, scale), max_iter=20, tol=0), labels)


@pytest.mark.parametrize("scale", [1e-5, 1e7])
def test_a_given_gamma_beyond_its_limits_is_refused(scale: float) -> None:
    _, labels = clear_ensemble()
    with pytest.raises(InputError, match=r"gamma is .*, each between 0\.01 and 1e6"):
        BCE(3, init=start_with_gamma(labels, scale), max_iter=20, tol=0).fit(labels)


@pytest.mark.parametrize("smoothing", [100.0, 1e4])
def test_smoothing_may_be_large(smoothing: float) -> None:
    _, labels = clear_ensemble()
    assert_fits(BCE(3, n_init=1, smoothing=smoothing, max_iter=20, tol=0, random_state=0), labels)


# (b) Missing and soft labels in the bound.


def test_an_object_without_a_label_adds_nothing_to_the_bound() -> None:
    _, labels = clear_ensemble()
    longer = np.vstack([labels, np.full((7, labels.shape[1]), -1)])
    short, long = (BCE(3, n_init=2, max_iter=80, random_state=1).fit(x) for x in (labels, longer))
    assert short.lower_bound_ == pytest.approx(long.lower_bound_, rel=1e-12)
    np.testing.assert_allclose(long.memberships_[:60], short.memberships_, rtol=1e-9)


@laws
@given(seed=seeds, k=st.integers(2, 4))
def test_a_soft_column_of_certainties_is_the_hard_column(seed: int, k: int) -> None:
    hard = problem(seed)
    certain = []
    for column in hard.clusterings:
        assert column.codes is not None
        p = np.eye(len(column.categories))[np.maximum(column.codes, 0)]
        p[column.codes < 0] = np.nan
        certain.append(Column(column.name, "clustering", column.categories, None, p))
    soft = LabelTable(hard.ids, tuple(certain))
    one, other = (BCE(k, n_init=1, max_iter=25, tol=0, random_state=seed).fit(t) for t in (hard, soft))
    assert one.lower_bound_ == pytest.approx(other.lower_bound_, rel=1e-12)
    np.testing.assert_allclose(one.memberships_, other.memberships_, rtol=1e-9, atol=1e-12)


# (c) Every step maximises the bound over its block.


def small_problem(seed: int) -> LabelTable:
    return problem(seed, soft=True, largest=8)


def perturbed(values: np.ndarray, at: tuple[int, ...], by: float) -> np.ndarray:
    moved = values.copy()
    moved[at] += by
    return moved


def slope_of(function: Callable[[float], float], width: float) -> float:
    return (function(width) - function(-width)) / (2 * width)


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
        elif schedule == "newton" or iteration <= hold + 10:
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


def absurd_trials(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    original = dirichlet.joint_step

    def joint_step(alpha: Reals, *sums: Reals) -> tuple[Reals, Reals]:
        _, fallback = original(alpha, *sums)
        return np.full_like(fallback, value), fallback

    monkeypatch.setattr(dirichlet, "joint_step", joint_step)


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


# (e) Same bits, and what renaming and reordering may change.


def assert_same_bits(one: BCE, other: BCE, rows: Any = slice(None)) -> None:
    np.testing.assert_array_equal(one.bound_path_, other.bound_path_)
    np.testing.assert_array_equal(one.alpha_, other.alpha_)
    np.testing.assert_array_equal(one.gamma_[rows], other.gamma_)
    np.testing.assert_array_equal(one.memberships_[rows], other.memberships_)
    np.testing.assert_array_equal(one.labels_[rows], other.labels_)
    assert one.n_iter_ == other.n_iter_
    assert one.converged_ == other.converged_


def quick(k: int, seed: int, **extra: Any) -> BCE:
    return BCE(k, **{"n_init": 3, "anneal_iter": 5, "max_iter": 25, "random_state": seed, **extra})


@pytest.mark.parametrize("init", ["anneal", "dirichlet", "seeds++", "base"])
def test_equal_seeds_give_equal_bits_and_other_seeds_do_not(init: str) -> None:
    _, labels = clear_ensemble()
    labels = np.where(np.random.default_rng(2).random(labels.shape) < 0.3, -1, labels)
    one, other = (quick(3, 7, init=init).fit(labels) for _ in range(2))
    assert_same_bits(one, other)
    for left, right in zip(one.beta_, other.beta_, strict=True):
        np.testing.assert_array_equal(left, right)
    paths = {tuple(quick(3, seed, init=init, n_init=1).fit(labels).bound_path_) for seed in range(5)}
    assert len(paths) > 1


def test_a_generator_as_random_state_is_reproducible() -> None:
    _, labels = clear_ensemble()
    for make in (np.random.default_rng, np.random.RandomState):
        one, other = (quick(3, 0, random_state=make(5)).fit(labels) for _ in range(2))
        assert_same_bits(one, other)


def test_neither_threads_nor_tiles_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.random.default_rng(1).integers(-1, 4, (400, 5))
    one = quick(3, 0, max_iter=20).fit(labels)
    monkeypatch.setattr(holdings, "_TILE_ENTRIES", 1)  # the narrowest tiles there are
    for threads in (1, 2, 3):
        assert_same_bits(one, quick(3, 0, n_threads=threads, max_iter=20).fit(labels))


@laws
@given(seed=seeds, k=st.integers(2, 4))
def test_rows_in_another_order_get_the_same_bits(seed: int, k: int) -> None:
    table = problem(seed, soft=True)
    order = np.random.default_rng(seed).permutation(table.n_objects)
    assert_same_bits(quick(k, seed).fit(table), quick(k, seed).fit(table.select(order)), order)


@laws
@given(seed=seeds, k=st.integers(2, 4))
def test_columns_in_another_order_get_the_same_bits(seed: int, k: int) -> None:
    table = problem(seed, soft=True)
    names = [column.name for column in table.columns]
    order = np.random.default_rng(seed).permutation(len(names))
    one, other = quick(k, seed).fit(table), quick(k, seed).fit(table.select(columns=[names[j] for j in order]))
    assert_same_bits(one, other)
    for at, j in enumerate(order):
        np.testing.assert_array_equal(other.beta_[at], one.beta_[j])
        np.testing.assert_array_equal(other.categories_[at], one.categories_[j])


@laws
@given(seed=seeds, k=st.integers(2, 4))
def test_equal_rows_get_equal_bits_and_counting_them_once_changes_nothing(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    table = problem(seed, soft=True, largest=12)
    repeats = rng.integers(1, 5, table.n_objects)
    rows = np.repeat(np.arange(table.n_objects), repeats)
    columns = tuple(column.take(rows) for column in table.columns)
    repeated = LabelTable(np.arange(len(rows)).astype(str), columns)
    merged = quick(k, seed).fit(repeated)
    with pytest.MonkeyPatch.context() as patch:

        def apart(parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            n = len(parts[0])
            return np.arange(n), np.arange(n), np.ones(n, dtype=np.int64)

        patch.setattr(holdings, "equal_rows", apart)
        separate = quick(k, seed).fit(repeated)
    assert_same_bits(merged, separate)
    for i in range(table.n_objects):
        copies = merged.gamma_[rows == i]
        np.testing.assert_array_equal(copies, np.tile(copies[0], (len(copies), 1)))


def noisy_ensemble(seed: int) -> LabelTable:
    """An ensemble with structure: alpha stays moderate, as it does in use, and no step is ill-conditioned."""
    rng = np.random.default_rng(seed)
    _, labels = clear_ensemble(n=30, seed=seed % 1000)
    labels = np.where(rng.random(labels.shape) < 0.15, rng.integers(0, 3, labels.shape), labels)
    return LabelTable.from_arrays(np.where(rng.random(labels.shape) < 0.2, -1, labels))


def tables_around_rows(rng: np.random.Generator, table: LabelTable, k: int) -> list[np.ndarray]:
    """Starting tables around the labels of k objects."""
    rows = rng.choice(table.n_objects, k, replace=False)
    tables = []
    for column in table.clusterings:
        assert column.codes is not None
        width = len(column.categories)
        sharp = np.eye(width)[np.maximum(column.codes[rows], 0)]
        tables.append(0.6 * sharp + 0.4 * rng.dirichlet(np.ones(width), k))
    return tables


LEARNING = [{"learn_alpha": False}, {"schedule": "newton"}, {"schedule": "joint"}]


@pytest.mark.parametrize("learning", LEARNING, ids=["fixed", "newton", "joint"])
@settings(laws, max_examples=3)
@given(seed=seeds, k=st.integers(2, 4))
def test_renaming_clusters_of_a_column_with_the_start_renamed_gives_the_same_partition(
    learning: dict[str, Any], seed: int, k: int
) -> None:
    rng = np.random.default_rng(seed)
    table = noisy_ensemble(seed)
    beta = tables_around_rows(rng, table, k)
    renamed, renamed_beta = [], []
    for column, b in zip(table.clusterings, beta, strict=True):
        assert column.codes is not None
        names = rng.permutation(len(column.categories))
        codes = np.where(column.codes >= 0, names[column.codes], -1).astype(np.int32)
        renamed.append(Column(column.name, "clustering", column.categories, codes, None))
        moved = np.empty_like(b)
        moved[:, names] = b
        renamed_beta.append(moved)
    other_table = LabelTable(table.ids, tuple(renamed))
    one = BCE(k, init={"beta": beta}, max_iter=20, tol=0, **learning).fit(table)
    other = BCE(k, init={"beta": renamed_beta}, max_iter=20, tol=0, **learning).fit(other_table)
    np.testing.assert_allclose(one.bound_path_, other.bound_path_, rtol=1e-9)
    np.testing.assert_array_equal(one.labels_, other.labels_)


@pytest.mark.parametrize("learning", LEARNING, ids=["fixed", "newton", "joint"])
@settings(laws, max_examples=3)
@given(seed=seeds, k=st.integers(2, 4))
def test_permuting_the_clusters_of_the_start_permutes_the_result(learning: dict[str, Any], seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    table = noisy_ensemble(seed)
    beta, alpha = tables_around_rows(rng, table, k), rng.uniform(0.1, 3.0, k)
    order = rng.permutation(k)
    permuted = {"beta": [b[order] for b in beta], "alpha": alpha[order]}
    one = BCE(k, init={"beta": beta, "alpha": alpha}, max_iter=20, tol=0, **learning).fit(table)
    other = BCE(k, init=permuted, max_iter=20, tol=0, **learning).fit(table)
    np.testing.assert_allclose(one.bound_path_, other.bound_path_, rtol=1e-9)
    np.testing.assert_allclose(one.memberships_[:, order], other.memberships_, atol=1e-7)


@pytest.mark.parametrize("init", ["anneal", "seeds++", "base"])
def test_a_clear_ensemble_gives_its_partition_whatever_its_clusters_are_called(init: str) -> None:
    truth, labels = clear_ensemble(n=90, m=8, k=3)
    rng = np.random.default_rng(3)
    renamed = np.stack([rng.permutation(50)[:3][column] for column in labels.T], axis=1)
    as_text = np.array([["abc"[value] for value in row] for row in labels])
    fits = [BCE(3, init=init, random_state=0).fit(x) for x in (labels, renamed, as_text)]  # type: ignore[arg-type]
    for model in fits:
        assert ari(model.labels_, truth) == pytest.approx(1.0)
        assert ari(model.labels_, fits[0].labels_) == pytest.approx(1.0)
        assert model.converged_


@settings(laws, max_examples=4)
@given(seed=seeds, k=st.integers(2, 4))
def test_a_start_runs_the_same_alone_as_in_company_and_the_best_wins(seed: int, k: int) -> None:
    table = problem(seed)
    together = BCE(k, init="dirichlet", n_init=3, max_iter=60, tol=1e-5, random_state=seed).fit(table)
    tables = reference.start_tables(table, seed, 3, k)
    alone = [BCE(k, init={"beta": [t[start] for t in tables]}, max_iter=60, tol=1e-5).fit(table) for start in range(3)]
    best = max(model.lower_bound_ for model in alone)
    winner = next(model for model in alone if model.lower_bound_ >= best - 1e-6 * abs(best))
    assert_same_bits(winner, together)


# (f) Objects without a label, new objects, perplexity.


def test_an_object_without_a_label_has_no_cluster_and_the_prior_mean() -> None:
    _, labels = clear_ensemble()
    labels[[3, 20]] = -1
    model = quick(3, 0).fit(labels)
    assert model.labels_[[3, 20]].tolist() == [-1, -1]
    assert (np.delete(model.labels_, [3, 20]) >= 0).all()
    prior = model.alpha_ / model.alpha_.sum()
    np.testing.assert_allclose(model.memberships_[[3, 20]], [prior, prior], rtol=1e-14)
    np.testing.assert_array_equal(model.gamma_[[3, 20]], [model.alpha_, model.alpha_])
    np.testing.assert_allclose(model.memberships_.sum(axis=1), 1.0, rtol=1e-12)
    labelled = model.labels_ >= 0
    expected = model.gamma_ / model.gamma_.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.memberships_, expected, rtol=1e-12)
    np.testing.assert_array_equal(model.labels_[labelled], model.memberships_[labelled].argmax(axis=1))


def test_prediction_finds_the_fitted_clusters_again_and_scores_new_objects() -> None:
    truth, labels = clear_ensemble(n=90)
    labels[0] = -1
    model = BCE(3, n_init=3, random_state=0).fit(labels)
    np.testing.assert_array_equal(model.predict(labels), model.labels_)
    proba = model.predict_proba(labels)
    assert proba.shape == (90, 3)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(proba[0], model.alpha_ / model.alpha_.sum(), rtol=1e-12)
    np.testing.assert_array_equal(model.predict(labels[5:6]), model.labels_[5:6])
    part = labels.copy()
    part[:, 3:] = -1
    assert ari(model.predict(part)[1:], truth[1:]) > 0.9
    np.testing.assert_array_equal(model.fit_predict(labels), model.labels_)


def test_new_objects_are_inferred_by_cell_and_object_steps_alone() -> None:
    _, labels = clear_ensemble()
    model = quick(3, 0).fit(labels)
    table = LabelTable.from_arrays(labels[:9])
    cells = [
        reference.Cell(i, j, int(np.searchsorted(model.categories_[j], labels[i, j])), 1.0)
        for i in range(9)
        for j in range(6)
    ]
    gamma = model.alpha_ + np.full((9, 3), 6 / 3)
    for _ in range(200):
        gamma = model.alpha_ + reference.bce_object_sums(
            cells, reference.bce_phi(cells, gamma, model.beta_), gamma.shape
        )
    np.testing.assert_allclose(
        model.predict_proba(table), gamma / gamma.sum(axis=1, keepdims=True), rtol=1e-3, atol=1e-5
    )
    phi = reference.bce_phi(cells, gamma, model.beta_)
    per_label = reference.bce_bound(cells, phi, gamma, model.alpha_, model.beta_, 0.0) / len(cells)
    assert model.perplexity(table) == pytest.approx(math.exp(-per_label), rel=1e-6)


@laws
@given(seed=seeds, k=st.integers(2, 4))
def test_perplexity_is_never_below_1(seed: int, k: int) -> None:
    table = problem(seed, soft=True)
    model = quick(k, seed).fit(table)
    assert model.perplexity(table) >= 1.0


def test_perplexity_is_lower_for_the_fitted_labels_than_for_shuffled_ones() -> None:
    _, labels = clear_ensemble()
    model = quick(3, 0).fit(labels)
    shuffled = np.random.default_rng(0).permuted(labels, axis=0)
    assert 1.0 <= model.perplexity(labels) < 0.8 * model.perplexity(shuffled)


def test_prediction_refuses_other_columns_and_unknown_categories_clearly() -> None:
    _, labels = clear_ensemble()
    model = quick(3, 0).fit(LabelTable.from_arrays(labels, columns=list("abcdef")))
    for score in (model.predict, model.predict_proba, model.perplexity):
        with pytest.raises(LabelError, match="columns"):
            score(LabelTable.from_arrays(labels[:, :4], columns=list("abcd")))
        with pytest.raises(LabelError, match="columns"):
            score(LabelTable.from_arrays(labels, columns=list("abcdeg")))
        unknown = labels.copy()
        unknown[2, 1] = 77
        with pytest.raises(LabelError, match="'b'") as caught:
            score(LabelTable.from_arrays(unknown, columns=list("abcdef")))
        assert "77" not in str(caught.value)
        with pytest.raises(LabelError):
            score(LabelTable.from_arrays(labels.astype(str), columns=list("abcdef")))
    with pytest.raises(InputError, match="fit"):
        BCE(3).predict(labels)


def test_a_label_that_no_cluster_can_produce_is_refused_by_its_column() -> None:
    column = Column("a", "clustering", (0, 1, 2), np.array([0, 1, 0, 1], np.int32), None)
    model = quick(2, 0, smoothing=0.0).fit(LabelTable(np.array(list("wxyz")), (column,)))
    new = Column("a", "clustering", (0, 1, 2), np.array([0, 2], np.int32), None)
    with pytest.raises(InputError, match="'a'"):
        model.predict(LabelTable(np.array(["p", "q"]), (new,)))


def test_new_objects_that_all_lack_labels_get_the_prior() -> None:
    _, labels = clear_ensemble()
    model = quick(3, 0).fit(labels)
    column = [Column(f"c{j}", "clustering", (), np.full(2, -1, np.int32), None) for j in range(6)]
    nothing = LabelTable(np.array(["p", "q"]), tuple(column))
    assert model.predict(nothing).tolist() == [-1, -1]
    np.testing.assert_allclose(model.predict_proba(nothing), np.tile(model.alpha_ / model.alpha_.sum(), (2, 1)))


# (g) The estimator.


def test_parameters_can_be_read_set_cloned_and_printed() -> None:
    model = BCE(4, init="seeds++", smoothing=0.5, random_state=3)
    parameters = model.get_params()
    assert parameters["n_clusters"] == 4
    assert parameters["init"] == "seeds++"
    assert set(parameters) == {
        "n_clusters",
        "n_init",
        "init",
        "anneal_alpha",
        "anneal_iter",
        "max_iter",
        "tol",
        "smoothing",
        "alpha",
        "learn_alpha",
        "schedule",
        "local_loops",
        "random_state",
        "n_threads",
        "progress",
    }
    assert model.set_params(n_clusters=2, tol=0.1) is model
    assert (model.n_clusters, model.tol) == (2, 0.1)
    with pytest.raises(ValueError, match="clusters"):
        model.set_params(clusters=3)
    copied = clone(model)
    assert copied is not model
    assert copied.get_params() == model.get_params()
    assert repr(model) == "BCE(n_clusters=2, init='seeds++', tol=0.1, smoothing=0.5, random_state=3)"
    assert not hasattr(clone(BCE().fit(clear_ensemble()[1])), "labels_")
    beta = [np.eye(3)]
    assert clone(BCE(3, init={"beta": beta})).init["beta"][0].tolist() == beta[0].tolist()


def test_a_pickled_model_predicts_the_same() -> None:
    _, labels = clear_ensemble()
    model = quick(3, 0).fit(labels)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_array_equal(twin.predict_proba(labels), model.predict_proba(labels))
        np.testing.assert_array_equal(twin.predict(labels), model.predict(labels))
        assert twin.perplexity(labels) == model.perplexity(labels)
        assert twin.get_params() == model.get_params()


def test_fitting_leaves_parameters_and_labels_untouched() -> None:
    _, labels = clear_ensemble()
    kept = labels.copy()
    rng = np.random.default_rng(0)
    start = {"beta": [rng.dirichlet(np.ones(3), 3) for _ in range(6)], "gamma": np.ones((60, 3))}
    before = copy.deepcopy(start)
    BCE(3, init=start, max_iter=5).fit(labels)
    np.testing.assert_array_equal(labels, kept)
    np.testing.assert_array_equal(start["gamma"], before["gamma"])
    for left, right in zip(start["beta"], before["beta"], strict=True):
        np.testing.assert_array_equal(left, right)


GOOD_START = {"beta": [np.full((3, 3), 1 / 3)] * 6}

BAD = [
    ("n_clusters", {"n_clusters": 0}),
    ("n_clusters", {"n_clusters": 2.5}),
    ("n_clusters", {"n_clusters": "3"}),
    ("n_clusters", {"n_clusters": True}),
    ("n_clusters", {"n_clusters": None}),
    ("n_init", {"n_init": 0}),
    ("n_init", {"n_init": 1.0}),
    ("max_iter", {"max_iter": -1}),
    ("max_iter", {"max_iter": 1.5}),
    ("tol", {"tol": -1}),
    ("tol", {"tol": math.nan}),
    ("tol", {"tol": None}),
    ("tol", {"tol": "small"}),
    ("tol", {"tol": [1e-6]}),
    ("smoothing", {"smoothing": -0.01}),
    ("smoothing", {"smoothing": math.inf}),
    ("smoothing", {"smoothing": "none"}),
    ("alpha", {"alpha": -1.0}),
    ("alpha", {"alpha": -1.0, "init": "dirichlet"}),
    ("alpha", {"alpha": 0.0, "init": "dirichlet"}),
    ("alpha", {"alpha": math.nan, "init": "seeds++"}),
    ("alpha", {"alpha": [1.0, 2.0], "init": "base"}),
    ("alpha", {"alpha": "large", "init": "dirichlet"}),
    ("alpha", {"alpha": -1.0, "learn_alpha": False}),
    ("alpha", {"init": {**GOOD_START, "alpha": [-1.0, 1.0, 1.0]}}),
    ("anneal_alpha", {"anneal_alpha": -3.0}),
    ("anneal_alpha", {"anneal_alpha": "three"}),
    ("anneal_iter", {"anneal_iter": -1}),
    ("init", {"init": "kmeans"}),
    ("init", {"init": None}),
    ("init", {"init": 3}),
    ("init", {"init": np.zeros(3)}),
    ("schedule", {"schedule": "fast"}),
    ("schedule", {"schedule": None}),
    ("local_loops", {"local_loops": 0}),
    ("random_state", {"random_state": "seed"}),
    ("n_threads", {"n_threads": 0}),
    ("n_threads", {"n_threads": 1.5}),
    ("beta", {"init": {}}),
    ("beta", {"init": {"alpha": 1.0}}),
    ("beta", {"init": {"beta": 3}}),
    ("beta", {"init": {"beta": GOOD_START["beta"][:5]}}),
    ("beta", {"init": {"beta": [np.full((3, 4), 1 / 4)] * 6}}),
    ("beta", {"init": {"beta": [np.full((3, 3), -1 / 3)] * 6}}),
    ("beta", {"init": {"beta": [np.full((3, 3), math.nan)] * 6}}),
    ("beta", {"init": {"beta": [np.eye(3)[[0, 0, 1]]] * 6}}),
    ("gamma", {"init": {**GOOD_START, "gamma": np.ones((5, 3))}}),
    ("gamma", {"init": {**GOOD_START, "gamma": np.zeros((60, 3))}}),
    ("gamma", {"init": {**GOOD_START, "gamma": np.full((60, 3), math.nan)}}),
    ("gamma", {"init": {**GOOD_START, "gamma": np.full((60, 3), math.inf)}}),
]


@pytest.mark.parametrize(("name", "parameters"), BAD, ids=[f"{n}-{i}" for i, (n, _) in enumerate(BAD)])
def test_a_bad_parameter_is_refused_by_its_name(name: str, parameters: dict[str, Any]) -> None:
    _, labels = clear_ensemble()
    with pytest.raises(InputError, match=rf"\b{name}\b"):
        BCE(**{"n_clusters": 3, "max_iter": 3, **parameters}).fit(labels)


@pytest.mark.parametrize("init", ["seeds++", "base"])
def test_starts_made_of_label_rows_refuse_soft_columns_by_name(init: str) -> None:
    soft = np.random.default_rng(0).dirichlet(np.ones(3), 8)
    table = LabelTable(np.arange(8).astype(str), (Column("soft one", "clustering", (0, 1, 2), None, soft),))
    with pytest.raises(InputError, match="soft one"):
        BCE(2, init=init).fit(table)  # type: ignore[arg-type]


@pytest.mark.parametrize("init", ["anneal", "dirichlet", "seeds++", "base"])
def test_a_table_without_clusterings_is_refused_clearly(init: str) -> None:
    votes = Column("v", "classifier", (0, 1), np.array([0, 1, 0], np.int32), None)
    with pytest.raises(InputError, match=r"label|clustering"):
        BCE(2, init=init).fit(LabelTable(np.array(list("abc")), (votes,)))  # type: ignore[arg-type]


@pytest.mark.parametrize("row", [[0.3, 0.2], [2.0, 3.0], [1.3, -0.3], [math.inf, 0.0]])
def test_soft_labels_that_are_no_distributions_are_refused_by_their_column_and_never_shown(row: list[float]) -> None:
    soft = np.array([[0.5, 0.5], row, [math.nan, math.nan], [0.1, 0.9]])
    with pytest.raises(InputError, match="'soft one'") as caught:
        BCE(2).fit(LabelTable(np.array(list("abcd")), (Column("soft one", "clustering", (0, 1), None, soft),)))
    assert str(row[0]) not in str(caught.value)


@pytest.mark.parametrize("init", ["anneal", "dirichlet", "seeds++", "base"])
def test_a_column_without_any_label_does_no_harm(init: str) -> None:
    _, labels = clear_ensemble()
    labels = np.insert(labels, 2, -1, axis=1)
    model = quick(3, 0, init=init).fit(labels)
    reference.assert_never_decreases(model.bound_path_)
    assert model.beta_[2].shape == (3, 0)
    assert np.isfinite(model.memberships_).all()


@pytest.mark.parametrize("init", ["anneal", "dirichlet", "seeds++", "base"])
def test_no_iterations_give_the_start_itself(init: str) -> None:
    _, labels = clear_ensemble()
    model = BCE(3, init=init, max_iter=0, n_init=2, random_state=0).fit(labels)  # type: ignore[arg-type]
    assert model.n_iter_ == 0
    assert len(model.bound_path_) == 1
    assert not model.converged_
    assert model.labels_.shape == (60,)
    assert model.lower_bound_ == pytest.approx(bound_of_fit(model, LabelTable.from_arrays(labels)), rel=1e-9)


@pytest.mark.parametrize("iterations", [1, 10, 11, 12, 25, 43, 44, 45])
def test_without_tolerance_exactly_max_iter_iterations_run(iterations: int) -> None:
    labels = np.random.default_rng(0).integers(0, 3, (40, 6))
    model = BCE(3, init="dirichlet", n_init=1, max_iter=iterations, tol=0, random_state=0).fit(labels)
    assert model.n_iter_ == iterations
    assert not model.converged_


def test_taking_steps_back_does_not_change_the_number_of_iterations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, labels = clear_ensemble()
    absurd_trials(monkeypatch, CEILING)
    for iterations in range(9, 18):
        model = BCE(3, init="seeds++", n_init=2, max_iter=iterations, tol=0, random_state=0).fit(labels)
        assert model.n_iter_ == iterations
        assert len(model.bound_path_) <= iterations + 1


@pytest.mark.parametrize("k", [1, 2, 7])
@pytest.mark.parametrize("labels", [[[0]], [[0], [0]], [[0, 1]], [[0, -1], [-1, 1]], [[5, 5, 5]] * 4])
def test_the_smallest_tables_can_be_fitted(k: int, labels: list[list[int]]) -> None:
    model = BCE(k, n_init=2, anneal_iter=5, max_iter=40, random_state=0).fit(np.array(labels))
    reference.assert_never_decreases(model.bound_path_)
    np.testing.assert_allclose(model.memberships_.sum(axis=1), 1.0, rtol=1e-12)
    table = LabelTable.from_arrays(np.array(labels))
    assert model.lower_bound_ == pytest.approx(bound_of_fit(model, table), rel=1e-9, abs=1e-9)


def test_convergence_means_a_small_change_of_the_bound() -> None:
    _, labels = clear_ensemble()
    model = BCE(3, n_init=1, anneal_iter=5, max_iter=500, tol=1e-8, random_state=0).fit(labels)
    assert model.converged_
    assert model.n_iter_ < 500
    change = abs(model.bound_path_[-1] - model.bound_path_[-2]) / abs(model.bound_path_[-1])
    assert change < 1e-4  # labels at rest, or 1e-8


def test_progress_is_reported_to_a_callable_once_per_iteration() -> None:
    _, labels = clear_ensemble()
    seen: list[int] = []
    model = BCE(3, n_init=2, max_iter=7, tol=0, random_state=0, progress=lambda p: seen.append(p.iteration))
    model.fit(labels)
    assert seen == list(range(8))


@settings(laws, max_examples=5)
@given(seed=seeds, k=st.integers(2, 4))
def test_renaming_the_clusters_of_columns_gives_the_same_consensus_from_the_same_seed(seed: int, k: int) -> None:
    """Whatever the data: a start knows the categories by their objects, not by their names."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, 4, (30, 5))
    renamed = labels.copy()
    for j in range(5):
        renamed[:, j] = np.append(rng.permutation(20)[:4], -1)[labels[:, j]]
    for estimator in (BCE(k, n_init=2, max_iter=80, random_state=seed), Mixture(k, n_init=2, random_state=seed)):
        one, other = clone(estimator).fit(labels), clone(estimator).fit(renamed)
        np.testing.assert_array_equal(one.labels_, other.labels_)
        np.testing.assert_array_equal(one.bound_path_, other.bound_path_)
