"""BC3E: names of classes, kinds of votes, and agreement of clusterings and votes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score
from support import reference
from support.bc3e_problems import arrays, laws, problem, seeds, state_of

from ce.errors import InputError
from ce.labels import LabelTable
from ce.models import BC3E

#: Fits here end after a few iterations, converged or not: tests/unit/models/test_convergence.py has the warning.
pytestmark = pytest.mark.filterwarnings("ignore::ce.errors.ConvergenceWarning")

# Names of classes, kinds of votes.


@pytest.mark.parametrize(
    ("names", "nothing"),
    [(["bad", "fair", "good"], ""), ([10, 20, 30], -1)],
    ids=["text", "integers"],
)
@pytest.mark.parametrize("declared", [False, True])
def test_classes_keep_their_names(names: Any, nothing: Any, declared: bool) -> None:
    truth, clusterings, votes = arrays()
    named = np.asarray(names)[votes]
    if named.dtype.kind == "U":
        named = named.astype(object)
        named[5] = None
    else:
        named[5] = -1
    clusterings[5] = -1
    model = BC3E(classes=names if declared else None).fit(clusterings, named)
    assert model.classes_.tolist() == list(names)
    assert model.labels_[5] == nothing
    known = np.arange(60) != 5
    assert set(model.labels_[known].tolist()) <= set(names)
    assert (model.labels_[known] == np.asarray(names)[truth][known]).mean() > 0.9
    np.testing.assert_array_equal(model.labels_[known], model.classes_[model.class_proba_.argmax(axis=1)][known])


def test_class_probabilities_are_the_softmax_of_mu() -> None:
    table = problem(6, 3)
    known = reference.bc3e_data(table, 3).rows
    model = BC3E(n_classes=3).fit(table)
    weights = np.exp(model.posterior_["mu"][known])
    np.testing.assert_allclose(model.class_proba_[known], weights / weights.sum(axis=1, keepdims=True), rtol=1e-9)
    np.testing.assert_allclose(model.class_proba_.sum(axis=1), 1.0, rtol=1e-12)


def test_an_object_without_votes_and_labels_has_no_class_and_the_prior() -> None:
    _, clusterings, votes = arrays()
    longer = [np.vstack([x, np.full((4, x.shape[1]), -1)]) for x in (clusterings, votes)]
    short, long = BC3E(n_classes=3).fit(clusterings, votes), BC3E(n_classes=3).fit(*longer)
    assert long.labels_[60:].tolist() == [-1] * 4
    prior = np.exp(long.mu_) / np.exp(long.mu_).sum()
    np.testing.assert_allclose(long.class_proba_[60:], np.tile(prior, (4, 1)), rtol=1e-12)
    np.testing.assert_allclose(long.bound_path_, short.bound_path_, rtol=1e-12)
    np.testing.assert_allclose(long.class_proba_[:60], short.class_proba_, rtol=1e-9)


def test_the_number_of_classes_may_exceed_those_that_are_voted_for() -> None:
    _, clusterings, votes = arrays(k=2)
    model = BC3E(n_classes=4).fit(clusterings, votes)
    assert model.classes_.tolist() == [0, 1, 2, 3]
    assert model.class_proba_.shape == (60, 4)
    assert set(model.labels_.tolist()) <= {0, 1}
    reference.assert_never_decreases(model.bound_path_)


def test_classes_may_be_given_in_any_order() -> None:
    _, clusterings, votes = arrays()
    names = np.array(["b", "c", "a"])
    one = BC3E(classes=["b", "c", "a"]).fit(clusterings, names[votes])
    other = BC3E(classes=["a", "b", "c"]).fit(clusterings, names[votes])
    assert one.classes_.tolist() == ["b", "c", "a"]
    np.testing.assert_array_equal(one.labels_, other.labels_)
    np.testing.assert_allclose(one.class_proba_, other.class_proba_[:, [1, 2, 0]], rtol=1e-9)
    # Probabilities come in the order in which the classes are given.
    certain = np.eye(3)[votes]
    soft = BC3E(classes=["b", "c", "a"]).fit(clusterings, certain)
    np.testing.assert_array_equal(soft.labels_, one.labels_)
    np.testing.assert_array_equal(soft.class_proba_, one.class_proba_)
    # So does a given start.
    logits = np.zeros((len(votes), 3))
    logits[:, 0] = 5.0
    begun = BC3E(classes=["b", "c", "a"], start={"mu": logits, "eps": logits}, max_iter=0)
    assert set(begun.fit(clusterings, names[votes]).labels_) == {"b"}


def test_votes_of_a_table_are_matched_by_id() -> None:
    _, clusterings, votes = arrays()
    ids = [f"o{i}" for i in range(len(votes))]
    labels = LabelTable.from_arrays(clusterings, ids=ids)
    turned = np.random.default_rng(0).permutation(len(votes))
    panel = LabelTable.from_arrays(votes[turned], ids=[ids[i] for i in turned])
    np.testing.assert_array_equal(BC3E().fit(labels, panel).labels_, BC3E().fit(clusterings, votes).labels_)
    with pytest.raises(InputError, match="different objects"):
        BC3E().fit(labels, LabelTable.from_arrays(votes))


@pytest.mark.parametrize("posterior", ["joint", "factorised"])
def test_probabilities_of_certain_votes_are_the_votes(posterior: str) -> None:
    _, clusterings, votes = arrays()
    votes[3:6, 1] = -1
    certain = np.eye(3)[np.maximum(votes, 0)]
    certain[votes < 0] = np.nan
    hard = BC3E(n_classes=3, posterior=posterior).fit(clusterings, votes)  # type: ignore[arg-type]
    soft = BC3E(n_classes=3, posterior=posterior).fit(clusterings, certain)  # type: ignore[arg-type]
    np.testing.assert_array_equal(hard.bound_path_, soft.bound_path_)
    np.testing.assert_array_equal(hard.class_proba_, soft.class_proba_)
    np.testing.assert_array_equal(hard.labels_, soft.labels_)


def test_a_table_with_classifier_columns_stands_for_both_arguments() -> None:
    _, clusterings, votes = arrays()
    both = LabelTable.from_arrays(
        np.hstack([clusterings, votes]), columns=[*"abcde", "v0", "v1", "v2"], classifiers=["v*"]
    )
    one, other = BC3E().fit(both), BC3E().fit(clusterings, votes)
    np.testing.assert_array_equal(one.bound_path_, other.bound_path_)
    np.testing.assert_array_equal(one.labels_, other.labels_)


def test_soft_votes_carry_confidence() -> None:
    truth, clusterings, _ = arrays(k=2)
    rng = np.random.default_rng(0)
    right = np.clip(rng.normal(0.6, 0.15, (60, 2)), 0.01, 0.99)
    proba = np.where((np.arange(2) == truth[:, None])[:, None, :], right[:, :, None], 1 - right[:, :, None])
    soft = BC3E().fit(clusterings, proba)
    assert (soft.labels_ == truth).mean() > 0.95
    reference.assert_never_decreases(soft.bound_path_)


# Do the clusterings follow the classes?


def test_kappa_is_high_when_clusters_follow_classes_and_near_0_when_they_are_random() -> None:
    _, clusterings, votes = arrays(n=120)
    assert BC3E().fit(clusterings, votes).kappa_ > 0.6
    values = [BC3E().fit(*arrays(n=150, seed=seed, follow=False)[1:]).kappa_ for seed in range(3)]
    assert abs(np.mean(values)) < 0.3


@settings(laws, max_examples=6)
@given(seed=seeds, k=st.integers(2, 3))
def test_kappa_is_cohens_between_the_clusterings_view_and_the_votes(seed: int, k: int) -> None:
    table = problem(seed, k, largest=30)
    data = reference.bc3e_data(table, k)
    model = BC3E(n_classes=k).fit(table)
    flat = replace(state_of(model, data), eps=np.zeros((len(data.rows), k)))
    view = reference.bc3e_object_sums(data, reference.bc3e_phi(data, flat), k)
    both = (data.votes.sum(axis=1) > 0) & (reference.bc3e_labels(data) > 0)
    if not both.any():
        assert model.kappa_ is None
        return
    ranked = np.sort(view[both], axis=1)
    if (ranked[:, -1] - ranked[:, -2] < 1e-9).any():
        return  # a tie: either class is right
    said, voted = view[both].argmax(axis=1), data.votes[both].argmax(axis=1)
    if len({*said, *voted}) == 1:
        assert model.kappa_ == 1.0
        return
    assert model.kappa_ == pytest.approx(cohen_kappa_score(said, voted), abs=1e-9)
