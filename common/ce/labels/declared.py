"""Declared categories: what a site says, apart from its labels, that the labels of a column may be.

Randomised response draws from them, so that what is drawn, and what is enrolled, does not depend on the labels. They
are written in client.toml (`labels.categories`), as whole numbers if the labels of the column are whole numbers, else
as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ce.errors import ConfigError, LabelError
from ce.labels.label_table import LabelTable
from ce.labels.names import clean_text, is_text
from ce.labels.table import Categories, Column
from ce.labels.values import INT64_MAX, INT64_MIN

#: The key of client.toml.
KEY = "labels.categories"


def declared_categories(given: Mapping[str, Iterable[Any]]) -> dict[str, Categories]:
    """The declaration by column: names cleaned like those of a label file, categories sorted.

    Raises ConfigError, which names the column and never a category.
    """
    declared: dict[str, Categories] = {}
    for written, values in given.items():
        name = clean_text(written)
        if not name or not is_text(name) or name in declared:
            raise ConfigError(f"{KEY}: expected different names of columns, got {written!r}")
        declared[name] = _categories(name, list(values))
    return declared


def check_labels(table: LabelTable, declared: Mapping[str, Categories]) -> None:
    """Raises LabelError, which names the column, for a label that is not declared or a declared column that is missing.

    A column that is not declared may have any labels.
    """
    for name, categories in declared.items():
        _recoded(table.column(name), categories, table.source)


def with_declared(table: LabelTable, declared: Mapping[str, Categories]) -> LabelTable:
    """The same labels in the declared categories, all of them, whether or not a label uses them."""
    columns = tuple(
        _recoded(column, declared[column.name], table.source) if column.name in declared else column
        for column in table.columns
    )
    return replace(table, columns=columns)


def categories_in_use(tables: Iterable[LabelTable], classes: Categories) -> dict[str, Categories]:
    """The declaration that fits labels on one machine: of a clustering all categories that a table has, of a classifier
    the classes."""
    found: dict[str, set[Any]] = {}
    for table in tables:
        for column in table.columns:
            here = column.categories if column.kind == "clustering" else classes
            found.setdefault(column.name, set()).update(here)
    for name, used in found.items():
        if len({type(category) for category in used}) > 1:
            raise LabelError("whole numbers in one table and text in another: write them alike", column=name)
    return {name: tuple(sorted(used)) for name, used in found.items()}


def _categories(column: str, values: list[Any]) -> Categories:
    if values and all(type(value) is int for value in values):
        if not all(INT64_MIN <= value <= INT64_MAX for value in values):
            raise ConfigError(f"{KEY}, column {column!r}: whole numbers of more than 64 bits are written as text")
        categories = values
    elif values and all(isinstance(value, str) for value in values):
        categories = [clean_text(value) for value in values]
    else:
        raise ConfigError(f"{KEY}, column {column!r}: expected a list of whole numbers, or a list of texts")
    if len(set(categories)) < len(categories) or "" in categories:
        raise ConfigError(f"{KEY}, column {column!r}: a category is empty, or is listed twice")
    return tuple(sorted(categories))


def _recoded(column: Column, categories: Categories, source: str) -> Column:
    if categories and isinstance(categories[0], str):
        # Whether a column is read as text depends on its labels: one that is declared as text always is.
        column = replace(column, categories=tuple(map(str, column.categories)))
    elif any(isinstance(category, str) for category in column.categories):
        raise LabelError(
            f"has a label that is text, and its declared categories ({KEY} in client.toml) are whole numbers: write "
            "both alike",
            source=source,
            column=column.name,
        )
    if set(column.categories) - set(categories):
        raise LabelError(
            f"has a label that is not among its declared categories ({KEY} in client.toml): correct the label, or "
            "declare its category",
            source=source,
            column=column.name,
        )
    return column.recode(categories)
