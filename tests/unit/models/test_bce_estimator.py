"""BCE as an estimator: parameters, refusals, small tables, progress."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from support import reference
from support.bce_problems import (
    absurd_trials,
    bound_of_fit,
    clear_ensemble,
    laws,
    quick,
    seeds,
)

from ce.errors import InputError
from ce.labels import Column, LabelTable
from ce.models import BCE, Mixture
from ce.steps.dirichlet import CEILING

#: Fits here end after a few iterations, converged or not: tests/unit/models/test_convergence.py has the warning.
pytestmark = pytest.mark.filterwarnings("ignore::ce.errors.ConvergenceWarning")


def test_parameters_can_be_read_set_cloned_and_printed() -> None:
    model = BCE(4, init="seeds++", smoothing=0.5, random_state=3)
    parameters = model.get_params()
    assert parameters["n_clusters"] == 4
    assert parameters["init"] == "seeds++"
    assert set(parameters) == {
        "n_clusters",
        "inference",
        "n_init",
        "init",
        "anneal_alpha",
        "anneal_iter",
        "max_iter",
        "tol",
        "burn_in",
        "thin",
        "omega",
        "smoothing",
        "alpha",
        "learn_alpha",
        "schedule",
        "local_loops",
        "halving",
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
    assert change < 1e-3  # labels at rest, or 1e-8
    given = BCE(3, n_init=1, init="dirichlet", max_iter=500, tol=1e-8, random_state=0).fit(labels)
    assert given.converged_
    assert abs(given.bound_path_[-1] - given.bound_path_[-2]) < 1e-4 * abs(given.bound_path_[-1])


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
