"""Declared categories: read like labels, checked against them, and named in errors by column only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ce
from ce.errors import ConfigError, LabelError, UnknownColumn
from ce.labels.declared import categories_in_use, check_labels, declared_categories, with_declared


def test_a_declaration_is_sorted_and_cleaned_like_a_label_file() -> None:
    given = {" region ": [3, 1, 2], "segment": [" b", "a\u0301"]}
    assert declared_categories(given) == {"region": (1, 2, 3), "segment": ("b", "\u00e1")}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"a": []}, "column 'a': expected a list of whole numbers, or a list of texts"),
        ({"a": [1, "canary"]}, "column 'a': expected a list of whole numbers, or a list of texts"),
        ({"a": [True]}, "column 'a': expected a list of whole numbers, or a list of texts"),
        ({"a": [0.5]}, "column 'a': expected a list of whole numbers, or a list of texts"),
        ({"a": ["canary", " canary"]}, "column 'a': a category is empty, or is listed twice"),
        ({"a": ["canary", " "]}, "column 'a': a category is empty, or is listed twice"),
        ({"a": [7, 7]}, "column 'a': a category is empty, or is listed twice"),
        ({"a": [2**63]}, "column 'a': whole numbers of more than 64 bits are written as text"),
        ({"a": [1], " a": [2]}, "expected different names of columns, got ' a'"),
        ({"": [1]}, "expected different names of columns, got ''"),
    ],
)
def test_what_is_no_declaration_is_refused(given: dict[str, list[Any]], sentence: str) -> None:
    with pytest.raises(ConfigError, match=r"labels\.categories") as error:
        declared_categories(given)
    assert str(error.value).endswith(sentence)
    assert "canary" not in str(error.value)


@pytest.mark.parametrize("cells", [["1", "2", "x"], ["1", "2"], ["x", ""]])
def test_whether_a_column_is_text_follows_from_its_declaration_and_not_from_its_labels(
    tmp_path: Path, cells: list[str]
) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("id,a\n" + "".join(f"o{i},{cell}\n" for i, cell in enumerate(cells)))
    (column,) = with_declared(ce.LabelTable.from_csv(path), {"a": ("1", "2", "x")}).columns
    assert column.categories == ("1", "2", "x")
    assert column.codes is not None
    assert [column.categories[code] if code >= 0 else "" for code in column.codes] == cells


def test_labels_outside_and_columns_that_are_not_there_are_errors() -> None:
    table = ce.LabelTable.from_arrays([["canary", 1], ["b", 2]], columns=["a", "n"])
    check_labels(table, {"a": ("b", "canary", "unused"), "n": (1, 2, 3)})
    check_labels(table, {})
    with pytest.raises(LabelError, match=r"column 'n': has a label that is not among its declared categories"):
        check_labels(table, {"n": (1, 3)})
    with pytest.raises(LabelError, match=r"column 'a': has a label that is text, and its declared .* whole numbers"):
        check_labels(table, {"a": (1, 2)})
    with pytest.raises(UnknownColumn, match="'other'"):
        check_labels(table, {"other": (1,)})


def test_on_one_machine_the_declaration_may_be_what_the_tables_have() -> None:
    one = ce.LabelTable.from_arrays([[0, 7], [2, 7]], columns=["a", "v"], classifiers=["v"])
    two = ce.LabelTable.from_arrays([[5]], columns=["a"])
    assert categories_in_use([one, two], (7, 8)) == {"a": (0, 2, 5), "v": (7, 8)}
    text = ce.LabelTable.from_arrays([["x"]], columns=["a"])
    with pytest.raises(LabelError, match=r"column 'a': whole numbers in one table and text in another"):
        categories_in_use([one, text], (7, 8))
