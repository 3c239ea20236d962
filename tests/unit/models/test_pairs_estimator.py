"""Pairs as an estimator, and the fit of pair tables as a start of BCE and Mixture."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from support.pair_ensembles import chain, planted

from ce.errors import ConvergenceWarning, InputError, LabelError
from ce.labels import Column, LabelTable
from ce.metrics import ari
from ce.models import BCE, Mixture, Pairs
from ce.protocol.engine.aggregator import Progress

laws = settings(deadline=None, max_examples=6, derandomize=True)
RESULTS = ("labels_", "memberships_", "weights_", "eigenvalues_")


def clear(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return planted(300, 12, 4, 0.2, seed, missing=0.1)


def assert_same_bits(one: Pairs, other: Pairs) -> None:
    for name in RESULTS:
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
    assert (one.log_composite_, one.n_iter_) == (other.log_composite_, other.n_iter_)


def test_parameters_can_be_read_set_cloned_and_printed() -> None:
    model = Pairs("auto", smoothing=3.0, random_state=3)
    assert set(model.get_params()) == {"n_clusters", "max_iter", "tol", "smoothing", "random_state", "progress"}
    assert clone(model).get_params() == model.get_params()
    assert repr(model) == "Pairs(n_clusters='auto', smoothing=3.0, random_state=3)"
    assert model.set_params(n_clusters=2) is model
    with pytest.raises(ValueError, match="alpha"):
        model.set_params(alpha=3)


@pytest.mark.parametrize("asked", [4, "auto"])
def test_planted_clusters_are_found_and_counted(asked: Any) -> None:
    labels, truth = clear()
    model = Pairs(asked, random_state=0)
    assert ari(truth, model.fit_predict(labels)) > 0.98
    assert (model.n_clusters_, model.converged_) == (4, True)
    assert model.weights_.shape == (4,)
    assert model.memberships_.shape == (300, 4)
    np.testing.assert_allclose(model.memberships_.sum(axis=1), 1.0, rtol=1e-12)
    assert [found.tolist() for found in model.categories_] == [[0, 1, 2, 3]] * 12
    assert (np.diff(model.eigenvalues_) <= 0).all()
    assert not hasattr(model, "beta_")


@laws
@given(seed=st.integers(0, 2**32 - 1))
def test_equal_seeds_give_equal_bits_whatever_labels_are_called_and_in_whichever_order_objects_come(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, _ = planted(60, 5, 3, 0.4, seed, missing=0.2, categories=int(rng.integers(2, 5)))
    ids = [f"o{i}" for i in range(60)]
    first = Pairs(3, random_state=1).fit(LabelTable.from_arrays(labels, ids))
    assert_same_bits(first, Pairs(3, random_state=1).fit(LabelTable.from_arrays(labels, ids)))
    new_name = rng.permutation(5)
    renamed = np.where(labels < 0, -1, new_name[labels])
    assert_same_bits(first, Pairs(3, random_state=1).fit(LabelTable.from_arrays(renamed, ids)))
    order = rng.permutation(60)
    moved = Pairs(3, random_state=1).fit(LabelTable.from_arrays(labels[order], [ids[i] for i in order]))
    assert moved.weights_.tobytes() == first.weights_.tobytes()
    np.testing.assert_array_equal(moved.labels_, first.labels_[order])


def test_a_pickled_model_predicts_the_same() -> None:
    labels, _ = clear()
    model = Pairs(4, random_state=0).fit(labels)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert_same_bits(twin, model)
        assert twin.predict_proba(labels).tobytes() == model.memberships_.tobytes()


def test_an_object_without_a_label_has_no_cluster_and_the_weights() -> None:
    labels, _ = clear()
    labels[[3, 20]] = -1
    table = LabelTable.from_arrays(labels)
    model = Pairs(4, random_state=0).fit(table)
    assert model.labels_[[3, 20]].tolist() == [-1, -1]
    assert (np.delete(model.labels_, [3, 20]) >= 0).all()
    np.testing.assert_array_equal(model.memberships_[[3, 20]], [model.weights_, model.weights_])
    shorter = Pairs(4, random_state=0).fit(table.select(table.labelled))
    assert shorter.weights_.tobytes() == model.weights_.tobytes()


def test_prediction_finds_the_fitted_clusters_again_and_scores_new_objects() -> None:
    labels, truth = planted(400, 12, 4, 0.2, 1)
    model = Pairs(4, random_state=0).fit(labels[:300])
    np.testing.assert_array_equal(model.predict(labels[:300]), model.labels_)
    np.testing.assert_array_equal(model.predict_proba(labels[:300]), model.memberships_)
    assert ari(truth[300:], model.predict(labels[300:])) > 0.95
    labels[300] = -1
    assert (model.predict(labels[300:]) == -1).tolist() == [True] + [False] * 99


def test_prediction_refuses_other_columns_unknown_categories_and_a_model_without_a_fit() -> None:
    labels, _ = clear()
    with pytest.raises(InputError, match="this Pairs is not fitted yet"):
        Pairs(4).predict(labels)
    model = Pairs(4, random_state=0).fit(labels)
    with pytest.raises(LabelError, match="expected the columns of the fit"):
        model.predict(labels[:, :11])
    with pytest.raises(LabelError, match="the new categories lack one"):
        model.predict(labels + 9)


def test_soft_labels_that_are_certain_are_hard_labels() -> None:
    labels, _ = clear()
    hard = LabelTable.from_arrays(labels)
    certain = np.eye(4)[labels[:, 0]]
    certain[labels[:, 0] < 0] = np.nan
    first = hard.columns[0]
    soft = Column(first.name, "clustering", first.categories, None, certain)
    mixed = LabelTable(hard.ids, (soft, *hard.columns[1:]), "labels")
    one, other = Pairs(4, random_state=0).fit(hard), Pairs(4, random_state=0).fit(mixed)
    np.testing.assert_array_equal(one.labels_, other.labels_)
    np.testing.assert_allclose(one.memberships_, other.memberships_, rtol=1e-6, atol=1e-9)


def test_uncertain_labels_count_in_fractions() -> None:
    labels, truth = clear()
    hard = LabelTable.from_arrays(labels)
    columns = [
        Column(
            c.name,
            c.kind,
            c.categories,
            None,
            np.where((labels[:, [j]] < 0), np.nan, 0.6 * np.eye(4)[labels[:, j]] + 0.1),
        )
        for j, c in enumerate(hard.columns)
    ]
    model = Pairs(4, random_state=0).fit(LabelTable(hard.ids, tuple(columns), "labels"))
    assert ari(truth, model.labels_) > 0.95


def test_a_column_without_any_label_does_no_harm() -> None:
    labels, _ = clear()
    without = Pairs(4, random_state=0).fit(labels)
    column = Column("zz", "clustering", (), np.full(300, -1, dtype=np.int32), None)
    table = LabelTable.from_arrays(labels)
    more = LabelTable(table.ids, (*table.columns, column), "labels")
    assert_same_bits(Pairs(4, random_state=0).fit(more), without)
    for init in (BCE(4, init="pairs", random_state=0), Mixture(4, init="pairs", random_state=0)):
        assert init.fit(more).beta_[-1].shape == (4, 0)


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"n_clusters": 32}, "n_clusters is a whole number from 1 to 31"),
        ({"n_clusters": 0}, "n_clusters"),
        ({"n_clusters": "many"}, "n_clusters"),
        ({"max_iter": -1}, "max_iter"),
        ({"tol": -1.0}, "tol"),
        ({"smoothing": -1.0}, "smoothing"),
        ({"random_state": "x"}, "random_state"),
    ],
)
def test_a_bad_parameter_is_refused_by_its_name(parameters: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Pairs(**parameters).fit(clear()[0])


@pytest.mark.parametrize("model", [Pairs(2), BCE(2, init="pairs"), Mixture(2, init="pairs")], ids=lambda m: repr(m))
def test_a_single_clustering_has_no_pairs(model: Any) -> None:
    with pytest.raises(InputError, match="at least two clusterings with labels, got 1"):
        model.fit(np.array([[0], [1], [1]]))


def test_a_fit_that_max_iter_ends_warns_and_without_tolerance_all_iterations_run() -> None:
    labels, _ = clear()
    with pytest.warns(ConvergenceWarning, match="max_iter = 2"):
        model = Pairs(4, max_iter=2, random_state=0).fit(labels)
    assert (model.n_iter_, model.converged_) == (2, False)
    assert Pairs(4, max_iter=30, tol=0.0, random_state=0).fit(labels).n_iter_ == 30


def test_progress_is_reported_once_per_iteration() -> None:
    seen: list[Progress] = []
    model = Pairs(4, random_state=0, progress=seen.append).fit(clear()[0])
    assert [one.iteration for one in seen] == list(range(1, model.n_iter_ + 1))
    assert seen[-1].bound == model.log_composite_
    assert all(one.bound <= two.bound + 1e-6 for one, two in itertools.pairwise(seen))


@pytest.mark.parametrize("estimator", [pytest.param(BCE, marks=pytest.mark.slow), Mixture])
def test_a_start_from_pair_tables_needs_fewer_iterations_and_finds_chains(estimator: Any) -> None:
    labels, truth = chain(400, 5, 0.2, seed=2, windows=3)
    default = estimator(5, n_init=2, random_state=0).fit(labels)
    from_pairs = estimator(5, init="pairs", random_state=0).fit(labels)
    assert ari(truth, from_pairs.labels_) > 0.98 > ari(truth, default.labels_)
    assert from_pairs.n_iter_ < default.n_iter_
    again = estimator(5, init="pairs", random_state=0).fit(labels)
    assert again.memberships_.tobytes() == from_pairs.memberships_.tobytes()


def test_alpha_that_is_not_learnt_is_not_taken_from_the_pair_tables() -> None:
    labels, _ = clear()
    model = BCE(4, init="pairs", alpha=0.7, learn_alpha=False, random_state=0).fit(labels)
    assert model.alpha_.tolist() == [0.7] * 4


@pytest.mark.parametrize("estimator", [BCE, Mixture])
def test_a_start_from_pair_tables_has_at_most_31_clusters(estimator: Any) -> None:
    with pytest.raises(InputError, match="at most 31 clusters"):
        estimator(32, init="pairs").fit(clear()[0])
    with pytest.raises(InputError, match="init is one of"):
        estimator(3, init="tables").fit(clear()[0])
