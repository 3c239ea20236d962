"""Pair tables are counts of pairs of labels, and travel as one vector with each pair of columns once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ce.errors import InputError
from ce.pair_tables import MOST_WIDTH, TableLayout, count_pairs, pair_tables

laws = settings(deadline=None, max_examples=40, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


def any_labels(seed: int, soft: bool) -> tuple[TableLayout, list[NDArray[Any]]]:
    """Columns of one to five categories with gaps, some of them soft."""
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(0, 30)), int(rng.integers(2, 6))
    categories = rng.integers(1, 6, m)
    columns: list[NDArray[Any]] = []
    for k in categories:
        codes = np.where(rng.random(n) < 0.3, -1, rng.integers(0, k, n))
        if soft and rng.random() < 0.5:
            fractions = rng.dirichlet(np.ones(k), n)
            fractions[codes < 0] = np.nan
            columns.append(fractions)
        else:
            columns.append(codes)
    return TableLayout(tuple(f"c{j}" for j in range(m)), tuple(categories.tolist())), columns


def counted_one_by_one(layout: TableLayout, columns: list[NDArray[Any]]) -> NDArray[np.float64]:
    tables = np.zeros((layout.width, layout.width))
    for i in range(len(columns[0])):
        for p, q in ((p, q) for p in range(layout.n_columns) for q in range(layout.n_columns) if p != q):
            for a in range(layout.categories[p]):
                for b in range(layout.categories[q]):
                    share = part(columns[p][i], a) * part(columns[q][i], b)
                    tables[layout.offsets[p] + a, layout.offsets[q] + b] += share
    return tables


def part(label: Any, category: int) -> float:
    if np.ndim(label) == 0:
        return float(label == category)
    return 0.0 if np.isnan(label[category]) else float(label[category])


@laws
@given(seed=seeds, soft=st.booleans())
def test_tables_are_counts_of_pairs(seed: int, soft: bool) -> None:
    layout, columns = any_labels(seed, soft)
    np.testing.assert_allclose(pair_tables(columns, layout), counted_one_by_one(layout, columns), rtol=0, atol=1e-12)


@laws
@given(seed=seeds)
def test_whole_labels_give_whole_counts_in_stretches_of_any_length(seed: int) -> None:
    layout, columns = any_labels(seed, soft=False)
    codes = np.stack(columns, axis=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(count_pairs, "_LEAST_ROWS", 7)
        patch.setattr(count_pairs, "_STRETCH", 1)
        short = pair_tables(codes, layout)
    np.testing.assert_array_equal(short, pair_tables(codes, layout))
    np.testing.assert_array_equal(short, np.rint(short))


@laws
@given(seed=seeds)
def test_packed_and_unpacked_are_inverse(seed: int) -> None:
    layout, columns = any_labels(seed, soft=False)
    tables = pair_tables(columns, layout)
    cells = layout.packed(tables)
    assert (
        cells.shape == (layout.n_cells,) == (sum(layout.categories[i] * layout.categories[j] for i, j in layout.pairs),)
    )
    np.testing.assert_array_equal(layout.unpacked(cells), tables)
    words = np.arange(layout.n_cells, dtype=np.uint32)
    np.testing.assert_array_equal(layout.packed(layout.unpacked(words)), words)
    assert layout.unpacked(words).dtype == np.uint32


def test_cells_are_packed_pair_after_pair_and_row_after_row() -> None:
    layout = TableLayout(("a", "b", "c"), (2, 1, 2))
    assert layout.pairs == [(0, 1), (0, 2), (1, 2)]
    codes = np.array([[0, 0, 1], [1, 0, -1], [1, -1, 0], [1, 0, 0]])
    assert layout.packed(pair_tables(codes, layout)).tolist() == [1, 2, 0, 1, 2, 0, 1, 1]


@pytest.mark.parametrize(
    ("names", "categories", "problem"),
    [
        (("a", "b"), (2,), "a number of categories for each of 2 columns"),
        (("a",), (2,), "at least two columns, got 1"),
        (("b", "a"), (2, 2), "in name order"),
        (("a", "a"), (2, 2), "in name order"),
        (("a", "b"), (2, 0), "at least one category"),
        (("a", "b"), (2, MOST_WIDTH), "at most 4,000 categories of all columns together, got 4,002"),
    ],
)
def test_a_layout_is_checked(names: tuple[str, ...], categories: tuple[int, ...], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        TableLayout(names, categories)


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        (np.zeros((3, 3), dtype=int), r"expected \(objects, 2\)"),
        (np.full((3, 2), 2), "column a: expected whole-number codes below 2"),
        (np.zeros((3, 2)), "column a: expected whole-number codes"),
        ([np.zeros(3, dtype=int), np.zeros(4, dtype=int)], "2 columns of equal length"),
        ([np.zeros((3, 3)), np.zeros(3, dtype=int)], "column a: expected fractions of 2 categories, got 3"),
    ],
)
def test_labels_are_checked(labels: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        pair_tables(labels, TableLayout(("a", "b"), (2, 2)))


def test_cells_of_another_layout_are_refused() -> None:
    layout = TableLayout(("a", "b"), (2, 2))
    with pytest.raises(InputError, match="expected 4 cells"):
        layout.unpacked(np.zeros(5))
    with pytest.raises(InputError, match="expected shape"):
        layout.packed(np.zeros((3, 3)))
