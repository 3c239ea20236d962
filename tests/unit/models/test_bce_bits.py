"""BCE: same bits for equal seeds, any threads and any order; what renaming and reordering may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import reference
from support.bce_problems import (
    clear_ensemble,
    laws,
    problem,
    quick,
    seeds,
)

from ce.labels import Column, LabelTable
from ce.metrics import ari
from ce.models import BCE
from ce.protocol.engine import cell_passes as holdings

#: Fits here end after a few iterations, converged or not: tests/unit/models/test_convergence.py has the warning.
pytestmark = pytest.mark.filterwarnings("ignore::ce.errors.ConvergenceWarning")


def assert_same_bits(one: BCE, other: BCE, rows: Any = slice(None)) -> None:
    np.testing.assert_array_equal(one.bound_path_, other.bound_path_)
    np.testing.assert_array_equal(one.alpha_, other.alpha_)
    np.testing.assert_array_equal(one.gamma_[rows], other.gamma_)
    np.testing.assert_array_equal(one.memberships_[rows], other.memberships_)
    np.testing.assert_array_equal(one.labels_[rows], other.labels_)
    assert one.n_iter_ == other.n_iter_
    assert one.converged_ == other.converged_


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


@pytest.mark.promise("The number of threads, the size of tiles and the order of rows, columns and sites change no bit.")
def test_neither_threads_nor_tiles_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.random.default_rng(1).integers(-1, 4, (400, 5))
    one = quick(3, 0, max_iter=20).fit(labels)
    monkeypatch.setattr(holdings, "_TILE_ENTRIES", 1)  # the narrowest tiles there are
    for threads in (1, 2, 3):
        assert_same_bits(one, quick(3, 0, n_threads=threads, max_iter=20).fit(labels))


@pytest.mark.promise("The number of threads, the size of tiles and the order of rows, columns and sites change no bit.")
@laws
@given(seed=seeds, k=st.integers(2, 4))
def test_rows_in_another_order_get_the_same_bits(seed: int, k: int) -> None:
    table = problem(seed, soft=True)
    order = np.random.default_rng(seed).permutation(table.n_objects)
    assert_same_bits(quick(k, seed).fit(table), quick(k, seed).fit(table.select(order)), order)


@pytest.mark.promise("The number of threads, the size of tiles and the order of rows, columns and sites change no bit.")
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
