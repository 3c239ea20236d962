"""The bound of BCE never decreases and is the one of MATH.md."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import reference
from support.bce_problems import (
    bound_of_fit,
    clear_ensemble,
    laws,
    problem,
    seeds,
    start_of,
)

from ce.errors import InputError
from ce.labels import Column, LabelTable
from ce.models import BCE

#: Fits here end after a few iterations, converged or not: tests/unit/models/test_convergence.py has the warning.
pytestmark = pytest.mark.filterwarnings("ignore::ce.errors.ConvergenceWarning")

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


@pytest.mark.promise("The bound never decreases, and is the one of the papers.")
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


@pytest.mark.promise("The bound never decreases, and is the one of the papers.")
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


@pytest.mark.promise("The bound never decreases, and is the one of the papers.")
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
