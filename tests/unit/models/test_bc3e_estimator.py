"""BC3E as an estimator: same bits, parameters, refusals, small tables."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from support import reference
from support.bc3e_problems import arrays, laws, problem, seeds

from ce.errors import InputError, LabelError
from ce.labels import LabelTable
from ce.models import BC3E
from ce.protocol.engine import cell_passes as holdings

#: Fits here end after a few iterations, converged or not: tests/unit/models/test_convergence.py has the warning.
pytestmark = pytest.mark.filterwarnings("ignore::ce.errors.ConvergenceWarning")

# Same bits.


def assert_same_bits(one: BC3E, other: BC3E, rows: Any = slice(None)) -> None:
    np.testing.assert_array_equal(one.bound_path_, other.bound_path_)
    np.testing.assert_array_equal(one.class_proba_[rows], other.class_proba_)
    np.testing.assert_array_equal(one.labels_[rows], other.labels_)
    np.testing.assert_array_equal(one.mu_, other.mu_)
    np.testing.assert_array_equal(one.sigma2_, other.sigma2_)
    assert (one.delta2_, one.kappa_, one.n_iter_) == (other.delta2_, other.kappa_, other.n_iter_)
    for name in ("mu", "eps", "s", "d", "r"):
        np.testing.assert_array_equal(one.posterior_[name][rows], other.posterior_[name])


@pytest.mark.promise("The number of threads, the size of tiles and the order of rows, columns and sites change no bit.")
@pytest.mark.parametrize("start", ["votes", "diffused"])
def test_nothing_is_random_and_neither_threads_nor_tiles_change_a_bit(
    start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    clusterings, votes = rng.integers(-1, 4, (300, 5)), rng.integers(-1, 2, (300, 3))

    def fit(**extra: Any) -> BC3E:
        return BC3E(start=start, max_iter=3, **extra).fit(clusterings, votes)  # type: ignore[arg-type]

    one = fit()
    assert_same_bits(one, fit(random_state=4))
    monkeypatch.setattr(holdings, "_TILE_ENTRIES", 1)  # the narrowest tiles there are
    for threads in (1, 2, 3):
        assert_same_bits(one, fit(n_threads=threads))


@pytest.mark.promise("The number of threads, the size of tiles and the order of rows, columns and sites change no bit.")
@pytest.mark.parametrize(("start", "posterior"), [("votes", "joint"), ("diffused", "factorised")])
@given(seed=seeds, k=st.integers(2, 4))
@laws
def test_rows_and_columns_in_another_order_get_the_same_bits(start: str, posterior: str, seed: int, k: int) -> None:
    table = problem(seed, k, soft_votes=bool(seed % 2), soft_labels=True)
    rng = np.random.default_rng(seed)
    rows, names = rng.permutation(table.n_objects), [column.name for column in table.columns]
    shuffled = table.select(rows, [names[j] for j in rng.permutation(len(names))])
    model = BC3E(n_classes=k, start=start, posterior=posterior)  # type: ignore[arg-type]
    assert_same_bits(copy.deepcopy(model).fit(table), copy.deepcopy(model).fit(shuffled), rows)


@laws
@given(seed=seeds, k=st.integers(2, 3))
def test_equal_rows_get_equal_bits_and_counting_them_once_changes_nothing(seed: int, k: int) -> None:
    table = problem(seed, k, largest=10, soft_votes=bool(seed % 2))
    rows = np.repeat(np.arange(table.n_objects), np.random.default_rng(seed).integers(1, 5, table.n_objects))
    repeated = LabelTable(np.arange(len(rows)).astype(str), tuple(c.take(rows) for c in table.columns))
    merged = BC3E(n_classes=k).fit(repeated)
    with pytest.MonkeyPatch.context() as patch:

        def apart(parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            n = len(parts[0])
            return np.arange(n), np.arange(n), np.ones(n, dtype=np.int64)

        patch.setattr(holdings, "equal_rows", apart)
        separate = BC3E(n_classes=k).fit(repeated)
    assert_same_bits(merged, separate)
    for i in range(table.n_objects):
        copies = merged.class_proba_[rows == i]
        np.testing.assert_array_equal(copies, np.tile(copies[0], (len(copies), 1)))


def test_renaming_classes_and_clusters_renames_the_result() -> None:
    _, clusterings, votes = arrays()
    order = np.array([2, 0, 1])  # class c becomes order[c]
    renamed = np.stack([order[column] for column in clusterings.T], axis=1)
    one, other = BC3E().fit(clusterings, votes), BC3E().fit(renamed, order[votes])
    assert one.lower_bound_ == pytest.approx(other.lower_bound_, rel=1e-9)
    np.testing.assert_allclose(other.class_proba_[:, order], one.class_proba_, rtol=1e-7, atol=1e-10)
    np.testing.assert_array_equal(other.labels_, order[one.labels_])


# The estimator.


def test_the_votes_of_an_object_can_be_overruled_by_its_clusters() -> None:
    truth, clusterings, votes = arrays(n=200)
    majority = np.array([np.bincount(row, minlength=3).argmax() for row in votes])
    model = BC3E().fit(clusterings, votes)
    assert (model.labels_ == truth).mean() > (majority == truth).mean() + 0.02


def test_objects_with_votes_only_or_labels_only_get_a_class() -> None:
    truth, clusterings, votes = arrays(n=150)
    votes[:40] = -1
    clusterings[40:60] = -1
    model = BC3E(n_classes=3).fit(clusterings, votes)
    assert np.isin(model.labels_, [0, 1, 2]).all()
    assert (model.labels_[:40] == truth[:40]).mean() > 0.9
    assert (model.labels_[40:60] == truth[40:60]).mean() > 0.6
    reference.assert_never_decreases(model.bound_path_)


def test_parameters_can_be_read_set_cloned_and_printed() -> None:
    model = BC3E(n_classes=3, posterior="factorised", delta2=0.5)
    assert set(model.get_params()) == {
        "classes",
        "n_classes",
        "posterior",
        "start",
        "delta2",
        "sigma2",
        "max_iter",
        "tol",
        "smoothing",
        "local_loops",
        "random_state",
        "n_threads",
        "progress",
    }
    assert model.set_params(n_classes=2) is model
    assert clone(model).get_params() == model.get_params()
    assert repr(model) == "BC3E(n_classes=2, posterior='factorised', delta2=0.5)"
    with pytest.raises(ValueError, match="n_clusters"):
        model.set_params(n_clusters=3)


def test_a_pickled_model_is_the_same() -> None:
    _, clusterings, votes = arrays()
    model = BC3E().fit(clusterings, votes)
    twin = pickle.loads(pickle.dumps(model))
    assert_same_bits(twin, model)
    assert twin.get_params() == model.get_params()
    np.testing.assert_array_equal(BC3E().fit_predict(clusterings, votes), model.labels_)


@pytest.mark.parametrize("iterations", [1, 14])
def test_without_tolerance_exactly_max_iter_iterations_run(iterations: int) -> None:
    _, clusterings, votes = arrays()
    model = BC3E(max_iter=iterations, tol=0).fit(clusterings, votes)
    assert model.n_iter_ == iterations
    assert len(model.bound_path_) == iterations + 1


BAD = [
    ("posterior", {"posterior": "mean-field"}),
    ("start", {"start": "random"}),
    ("start", {"start": None}),
    ("start", {"start": {"mu": np.zeros((60, 3))}}),
    ("start", {"start": {"mu": np.zeros((5, 3)), "eps": np.zeros((60, 3))}}),
    ("start", {"start": {"mu": np.full((60, 3), math.nan), "eps": np.zeros((60, 3))}}),
    ("start", {"start": {"mu": np.zeros((60, 3)), "eps": np.full((60, 3), math.inf)}}),
    ("sigma2", {"sigma2": 0.0}),
    ("sigma2", {"sigma2": -1.0}),
    ("sigma2", {"sigma2": "wide"}),
    ("delta2", {"delta2": 0}),
    ("delta2", {"delta2": math.nan}),
    ("delta2", {"delta2": [0.1, 0.2]}),
    ("max_iter", {"max_iter": -1}),
    ("tol", {"tol": -1.0}),
    ("smoothing", {"smoothing": -0.1}),
    ("local_loops", {"local_loops": 0}),
    ("n_threads", {"n_threads": 0}),
    ("n_classes", {"n_classes": 2.5}),
    ("n_classes", {"n_classes": 0}),
    ("classes", {"n_classes": 1}),
    ("classes", {"classes": ["only"]}),
    ("classes", {"classes": [0, 1, 2, 2]}),
    ("class", {"classes": [0, 1]}),
    ("class", {"classes": ["a", "b", "c"]}),
    ("class", {"n_classes": 2}),
]


@pytest.mark.parametrize(("name", "parameters"), BAD, ids=[f"{n}-{i}" for i, (n, _) in enumerate(BAD)])
def test_a_bad_parameter_is_refused_by_its_name(name: str, parameters: dict[str, Any]) -> None:
    _, clusterings, votes = arrays()
    with pytest.raises(InputError, match=name):
        BC3E(**{"max_iter": 2, **parameters}).fit(clusterings, votes)


def test_bad_votes_are_refused_clearly() -> None:
    _, clusterings, votes = arrays()
    fair = np.full((60, 2, 3), 1 / 3)
    with pytest.raises(InputError, match="class"):
        BC3E().fit(clusterings)
    with pytest.raises(InputError, match="classifier"):
        BC3E(n_classes=3).fit(clusterings)
    with pytest.raises(LabelError, match="objects"):
        BC3E().fit(clusterings, votes[:50])
    with pytest.raises(LabelError, match="objects"):
        BC3E().fit(clusterings, fair[:50])
    for spoilt in (0.9, -0.1, math.nan):
        wrong = fair.copy()
        wrong[7, 1, 0] = spoilt
        with pytest.raises(LabelError, match="row 7") as caught:
            BC3E().fit(clusterings, wrong)
        assert str(spoilt) not in str(caught.value)
    with pytest.raises(LabelError, match="3 classes"):
        BC3E(classes=["a", "b"]).fit(clusterings, fair)
    with pytest.raises(InputError, match="text"):
        BC3E().fit(clusterings, np.array([["a", 1]] * 60, dtype=object))
    with pytest.raises(InputError, match="two"):
        BC3E().fit(clusterings, np.zeros((60, 2), dtype=int))


def test_ragged_votes_are_refused_clearly() -> None:
    _, clusterings, votes = arrays()
    ragged = [*votes[:59].tolist(), [0]]
    with pytest.raises(LabelError, match="row 59"):
        BC3E().fit(clusterings, ragged)


def test_probabilities_of_no_classifier_are_refused_clearly() -> None:
    _, clusterings, _ = arrays()
    with pytest.raises(LabelError, match="classifier"):
        BC3E().fit(clusterings, np.zeros((60, 0, 3)))


def test_a_clustering_without_any_label_does_no_harm() -> None:
    _, clusterings, votes = arrays()
    for start in ("votes", "diffused"):
        model = BC3E(start=start, max_iter=3).fit(np.insert(clusterings, 2, -1, axis=1), votes)  # type: ignore[arg-type]
        reference.assert_never_decreases(model.bound_path_)
        assert model.beta_[2].shape == (3, 0)


@pytest.mark.parametrize("posterior", ["joint", "factorised"])
@pytest.mark.parametrize("smoothing", [0.0, 0.01])
@pytest.mark.parametrize("n", [1, 2])
def test_the_smallest_tables_can_be_fitted(posterior: str, smoothing: float, n: int) -> None:
    labels, votes = np.zeros((n, 1), dtype=int), np.arange(n)[:, None]
    model = BC3E(n_classes=2, posterior=posterior, smoothing=smoothing, max_iter=12, tol=0)  # type: ignore[arg-type]
    model.fit(labels, votes)
    reference.assert_never_decreases(model.bound_path_)
    np.testing.assert_allclose(model.class_proba_.sum(axis=1), 1.0, rtol=1e-12)
