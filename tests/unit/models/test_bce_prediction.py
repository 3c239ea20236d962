"""BCE: objects without a label, new objects, perplexity."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import reference
from support.bce_problems import (
    clear_ensemble,
    laws,
    problem,
    quick,
    seeds,
)

from ce.errors import InputError, LabelError
from ce.labels import Column, LabelTable
from ce.metrics import ari
from ce.models import BCE

#: Fits here end after a few iterations, converged or not: tests/unit/models/test_convergence.py has the warning.
pytestmark = pytest.mark.filterwarnings("ignore::ce.errors.ConvergenceWarning")


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
