"""Counting: the pair tables of labels that are in one place.

Labels are one-hot rows (a missing label is a row of zeros, a soft label its probabilities), and the tables are their
products. Rows are taken in stretches, so that memory does not grow with the objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ce.cancellation import check_cancelled
from ce.errors import InputError
from ce.pair_tables.layout import Reals, TableLayout

#: Numbers in one stretch of one-hot rows: 32 MB. Products of so few rows are exact in float32.
_STRETCH, _LEAST_ROWS = 1 << 23, 256

#: Labels of one column: (n,) codes with -1 = missing, or (n, k_j) fractions with NaN or zeros = missing.
ColumnLabels = NDArray[Any]
Labels = NDArray[Any] | Sequence[ColumnLabels]


def pair_tables(labels: Labels, layout: TableLayout) -> Reals:
    """(D, D) how many objects have label a in one column and label b in another; 0 within a column.

    `labels`: (n, M) codes with -1 = missing, or one array per column: (n,) codes or (n, k_j) fractions.
    """
    tables = np.zeros((layout.width, layout.width))
    for _, rows in one_hot_stretches(labels, layout):
        tables += rows.T @ rows
    tables[layout.column_of[:, None] == layout.column_of[None]] = 0.0
    return tables


def one_hot_stretches(labels: Labels, layout: TableLayout) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Stretches of objects as (rows, D) arrays: float32 zeros and ones, float64 where a column is soft."""
    columns = checked_columns(labels, layout)
    soft = any(column.ndim == 2 for column in columns)
    stretch = max(_STRETCH // layout.width, _LEAST_ROWS)
    n = len(columns[0])
    for begin in range(0, n, stretch):
        check_cancelled()
        where = slice(begin, min(begin + stretch, n))
        rows = np.zeros((where.stop - begin, layout.width), dtype=np.float64 if soft else np.float32)
        for column, at, k in zip(columns, layout.offsets, layout.categories, strict=True):
            part = column[where]
            if column.ndim == 2:
                rows[:, at : at + k] = np.nan_to_num(part)
            else:
                seen = np.flatnonzero(part >= 0)
                rows[seen, at + part[seen]] = 1
        yield where, rows


def checked_columns(labels: Labels, layout: TableLayout) -> list[ColumnLabels]:
    """One array per column. Raises InputError for codes or shapes that the layout does not have."""
    if isinstance(labels, np.ndarray):
        if labels.ndim != 2 or labels.shape[1] != layout.n_columns:
            raise InputError(f"codes: expected (objects, {layout.n_columns}), got shape {labels.shape}")
        columns = [np.ascontiguousarray(labels[:, j]) for j in range(layout.n_columns)]
    else:
        columns = [np.asarray(column) for column in labels]
    if len(columns) != layout.n_columns or len({len(column) for column in columns}) != 1:
        raise InputError(f"labels: expected {layout.n_columns} columns of equal length, got {len(columns)} columns")
    for name, column, k in zip(layout.names, columns, layout.categories, strict=True):
        if column.ndim == 2 and column.shape[1] != k:
            raise InputError(f"column {name}: expected fractions of {k} categories, got {column.shape[1]}")
        if column.ndim == 1 and (column.dtype.kind not in "iu" or column.max(initial=-1) >= k):
            raise InputError(f"column {name}: expected whole-number codes below {k}, negative where missing")
    return columns
