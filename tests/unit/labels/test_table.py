"""The label table: every accepted input gives the same table, every refusal names the place and no label."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ce.errors import LabelError
from ce.labels import Column, LabelTable, equal_rows
from ce.labels import table as label_table

SECRET = "SECRET"


def assert_same(a: LabelTable, b: LabelTable) -> None:
    assert a.ids.tolist() == b.ids.tolist()
    assert [(c.name, c.kind, c.categories) for c in a.columns] == [(c.name, c.kind, c.categories) for c in b.columns]
    for left, right in zip(a.columns, b.columns, strict=True):
        np.testing.assert_array_equal(left.codes, right.codes)
        assert left.soft == right.soft


def labels_of(column: Column) -> list[int | str | None]:
    assert column.codes is not None
    return [None if code < 0 else column.categories[code] for code in column.codes]


def soft_column() -> Column:
    return Column("v", "classifier", ("a", "c"), None, np.array([[0.25, 0.75], [np.nan, np.nan], [1.0, 0.0]]))


# Columns


def test_a_column_is_hard_or_soft() -> None:
    with pytest.raises(LabelError, match="either codes or probabilities"):
        Column("c", "clustering", (1,), None, None)
    with pytest.raises(LabelError, match="either codes or probabilities"):
        Column("c", "clustering", (1,), np.zeros(1, np.int32), np.ones((1, 1)))


def test_observed_and_take_of_hard_and_soft_columns() -> None:
    hard = Column("c", "clustering", (4, 9), np.array([1, -1, 0], np.int32), None)
    soft = soft_column()
    for column in (hard, soft):
        assert column.observed.tolist() == [True, False, True]
        assert column.n_objects == 3
        taken = column.take([2, 1])
        assert taken.observed.tolist() == [True, False]
        assert taken.categories == column.categories
        assert column.take(column.observed).n_objects == 2
        assert column.take(slice(1)).n_objects == 1
    assert (hard.soft, soft.soft) == (False, True)


def test_recode_counts_in_a_larger_set_of_categories() -> None:
    hard = Column("c", "clustering", (4, 9), np.array([1, -1, 0], np.int32), None).recode((3, 4, 9))
    assert labels_of(hard) == [9, None, 4]
    assert hard.codes is not None
    assert hard.codes.dtype == np.int32
    soft = soft_column().recode(("a", "b", "c"))
    np.testing.assert_array_equal(soft.probabilities, [[0.25, 0, 0.75], [np.nan, np.nan, np.nan], [1.0, 0.0, 0.0]])


def test_recode_may_drop_an_unused_category_but_no_used_one() -> None:
    hard = Column("c", "clustering", ("SECRET-1", "x"), np.array([1, 1], np.int32), None)
    assert labels_of(hard.recode(("x",))) == ["x", "x"]
    assert soft_column().take([2]).recode(("a",)).probabilities == pytest.approx(np.array([[1.0]]))
    for column, categories in ((hard, ("SECRET-1",)), (soft_column(), ("a",)), (hard, ())):
        with pytest.raises(LabelError, match="lack one that this column uses") as caught:
            column.recode(categories)
        assert caught.value.column == column.name
        assert SECRET not in str(caught.value)
    empty = Column("c", "clustering", (), np.array([-1], np.int32), None)
    assert labels_of(empty.recode((1, 2))) == [None]


# Tables


def test_a_table_knows_its_columns_and_labelled_objects() -> None:
    table = LabelTable.from_arrays([[1, -1], [-1, -1], [-1, 0]], columns=["a", "v"], classifiers=["v"])
    assert table.n_objects == 3
    assert [column.name for column in table.clusterings] == ["a"]
    assert [column.name for column in table.classifiers] == ["v"]
    assert table.labelled.tolist() == [True, False, True]
    assert table.column("v").kind == "classifier"
    with pytest.raises(LabelError, match=r"labels, column 'w': unknown column; the columns are 'a', 'v'"):
        table.column("w")


def test_select_rows_and_columns_and_keep_categories() -> None:
    table = LabelTable.from_arrays([[1, 5], [2, 6], [3, 7]], ids=["a", "b", "c"], columns=["x", "y"])
    assert_same(table.select(), table)
    for rows in ([2, 0], np.array([2, 0])):
        chosen = table.select(rows, ["y"])
        assert chosen.ids.tolist() == ["c", "a"]
        assert labels_of(chosen.column("y")) == [7, 5]
        assert chosen.column("y").categories == (5, 6, 7)
    assert table.select(slice(1, None)).ids.tolist() == ["b", "c"]
    assert table.select(np.array([True, False, True])).ids.tolist() == ["a", "c"]
    assert [column.name for column in table.select(columns=["y", "x"]).columns] == ["y", "x"]
    assert [column.name for column in table.select(columns="y").columns] == ["y"]
    assert table.select([]).n_objects == 0


def test_select_refuses_what_is_not_there() -> None:
    table = LabelTable.from_arrays([[1], [2]], ids=["SECRET1", "SECRET2"])
    for rows, problem in (
        ([0, 5], "2 objects"),
        (np.array([True]), "2 objects"),
        ([1, 1], "selected twice"),
    ):
        with pytest.raises(LabelError, match=problem) as caught:
            table.select(rows)
        assert SECRET not in str(caught.value)
    with pytest.raises(LabelError, match="unknown column"):
        table.select(columns=["nope"])
    with pytest.raises(LabelError, match="two columns"):
        table.select(columns=["c0", "c0"])


def test_a_table_refuses_columns_that_do_not_fit() -> None:
    column = Column("c", "clustering", (1,), np.zeros(2, np.int32), None)
    with pytest.raises(LabelError, match="column 'c': not one row per id"):
        LabelTable(np.array(["a"]), (column,))
    with pytest.raises(LabelError, match="column 'c': two columns"):
        LabelTable(np.array(["a", "b"]), (column, column))


def test_a_table_shows_neither_ids_nor_labels() -> None:
    table = LabelTable.from_arrays([["SECRET-label"], ["b"]], ids=["SECRET-id", "x"])
    assert SECRET not in repr(table)
    assert SECRET not in str(table.columns[0])


# Arrays


@pytest.mark.parametrize(
    "labels",
    [
        np.array([[3, 0], [-1, 2], [1, -7]]),
        np.array([[3, 0], [-1, 2], [1, -7]], dtype=np.int8),
        np.array([[3.0, 0.0], [np.nan, 2.0], [1.0, -7.0]]),
        np.array([[3.0, 0.0], [np.nan, 2.0], [1.0, -7.0]], dtype=np.float16),
        np.array([[3, 0], [None, 2], [1, float("nan")]], dtype=object),
        np.array([[np.int64(3), 0.0], [pd.NA, np.float32(2)], [True, None]], dtype=object),
        np.ma.masked_equal(np.array([[3, 0], [99, 2], [1, 99]]), 99),
        [[3, 0], [None, 2], [1, None]],
        ((3, 0), (-1, 2.0), (1, "")),
        [np.array([3, 0]), np.array([-1, 2]), np.array([1, -1])],
        [[Decimal(3), 0], [Decimal("NaN"), 2], [Decimal("1.0"), -1]],
        pd.DataFrame({"c0": [3, None, 1], "c1": [0, 2, None]}),
        pd.DataFrame({"c0": [3, None, 1], "c1": [0, 2, None]}, dtype="Int64"),
        pd.DataFrame({"c0": [3, None, 1], "c1": [0, 2, None]}).astype("category"),
        pd.DataFrame({"c0": [3, None, 1], "c1": [0, 2, None]}, dtype=object),
        pd.DataFrame({"c0": [3, None, 1], "c1": [0, 2, None]}, dtype=pd.ArrowDtype(pa.int8())),
        pl.DataFrame({"c0": [3, None, 1], "c1": [0, 2, -1]}),
        pl.DataFrame({"c0": [3.0, float("nan"), 1], "c1": [0.0, 2.0, None]}),
        pa.table({"c0": [3, None, 1], "c1": [0, 2, -1]}),
        pa.table({"c0": pa.array([3, None, 1]).dictionary_encode(), "c1": pa.array([0.0, 2.0, None])}),
        pa.record_batch({"c0": pa.array([3, None, 1]), "c1": pa.array([0, 2, -1], pa.int16())}),
    ],
)
def test_integers_of_every_kind_give_the_same_table(labels: Any) -> None:
    table = LabelTable.from_arrays(labels)
    assert [column.name for column in table.columns] == ["c0", "c1"]
    assert table.ids.tolist() == ["0", "1", "2"]
    assert labels_of(table.column("c0")) == [3, None, 1]
    assert labels_of(table.column("c1")) == [0, 2, None]
    assert all(type(category) is int for column in table.columns for category in column.categories)
    assert table.column("c0").codes is not None
    assert table.column("c0").codes.dtype == np.int32  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "labels",
    [
        np.array([["b", "x"], ["", "x"], ["a", " "]]),
        np.array([[b"b", b"x"], [b"", b"x"], [b"a", b" "]]),
        np.array([["b ", "x"], [None, " x"], ["a", float("nan")]], dtype=object),
        [["b", "x"], [None, "x"], ["a", None]],
        pd.DataFrame({"s": ["b", None, "a"], "t": ["x", "x", None]}),
        pd.DataFrame({"s": ["b", None, "a"], "t": ["x", "x", None]}, dtype=object),
        pd.DataFrame({"s": ["b", None, "a"], "t": ["x", "x", None]}, dtype="category"),
        pl.DataFrame({"s": ["b", None, "a"], "t": ["x", "x", None]}),
        pl.DataFrame({"s": ["b", None, "a"], "t": ["x", "x", None]}).cast(pl.Categorical),
        pa.table({"s": ["b", None, "a"], "t": pa.array(["x", "x", None]).dictionary_encode()}),
    ],
)
def test_names_of_every_kind_give_the_same_table(labels: Any) -> None:
    table = LabelTable.from_arrays(labels, columns=["s", "t"])
    assert labels_of(table.column("s")) == ["b", None, "a"]
    assert labels_of(table.column("t")) == ["x", "x", None]


@pytest.mark.parametrize(
    "series",
    [
        [4, None, 2],
        np.array([4, -1, 2]),
        pd.Series([4, None, 2]),
        pl.Series([4, None, 2]),
        pa.array([4, None, 2]),
    ],
)
def test_one_dimension_is_one_column(series: Any) -> None:
    table = LabelTable.from_arrays(series)
    assert labels_of(table.column("c0")) == [4, None, 2]


def test_labels_keep_their_type_column_by_column() -> None:
    table = LabelTable.from_arrays([[1, "1", True, 1], [2.0, "2", False, "a"], [True, "", None, True]])
    assert labels_of(table.column("c0")) == [1, 2, 1]
    assert labels_of(table.column("c1")) == ["1", "2", None]
    assert labels_of(table.column("c2")) == [1, 0, None]
    assert labels_of(table.column("c3")) == ["1", "a", "True"]


def test_text_is_stripped_and_normalised() -> None:
    table = LabelTable.from_arrays([["e\u0301 "], ["\u00e9"]], ids=[" e\u0301", "f"], columns=[" e\u0301 "])
    assert table.ids.tolist() == ["\u00e9", "f"]
    assert table.columns[0].name == "\u00e9"
    assert table.columns[0].categories == ("\u00e9",)


def test_noise_can_be_kept() -> None:
    for labels in (np.array([-1, 3]), np.array([-1.0, 3.0]), [-1, 3]):
        assert LabelTable.from_arrays(labels, noise="keep").columns[0].categories == (-1, 3)
        assert LabelTable.from_arrays(labels).columns[0].categories == (3,)
    with pytest.raises(LabelError, match="expected 'missing' or 'keep'"):
        LabelTable.from_arrays([1], noise="drop")  # type: ignore[arg-type]


def test_integers_beyond_int64_are_names_and_negative_ones_stay_missing() -> None:
    for labels in (np.array([2**63, 7], np.uint64), [2**63, 7], [Decimal(2**63), Decimal(7)]):
        assert labels_of(LabelTable.from_arrays(labels).columns[0]) == [str(2**63), "7"]
    assert labels_of(LabelTable.from_arrays([2**63, -1]).columns[0]) == [str(2**63), None]
    assert labels_of(LabelTable.from_arrays([-(2**63), 2**63 - 1], noise="keep").columns[0]) == [
        -(2**63),
        2**63 - 1,
    ]
    # pandas holds nullable integers exactly; a detour through floats would merge these two.
    exact = LabelTable.from_arrays(pd.DataFrame({"c": [2**60, None, 2**60 + 1]}, dtype="Int64"))
    assert exact.columns[0].categories == (2**60, 2**60 + 1)


def test_ids_of_every_kind() -> None:
    for ids in (
        [7, 8],
        np.array([7, 8]),
        ["7", " 8"],
        pd.Index([7, 8]),
        pl.Series(["7", "8"]),
        pa.array([7, 8]),
    ):
        assert LabelTable.from_arrays([1, 2], ids=ids).ids.tolist() == ["7", "8"]
    assert LabelTable.from_arrays([1, 2], ids=[7.0, 2**80]).ids.tolist() == ["7", str(2**80)]
    assert LabelTable.from_arrays([1], ids=[Decimal(10**35 + 1)]).ids.tolist() == [str(10**35 + 1)]


def test_classifiers_by_name_or_glob() -> None:
    names = ["v1", "v2", "w[1]", "V3"]
    table = LabelTable.from_arrays([[1, 1, 1, 1]], columns=names, classifiers=["v*", "w[1]"])
    assert [column.name for column in table.classifiers] == ["v1", "v2", "w[1]"]
    assert len(LabelTable.from_arrays([[1, 1, 1, 1]], columns=names, classifiers="V3").classifiers) == 1


def test_a_table_passes_through() -> None:
    table = LabelTable.from_arrays([1])
    assert LabelTable.from_arrays(table) is table


def test_a_column_without_labels_is_allowed_in_arrays() -> None:
    for labels in ([[1, None]], np.array([[1, -1]]), np.array([[1, np.nan]])):
        column = LabelTable.from_arrays(labels).column("c1")
        assert column.categories == ()
        assert not column.observed.any()


@pytest.mark.parametrize(
    ("labels", "options", "row", "column", "problem"),
    [
        (np.array([[1.0, 2.0], [1.0, 0.137]]), {}, 1, "c1", "fractional"),
        ([[1, 2], [1, 0.137]], {}, 1, "c1", "fractional"),
        ([[1, 2], [1, Decimal("0.137")]], {}, 1, "c1", "fractional"),
        (np.array([[1.0], [np.inf]]), {}, 1, "c0", "infinite"),
        ([[1.0], [-float("inf")]], {}, 1, "c0", "infinite"),
        (np.array([1.0, 2.0**60 + 137e3]), {}, 1, "c0", "2**53"),
        ([1.0, 2.0**60], {}, 1, "c0", "2**53"),
        ([[1], [[SECRET]]], {}, 1, "c0", "container"),
        ([["a"], [("SECRET", [])]], {}, 1, "c0", "container"),
        ([[1, 2], [1]], {}, 1, None, "as many labels"),
        ([[1, 2], 1], {}, 1, None, "as many labels"),
        ([1, 2], {"ids": ["a", " "]}, 1, "ids", "empty id"),
        ([1, 2], {"ids": ["a", None]}, 1, "ids", "empty id"),
        ([1, 2, 3], {"ids": ["a", SECRET, SECRET + " "]}, 2, "ids", "row 1"),
        ([1, 2], {"ids": ["a", 0.137]}, 1, "ids", "not an integer"),
        ([1, 2], {"ids": ["a", ["SECRET"]]}, 1, "ids", "container"),
        ([1, 2], {"ids": ["a", "SECRET\0"]}, 1, "ids", "not text"),
        ([1, 2], {"ids": ["a", "SECRET\ud800"]}, 1, "ids", "not text"),
        ([1, 2], {"ids": ["a", SECRET * 1000]}, 1, "ids", "longer than"),
        ([1, 2], {"ids": [SECRET]}, None, None, "1 ids for 2 objects"),
        ([1, 2], {"columns": ["a", "b"]}, None, None, "2 column names for 1 columns"),
        ([[1, 2]], {"columns": ["a", "a"]}, None, "a", "two columns"),
        ([[1, 2]], {"columns": ["a", " "]}, None, None, "column 1 has an empty name"),
        ([[1, 2]], {"classifiers": ["v*"]}, None, "v*", "unknown column"),
        ([[-1, None]], {}, None, None, "no label at all"),
        (np.empty((0, 2), int), {}, None, None, "no rows"),
        ([], {}, None, None, "no rows"),
        (np.empty((2, 0), int), {}, None, None, "no columns"),
        (pd.DataFrame(index=[1, 2]), {}, None, None, "no columns"),
        (np.zeros((2, 2, 2), int), {}, None, None, "3 dimensions"),
        (np.zeros((), int), {}, None, None, "0 dimensions"),
        (np.zeros(2, complex), {}, None, None, "complex128"),
        (SECRET, {}, None, None, "found str"),
        (pl.LazyFrame({"a": [1]}), {}, None, None, "found LazyFrame"),
    ],
)
def test_refusals_of_arrays(
    labels: Any, options: dict[str, Any], row: int | None, column: str | None, problem: str
) -> None:
    with pytest.raises(LabelError) as caught:
        LabelTable.from_arrays(labels, **options)
    message = str(caught.value)
    assert problem in message
    assert message.startswith("labels")
    assert (caught.value.row, caught.value.column) == (row, column)
    assert row is None or f"row {row}" in message
    assert SECRET not in message
    assert "137" not in message


def test_importing_the_table_imports_no_table_library() -> None:
    unwanted = "{'pandas', 'polars', 'pyarrow', }"
    code = f"import sys, ce.labels; sys.exit(bool({unwanted} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, env={"PYTHONPATH": ":".join(sys.path)}).returncode
        == 0
    )


cells = st.one_of(st.none(), st.integers(0, 5), st.integers(10**17, 10**17 + 2))
names = st.one_of(st.none(), st.sampled_from(["a", "b", "ü", "10", "x y"]))


@given(
    st.integers(1, 8).flatmap(
        lambda n: st.lists(
            st.one_of(st.lists(cells, min_size=n, max_size=n), st.lists(names, min_size=n, max_size=n)),
            min_size=1,
            max_size=4,
        )
    )
)
@settings(max_examples=60, deadline=None)
def test_tables_of_all_libraries_are_equal(columns: list[list[int | str | None]]) -> None:
    named = {f"c{at}": values for at, values in enumerate(columns)}
    if all(value is None for values in columns for value in values):
        columns[0][0] = 1
    expected = LabelTable.from_arrays([list(row) for row in zip(*columns, strict=True)])
    for values, column in zip(columns, expected.columns, strict=True):
        assert labels_of(column) == values
    frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in named.items()})
    arrow = pa.table(named)
    polars = pl.DataFrame(named)
    for table in (
        frame,
        arrow.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype(), pa.string(): pd.StringDtype()}.get),
        frame.astype("category"),
        polars,
        arrow,
        arrow.to_batches()[0],
        pa.table({name: arrow[name].dictionary_encode() for name in named}),
        arrow.to_pandas(types_mapper=pd.ArrowDtype),
    ):
        assert_same(LabelTable.from_arrays(table), expected)


# Equal rows


@given(
    st.integers(0, 30).flatmap(
        lambda n: st.tuples(
            hnp.arrays(np.int32, st.tuples(st.just(n), st.integers(0, 3)), elements=st.integers(-1, 1)),
            hnp.arrays(np.float64, st.tuples(st.just(n), st.integers(0, 2)), elements=st.sampled_from([0.5, np.nan])),
            hnp.arrays(np.bool_, (n, 1)),
        )
    ),
    st.sampled_from([label_table._SPREAD, np.uint64(0)]),
)
@settings(max_examples=100, deadline=None)
def test_equal_rows_reconstructs_every_row(parts: tuple[np.ndarray, ...], spread: np.uint64) -> None:
    """With a spread of zero all rows have the same digest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_table, "_SPREAD", spread)
        first, inverse, weight = equal_rows(parts)
    n = len(parts[0])
    for part in parts:
        np.testing.assert_array_equal(part[first][inverse], part)
    keys = [b"".join(part[at].tobytes() for part in parts) for at in range(n)]
    assert len(first) == len(set(keys))
    assert first.tolist() == sorted(keys.index(key) for key in set(keys))
    np.testing.assert_array_equal(weight, np.bincount(inverse, minlength=len(first)))
    assert weight.sum() == n
    assert [str(array.dtype) for array in (first, inverse, weight)] == ["int64", "int64", "int64"]


@given(
    hnp.arrays(np.int64, st.integers(1, 40), elements=st.integers(-3, 3) | st.integers(-(2**62), 2**62)),
    st.integers(-(2**62), 2**62),
)
@settings(max_examples=100, deadline=None)
def test_integers_become_the_codes_of_their_sorted_values(labels: np.ndarray, shift: int) -> None:
    column = LabelTable.from_arrays(labels // 2 + shift // 2, noise="keep").columns[0]
    categories, codes = np.unique(labels // 2 + shift // 2, return_inverse=True)
    assert column.categories == tuple(categories.tolist())
    np.testing.assert_array_equal(column.codes, codes)


def test_equal_rows_of_views_and_of_nothing() -> None:
    wide = np.arange(24).reshape(4, 6) % 2
    first, inverse, weight = equal_rows([wide[:, ::2], wide.astype(np.float32)[:, 1::2]])
    assert (first.tolist(), inverse.tolist(), weight.tolist()) == ([0], [0, 0, 0, 0], [4])
    first, inverse, weight = equal_rows([np.empty((3, 0))])
    assert (first.tolist(), inverse.tolist(), weight.tolist()) == ([0], [0, 0, 0], [3])
