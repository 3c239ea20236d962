"""The fit of pair tables: its objective never falls, equal inputs give equal bits, and names do not matter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pair_ensembles import layout_of, planted, with_noise

from ce.errors import InputError
from ce.metrics import ari
from ce.pair_tables import MOST_CLUSTERS, SEALED_TOLERANCE, Residuals, TableLayout, fit_pairs, log_scores, pair_tables
from ce.pair_tables.fit import Objective, default_smoothing
from ce.pair_tables.starting_points import starting_points

laws = settings(deadline=None, max_examples=20, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


def any_tables(seed: int) -> tuple[np.ndarray, TableLayout, float, int]:
    """Tables of a small planted ensemble, half of the time with noise; also where columns are never seen together."""
    rng = np.random.default_rng(seed)
    k, n, m = int(rng.integers(1, 7)), int(rng.integers(5, 200)), int(rng.integers(2, 8))
    codes, _ = planted(
        n, m, k, rng.uniform(0, 0.6), seed, missing=rng.uniform(0, 0.5), categories=int(rng.integers(1, 6))
    )
    if m > 2 and rng.random() < 0.3:
        codes[codes[:, 0] >= 0, 1] = -1
    layout = layout_of(codes)
    sd = float(rng.choice([0.0, rng.uniform(0.5, 20.0)]))
    tables = pair_tables(codes, layout)
    return (with_noise(tables, layout, sd, seed) if sd else tables), layout, sd, k


@laws
@given(seed=seeds)
def test_no_step_lowers_the_objective(seed: int) -> None:
    tables, layout, sd, k = any_tables(seed)
    residuals = Residuals.of(tables, layout, sd)
    objective = Objective(residuals, default_smoothing(residuals))
    for weights, beta in starting_points(residuals, k, seed):
        last = -np.inf
        for _ in range(60):
            value, weights, beta = objective.step(weights, beta)
            assert value >= last - 1e-12 * max(abs(value), 1.0)  # 0 where all columns have one category
            last = value
        np.testing.assert_allclose(layout.per_column(beta), 1.0, rtol=1e-12)
        assert weights.sum() == pytest.approx(1.0, rel=1e-12)


@laws
@given(seed=seeds)
def test_the_objective_is_the_composite_likelihood_with_its_prior(seed: int) -> None:
    tables, layout, sd, k = any_tables(seed)
    fit = fit_pairs(tables, layout, k, sd=sd)
    residuals = Residuals.of(tables, layout, sd)
    expected = default_smoothing(residuals) * np.log(fit.beta).sum()
    for i, j in layout.pairs:
        rows, columns = layout.column_of == i, layout.column_of == j
        q = np.einsum("h,ah,bh->ab", fit.weights, fit.beta[rows], fit.beta[columns])
        expected += (np.maximum(residuals.tables[np.ix_(rows, columns)], 0.0) * np.log(q)).sum()
    assert fit.log_composite == pytest.approx(expected, rel=1e-10)


def test_equal_inputs_give_equal_bits_and_no_global_state_is_used() -> None:
    codes, _ = planted(300, 8, 5, 0.4, seed=1, missing=0.2, categories=4)
    layout = layout_of(codes)
    tables = pair_tables(codes, layout)
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # type: ignore[index, union-attr]  # noqa: NPY002
    first = fit_pairs(tables, layout, 5, seed=3, tolerance=SEALED_TOLERANCE)
    np.random.seed(1)  # noqa: NPY002
    second = fit_pairs(tables.copy(order="F"), layout, 5, seed=3, tolerance=SEALED_TOLERANCE)
    np.random.seed(0)  # noqa: NPY002
    assert (np.random.get_state()[1] == before).all()  # type: ignore[index]  # noqa: NPY002
    for name in ("weights", "beta", "eigenvalues"):
        assert getattr(first, name).tobytes() == getattr(second, name).tobytes()
    assert (first.log_composite, first.n_iter) == (second.log_composite, second.n_iter)


def test_names_of_categories_do_not_matter() -> None:
    """Category names permute rows of the tables; where clusters are clear the partition stays what it was."""
    codes, _ = planted(400, 8, 4, 0.3, seed=2)
    layout = layout_of(codes)
    rng = np.random.default_rng(0)
    renamed = np.stack([rng.permutation(4)[column] for column in codes.T], axis=1)
    found = []
    for labels in (codes, renamed):
        fit = fit_pairs(pair_tables(labels, layout), layout, 4, tolerance=SEALED_TOLERANCE)
        found.append(log_scores(labels, layout, fit.weights, fit.beta).argmax(axis=1))
    assert ari(*found) == 1.0


def test_one_cluster_has_the_margins() -> None:
    codes, _ = planted(200, 4, 3, 0.5, seed=3)
    layout = layout_of(codes)
    fit = fit_pairs(pair_tables(codes, layout), layout, 1, smoothing=0.0)
    counts = np.concatenate([np.bincount(column, minlength=3) for column in codes.T])
    np.testing.assert_allclose(fit.beta[:, 0], counts / 200, rtol=1e-12)
    assert fit.weights.tolist() == [1.0]


def test_tables_without_a_count_are_fitted_to_something() -> None:
    layout = TableLayout(("a", "b"), (2, 3))
    fit = fit_pairs(np.zeros((5, 5)), layout, 3)
    assert np.isfinite(fit.beta).all()
    assert fit_pairs(np.zeros((5, 5)), layout, "auto").n_clusters == 1


@pytest.mark.parametrize("asked", [0, -1, MOST_CLUSTERS + 1, 2.0, True, "all", None])
def test_another_number_of_clusters_is_refused(asked: object) -> None:
    layout = TableLayout(("a", "b"), (2, 2))
    with pytest.raises(InputError, match='n_clusters is a whole number from 1 to 31, or "auto"'):
        fit_pairs(np.zeros((4, 4)), layout, asked)  # type: ignore[arg-type]


def test_tables_are_checked() -> None:
    layout = TableLayout(("a", "b"), (2, 2))
    with pytest.raises(InputError, match=r"expected shape \(4, 4\), got \(3, 4\)"):
        fit_pairs(np.zeros((3, 4)), layout, 2)
    with pytest.raises(InputError, match="expected finite numbers"):
        fit_pairs(np.full((4, 4), np.nan), layout, 2)
    with pytest.raises(InputError, match="expected finite numbers"):
        fit_pairs(np.zeros((4, 4)), layout, 2, sd=-1.0)
