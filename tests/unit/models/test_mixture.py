"""Mixture against a naive EM, and what the estimator promises.

The EM below is written out from MATH.md, cell by cell; of the library it uses only the start tables.
"""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from support import reference

from ce.errors import InputError
from ce.labels import Column, LabelTable
from ce.metrics import ari
from ce.models import Mixture
from ce.protocol.engine import cell_passes as holdings

#: Fits here end after a few iterations, converged or not: tests/unit/models/test_convergence.py has the warning.
pytestmark = pytest.mark.filterwarnings("ignore::ce.errors.ConvergenceWarning")

laws = settings(deadline=None, max_examples=10, derandomize=True)

seeds = st.integers(0, 2**32 - 1)


# Problems.


def problem(seed: int, *, soft: bool = False, largest: int = 25) -> LabelTable:
    """A planted partition seen through noisy columns with gaps; names out of order, some categories unused."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(2, largest)), int(rng.integers(1, 9))
    truth = rng.integers(0, int(rng.integers(2, 5)), n)
    noise, gaps = rng.uniform(0.0, 0.7), rng.uniform(0.0, 0.6)
    columns = []
    for j in range(m):
        categories = int(rng.integers(2, 6))
        codes = rng.integers(0, categories, 5)[truth]
        codes = np.where(rng.random(n) < noise, rng.integers(0, categories, n), codes)
        codes = np.where(rng.random(n) < gaps, -1, codes).astype(np.int32)
        if j == 0:
            codes[0] = max(codes[0], 0)
        name = f"{'zyxwvuts'[j]}{j}"
        if soft and rng.random() < 0.6:
            p = 0.5 * rng.dirichlet(np.full(categories, 0.4), n) + 0.5 * np.eye(categories)[np.maximum(codes, 0)]
            p[codes < 0] = np.nan
            columns.append(Column(name, "clustering", tuple(range(categories)), None, p))
        else:
            columns.append(Column(name, "clustering", tuple("uvwxyz"[:categories]), codes, None))
    return LabelTable(np.array([f"o{i}" for i in range(n)]), tuple(columns))


def clear_ensemble(n: int = 60, m: int = 6, k: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.arange(n) % k)
    columns = []
    for _ in range(m):
        wrong = rng.random(n) < 0.05
        columns.append(np.where(wrong, rng.integers(0, k, n), rng.permutation(k)[truth]))
    return truth, np.stack(columns, axis=1)


# MATH.md, cell by cell.


@dataclass(frozen=True)
class Naive:
    weights: np.ndarray
    beta: list[np.ndarray]
    memberships: np.ndarray
    path: list[float]


def naive_em(table: LabelTable, k: int, seed: int, iterations: int, s: float, start: int, starts: int) -> Naive:
    cells, labelled = reference.cells_of(table), table.labelled
    beta = [tables[start] for tables in reference.start_tables(table, seed, starts, k)]
    weights = np.full(k, 1.0 / k)
    r, logs = reference.mixture_responsibilities(cells, weights, beta, table.n_objects)
    path = [reference.mixture_bound(logs, beta, s)]
    for _ in range(iterations):
        weights, beta = reference.mixture_em_step(cells, r, labelled, beta, s)
        r, logs = reference.mixture_responsibilities(cells, weights, beta, table.n_objects)
        path.append(reference.mixture_bound(logs, beta, s))
    return Naive(weights, beta, r, path)


# The laws of EM.


@pytest.mark.promise("Every step of a model maximises the bound over its block.")
@laws
@given(
    seed=seeds,
    k=st.integers(2, 6),
    smoothing=st.sampled_from([0.0, 0.01, 1.0]),
    soft=st.booleans(),
    iterations=st.sampled_from([0, 1, 2, 7, 20]),
)
def test_every_iterate_is_that_of_a_naive_em_from_the_same_start(
    seed: int, k: int, smoothing: float, soft: bool, iterations: int
) -> None:
    table = problem(seed, soft=soft)
    model = Mixture(k, n_init=1, max_iter=iterations, tol=0, smoothing=smoothing, random_state=seed).fit(table)
    naive = naive_em(table, k, seed, iterations, smoothing, 0, 1)
    assert model.n_iter_ == iterations
    np.testing.assert_allclose(model.bound_path_, naive.path, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.weights_, naive.weights, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.memberships_, naive.memberships, rtol=1e-8, atol=1e-10)
    for found, expected in zip(model.beta_, naive.beta, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.promise("The bound never decreases, and is the one of the papers.")
@settings(laws, max_examples=20)
@given(seed=seeds, k=st.integers(1, 6), smoothing=st.sampled_from([0.0, 0.01, 1.0]), soft=st.booleans())
def test_the_bound_never_decreases_and_is_the_log_likelihood_plus_the_prior(
    seed: int, k: int, smoothing: float, soft: bool
) -> None:
    table = problem(seed, soft=soft)
    model = Mixture(k, n_init=3, max_iter=40, tol=0, smoothing=smoothing, random_state=seed).fit(table)
    reference.assert_never_decreases(model.bound_path_)
    assert model.bound_path_[-1] == model.lower_bound_
    r, logs = reference.mixture_responsibilities(
        reference.cells_of(table), model.weights_, model.beta_, table.n_objects
    )
    assert model.lower_bound_ == pytest.approx(reference.mixture_bound(logs, model.beta_, smoothing), rel=1e-9)
    np.testing.assert_allclose(model.memberships_, r, rtol=1e-8, atol=1e-10)


@laws
@given(seed=seeds, k=st.integers(2, 4))
def test_the_lowest_numbered_start_within_1e_6_of_the_best_bound_wins(seed: int, k: int) -> None:
    table = problem(seed)
    model = Mixture(k, n_init=4, max_iter=15, tol=0, smoothing=0.01, halving=False, random_state=seed).fit(table)
    runs = [naive_em(table, k, seed, 15, 0.01, start, 4) for start in range(4)]
    best = max(run.path[-1] for run in runs)
    winner = next(run for run in runs if run.path[-1] >= best - 1e-6 * abs(best))
    np.testing.assert_allclose(model.bound_path_, winner.path, rtol=1e-9, atol=1e-12)


@pytest.mark.promise("Every step of a model maximises the bound over its block.")
@settings(laws, max_examples=3)
@given(seed=seeds, k=st.integers(2, 3))
def test_at_convergence_the_gradient_of_the_log_likelihood_vanishes(seed: int, k: int) -> None:
    table = problem(seed, largest=6)
    cells, n = reference.cells_of(table), table.n_objects
    model = Mixture(k, n_init=1, max_iter=400, tol=0, smoothing=1.0, random_state=seed).fit(table)

    def bound(weights: np.ndarray, beta: Sequence[np.ndarray]) -> float:
        return reference.mixture_bound(
            reference.mixture_responsibilities(cells, weights, beta, n)[1][table.labelled], beta, 1.0
        )

    def tilted(row: np.ndarray, at: int, step: float) -> np.ndarray:
        moved = row * np.exp(step * (np.arange(len(row)) == at))
        return moved / moved.sum()

    width = 1e-4
    for h in range(k):
        up, down = (bound(tilted(model.weights_, h, step), model.beta_) for step in (width, -width))
        assert abs(up - down) / (2 * width) < 1e-3
    for j, b in enumerate(model.beta_):
        for h, r in itertools.product(range(k), range(b.shape[1])):
            values = []
            for step in (width, -width):
                moved = [t.copy() for t in model.beta_]
                moved[j][h] = tilted(moved[j][h], r, step)
                values.append(bound(model.weights_, moved))
            assert abs(values[0] - values[1]) / (2 * width) < 1e-3


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
    one, other = (Mixture(k, n_init=1, max_iter=20, tol=0, random_state=seed).fit(t) for t in (hard, soft))
    np.testing.assert_allclose(one.bound_path_, other.bound_path_, rtol=1e-12)
    np.testing.assert_allclose(one.memberships_, other.memberships_, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("smoothing", [100.0, 1e4])
def test_smoothing_may_be_large(smoothing: float) -> None:
    _, labels = clear_ensemble()
    model = Mixture(3, n_init=1, smoothing=smoothing, max_iter=20, tol=0, random_state=0)
    reference.assert_never_decreases(model.fit(labels).bound_path_)


# Same bits.


def assert_same_bits(one: Mixture, other: Mixture, rows: Any = slice(None)) -> None:
    np.testing.assert_array_equal(one.bound_path_, other.bound_path_)
    np.testing.assert_array_equal(one.weights_, other.weights_)
    np.testing.assert_array_equal(one.memberships_[rows], other.memberships_)
    np.testing.assert_array_equal(one.labels_[rows], other.labels_)
    assert (one.n_iter_, one.converged_) == (other.n_iter_, other.converged_)


def quick(k: int, seed: int, **extra: Any) -> Mixture:
    return Mixture(k, **{"n_init": 3, "max_iter": 20, "random_state": seed, **extra})


def test_equal_seeds_give_equal_bits_and_other_seeds_do_not() -> None:
    _, labels = clear_ensemble()
    assert_same_bits(quick(3, 7).fit(labels), quick(3, 7).fit(labels))
    for make in (np.random.default_rng, np.random.RandomState):
        assert_same_bits(*(quick(3, 0, random_state=make(5)).fit(labels) for _ in range(2)))
    paths = {tuple(quick(3, seed, n_init=1).fit(labels).bound_path_) for seed in range(5)}
    assert len(paths) == 5


@pytest.mark.promise("The number of threads, the size of tiles and the order of rows, columns and sites change no bit.")
def test_neither_threads_nor_tiles_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.random.default_rng(1).integers(-1, 4, (400, 5))
    one = quick(3, 0).fit(labels)
    monkeypatch.setattr(holdings, "_TILE_ENTRIES", 1)  # the narrowest tiles there are
    for threads in (1, 2, 3):
        assert_same_bits(one, quick(3, 0, n_threads=threads).fit(labels))


@pytest.mark.promise("The number of threads, the size of tiles and the order of rows, columns and sites change no bit.")
@laws
@given(seed=seeds, k=st.integers(2, 4))
def test_rows_and_columns_in_another_order_get_the_same_bits(seed: int, k: int) -> None:
    table = problem(seed, soft=True)
    rng = np.random.default_rng(seed)
    rows = rng.permutation(table.n_objects)
    names = [column.name for column in table.columns]
    columns = rng.permutation(len(names))
    one = quick(k, seed).fit(table)
    other = quick(k, seed).fit(table.select(rows, [names[j] for j in columns]))
    assert_same_bits(one, other, rows)
    for at, j in enumerate(columns):
        np.testing.assert_array_equal(other.beta_[at], one.beta_[j])


@laws
@given(seed=seeds, k=st.integers(2, 4))
def test_equal_rows_get_equal_bits_and_counting_them_once_changes_nothing(seed: int, k: int) -> None:
    table = problem(seed, soft=True, largest=12)
    rows = np.repeat(np.arange(table.n_objects), np.random.default_rng(seed).integers(1, 5, table.n_objects))
    repeated = LabelTable(np.arange(len(rows)).astype(str), tuple(c.take(rows) for c in table.columns))
    merged = quick(k, seed).fit(repeated)
    with pytest.MonkeyPatch.context() as patch:

        def apart(parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            n = len(parts[0])
            return np.arange(n), np.arange(n), np.ones(n, dtype=np.int64)

        patch.setattr(holdings, "equal_rows", apart)
        separate = quick(k, seed).fit(repeated)
    assert_same_bits(merged, separate)
    for i in range(table.n_objects):
        copies = merged.memberships_[rows == i]
        np.testing.assert_array_equal(copies, np.tile(copies[0], (len(copies), 1)))


def test_a_clear_ensemble_gives_its_partition_whatever_its_clusters_are_called() -> None:
    truth, labels = clear_ensemble(n=90, m=8)
    rng = np.random.default_rng(3)
    renamed = np.stack([rng.permutation(50)[:3][column] for column in labels.T], axis=1)
    as_text = np.array([["abc"[value] for value in row] for row in labels])
    for x in (labels, renamed, as_text):
        model = Mixture(3, n_init=10, random_state=0).fit(x)
        assert ari(model.labels_, truth) == pytest.approx(1.0)
        assert model.converged_


# The estimator.


def test_an_object_without_a_label_has_no_cluster_and_the_weights_as_memberships() -> None:
    _, labels = clear_ensemble()
    labels[[3, 20]] = -1
    table = LabelTable.from_arrays(labels)
    model = quick(3, 0).fit(table)
    assert model.labels_[[3, 20]].tolist() == [-1, -1]
    assert (np.delete(model.labels_, [3, 20]) >= 0).all()
    np.testing.assert_array_equal(model.memberships_[[3, 20]], [model.weights_, model.weights_])
    np.testing.assert_allclose(model.memberships_.sum(axis=1), 1.0, rtol=1e-12)
    assert model.weights_.sum() == pytest.approx(1.0, rel=1e-12)
    shorter = quick(3, 0).fit(table.select(table.labelled))
    np.testing.assert_allclose(shorter.bound_path_, model.bound_path_, rtol=1e-12)


def test_parameters_can_be_read_set_cloned_and_printed() -> None:
    model = Mixture(4, smoothing=0.5, random_state=3)
    assert set(model.get_params()) == {
        "n_clusters",
        "n_init",
        "init",
        "max_iter",
        "tol",
        "smoothing",
        "halving",
        "random_state",
        "n_threads",
        "progress",
    }
    assert model.set_params(n_clusters=2) is model
    assert clone(model).get_params() == model.get_params()
    assert repr(model) == "Mixture(n_clusters=2, smoothing=0.5, random_state=3)"
    with pytest.raises(ValueError, match="alpha"):
        model.set_params(alpha=3)
    assert not hasattr(clone(quick(3, 0).fit(clear_ensemble()[1])), "labels_")


def test_a_pickled_model_is_the_same() -> None:
    _, labels = clear_ensemble()
    model = quick(3, 0).fit(labels)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert_same_bits(twin, model)
        assert twin.get_params() == model.get_params()
    np.testing.assert_array_equal(quick(3, 0).fit_predict(labels), model.labels_)


BAD = [
    ("n_clusters", 0),
    ("n_clusters", 2.5),
    ("n_clusters", "3"),
    ("n_init", 0),
    ("max_iter", -1),
    ("max_iter", 1.5),
    ("tol", -1),
    ("tol", math.nan),
    ("tol", "small"),
    ("smoothing", -0.01),
    ("smoothing", math.inf),
    ("smoothing", None),
    ("random_state", "seed"),
    ("n_threads", 0),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{n}={v}" for n, v in BAD])
def test_a_bad_parameter_is_refused_by_its_name(name: str, value: Any) -> None:
    _, labels = clear_ensemble()
    with pytest.raises(InputError, match=rf"\b{name}\b"):
        Mixture(**{"n_clusters": 3, "max_iter": 3, name: value}).fit(labels)


def test_no_iterations_give_the_start_itself() -> None:
    _, labels = clear_ensemble()
    model = Mixture(3, n_init=1, max_iter=0, random_state=8).fit(labels)
    assert model.n_iter_ == 0
    assert len(model.bound_path_) == 1
    assert not model.converged_
    np.testing.assert_array_equal(model.weights_, np.full(3, 1 / 3))
    for drawn, found in zip(reference.start_tables(LabelTable.from_arrays(labels), 8, 1, 3), model.beta_, strict=True):
        np.testing.assert_array_equal(found, drawn[0])


@pytest.mark.parametrize("iterations", [1, 5, 60])
def test_without_tolerance_exactly_max_iter_iterations_run(iterations: int) -> None:
    _, labels = clear_ensemble()
    model = Mixture(3, n_init=2, max_iter=iterations, tol=0, random_state=0).fit(labels)
    assert model.n_iter_ == iterations
    assert len(model.bound_path_) == iterations + 1


@pytest.mark.parametrize("k", [1, 2, 12])
@pytest.mark.parametrize("smoothing", [0.0, 0.01])
@pytest.mark.parametrize("labels", [[[0]], [[0], [0]], [[0, 1]], [[0, -1], [-1, 1]], [[5, 5, 5]] * 4])
def test_the_smallest_tables_can_be_fitted(k: int, smoothing: float, labels: list[list[int]]) -> None:
    model = Mixture(k, n_init=2, smoothing=smoothing, random_state=0).fit(np.array(labels))
    for before, after in itertools.pairwise(model.bound_path_):
        assert after >= before - 1e-9 * abs(before) - 1e-12
    np.testing.assert_allclose(model.memberships_.sum(axis=1), 1.0, rtol=1e-12)


def test_a_column_without_any_label_does_no_harm() -> None:
    _, labels = clear_ensemble()
    model = quick(3, 0).fit(np.insert(labels, 2, -1, axis=1))
    reference.assert_never_decreases(model.bound_path_)
    assert model.beta_[2].shape == (3, 0)
