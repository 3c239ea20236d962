"""Splits: every labelled cell at exactly one site, and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ce.errors import InputError
from ce.labels import Column, LabelTable
from ce.splits import split


def random_table(n: int, m: int, missing: float, seed: int) -> LabelTable:
    """n objects, m hard columns (the last a classifier) and one soft classifier."""
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random((n, m)) < missing, -1, rng.integers(0, 3, size=(n, m)))
    labels[0] = 1
    hard = LabelTable.from_arrays(labels, ids=[f"o{at}" for at in range(n)], classifiers=[f"c{m - 1}"])
    votes = rng.dirichlet([1.0, 1.0], size=n)
    votes[rng.random(n) < missing] = np.nan
    return LabelTable(hard.ids, (*hard.columns, Column("soft", "classifier", ("a", "b"), None, votes)))


def cells_of(table: LabelTable) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for column in table.columns:
        for at in np.flatnonzero(column.observed):
            one = column.codes[at] if column.codes is not None else tuple(column.probabilities[at])  # type: ignore[index]
            found[table.ids[at], column.name, column.kind, column.categories, one] += 1
    return found


@given(
    how=st.sampled_from(["rows", "columns", "blocks"]),
    n_sites=st.integers(1, 6),
    n=st.integers(8, 25),
    m=st.integers(5, 8),
    missing=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=80, deadline=None)
def test_every_labelled_cell_is_at_exactly_one_site(
    how: str, n_sites: int, n: int, m: int, missing: float, seed: int
) -> None:
    table = random_table(n, m, missing, seed)
    if table.labelled.sum() < n_sites:
        return
    try:
        sites = split(table, f"{how}:{n_sites}", seed)
    except InputError:
        # Blocks of a sparse table may leave a site without a label; they are refused then.
        assert how == "blocks"
        assert missing > 0
        return
    assert list(sites) == [f"site{at + 1}" for at in range(n_sites)]
    together: Counter[Any] = Counter()
    for site in sites.values():
        together += cells_of(site)
        assert site.n_objects > 0
        # A site of columns lists every object; the others those of which they hold a label.
        assert site.labelled.all() or how == "columns"
        assert all(column.observed.any() for column in site.columns)
    assert together == cells_of(table)


def test_the_seed_decides() -> None:
    table = random_table(30, 6, 0.2, 1)
    for how in ("rows:3", "blocks:6"):
        one, same, other = (split(table, how, seed) for seed in (5, 5, 6))
        assert all(cells_of(one[name]) == cells_of(same[name]) for name in one)
        assert any(cells_of(one[name]) != cells_of(other[name]) for name in one)


def test_rows_are_dealt_evenly_with_all_their_columns() -> None:
    sites = split(random_table(10, 4, 0.0, 0), "rows:4")
    assert sorted(site.n_objects for site in sites.values()) == [2, 2, 3, 3]
    assert all(len(site.columns) == 5 for site in sites.values())
    assert sites["site1"].ids.tolist() != ["o0", "o4", "o8"]


def test_columns_are_dealt_in_turn_with_all_their_objects() -> None:
    table = random_table(10, 4, 0.0, 0).select(columns=["c3", "c0", "c1", "soft", "c2"])
    sites = split(table, "columns:2")
    assert [column.name for column in sites["site1"].columns] == ["c0", "soft", "c2"]
    assert [column.name for column in sites["site2"].columns] == ["c3", "c1"]
    assert all(site.n_objects == 10 for site in sites.values())


@pytest.mark.parametrize("n_sites", [2, 3, 6, 9])
def test_blocks_have_private_and_shared_rows_and_columns(n_sites: int) -> None:
    for seed in range(10):
        table = random_table(40, 7, 0.0, seed)
        sites = split(table, f"blocks:{n_sites}", seed)
        holders_of_object = Counter(one for site in sites.values() for one in site.ids.tolist())
        holders_of_column = Counter(column.name for site in sites.values() for column in site.columns)
        for holders in (holders_of_object, holders_of_column):
            assert min(holders.values()) == 1
            assert max(holders.values()) > 1


def test_blocks_of_a_tiny_table() -> None:
    table = LabelTable.from_arrays([[1, 2], [3, 4]])
    assert [sum(cells_of(site).values()) for site in split(table, "blocks:2").values()] in ([1, 3], [3, 1])
    assert cells_of(split(table, "blocks:1")["site1"]) == cells_of(table)


@pytest.mark.parametrize("how", ["", "rows", "rows:", "rows:0", "rows:-1", "rows:x", "cells:2", "rows:2:3", "rows:٣"])
def test_an_unknown_split_says_what_is_accepted(how: str) -> None:
    with pytest.raises(InputError, match=r"rows:N, columns:N or blocks:N"):
        split(LabelTable.from_arrays([1, 2]), how)


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("rows:3", "only 2 objects"),
        ("columns:3", "only 2 columns"),
        ("blocks:3", "only 2 rectangles"),
        ("blocks:999999999", "only"),
    ],
)
def test_more_sites_than_the_table_has_parts(how: str, problem: str) -> None:
    # The third object and the third column have no label: there is nothing to give a site.
    table = LabelTable.from_arrays([[1, 2, None], [3, 4, None], [None, None, None]])
    with pytest.raises(InputError, match=problem):
        split(table.select(slice(2), ["c0", "c1"]) if "blocks" in how else table, how)


def test_too_sparse_for_blocks() -> None:
    labels = np.full((6, 4), -1)
    labels[0, 0] = 1
    with pytest.raises(InputError, match="too few labels to give 6 sites"):
        split(LabelTable.from_arrays(labels), "blocks:6")
