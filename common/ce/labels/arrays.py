"""Label tables from arrays, nested lists and the tables of pandas, polars and pyarrow.

The tables of these libraries are recognised by their attributes: none of the libraries is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ce.errors import LabelError
from ce.labels.names import clean_text, matching, refuse_unknown_noise
from ce.labels.table import LabelData, Noise
from ce.labels.values import Origin, array_column, object_ids

ARROW_NUMBERS = {
    "halffloat",
    "float",
    "double",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}


def read_arrays(
    labels: Any, ids: Any, columns: Iterable[object] | None, classifiers: Iterable[str], noise: Noise
) -> LabelData:
    """See `LabelTable.from_arrays`."""
    source = "labels"
    refuse_unknown_noise(noise)
    given_names, values = table_columns(labels)
    if columns is not None:
        given_names = [columns] if isinstance(columns, str) else list(columns)
    elif given_names is None:
        given_names = [f"c{at}" for at in range(len(values))]
    names = [clean_text(str(name)) for name in given_names]
    if len(names) != len(values):
        raise LabelError(f"{len(names)} column names for {len(values)} columns", source=source)
    if not values:
        raise LabelError("no columns: expected one per clustering or classifier", source=source)
    if not all(names):
        raise LabelError(f"column {names.index('')} has an empty name", source=source)
    n = len(values[0])
    if n == 0:
        raise LabelError("no rows: expected one per object", source=source)

    origin = Origin(source, range(n))
    if ids is None:
        checked_ids = np.arange(n).astype(np.str_)
    else:
        given_ids = series_values(ids)
        flat = isinstance(given_ids, np.ndarray) and given_ids.ndim == 1
        given_ids = given_ids.tolist() if flat else list(given_ids)
        if len(given_ids) != n:
            raise LabelError(f"{len(given_ids)} ids for {n} objects", source=source)
        checked_ids = object_ids(given_ids, origin, "ids")
    voting = matching(names, classifiers, source)
    table = LabelData(
        checked_ids,
        tuple(
            array_column(name, "classifier" if name in voting else "clustering", column, origin, noise)
            for name, column in zip(names, values, strict=True)
        ),
        source,
    )
    if not table.labelled.any():
        raise LabelError("no label at all: every cell is missing", source=source)
    return table


def table_columns(labels: Any) -> tuple[list[object] | None, list[Any]]:
    """The column names (None if there are none) and the values, column by column, of a table or array."""
    if hasattr(labels, "iloc") and hasattr(labels, "columns"):  # pandas
        return list(labels.columns), [series_values(labels.iloc[:, at]) for at in range(labels.shape[1])]
    if hasattr(labels, "get_columns"):  # polars
        return list(labels.columns), [series_values(series) for series in labels.get_columns()]
    if hasattr(labels, "to_pylist") and hasattr(labels, "schema"):  # pyarrow
        return list(labels.schema.names), [series_values(column) for column in labels.columns]
    array = series_values(labels)
    if not isinstance(array, np.ndarray):
        if not isinstance(array, list | tuple):
            problem = f"expected an array, nested lists or a table, found {type(labels).__name__}"
            raise LabelError(problem, source="labels")
        refuse_ragged(array)
        # As objects: numpy would turn [[1, "a"]] into text and [[2**60, 0.5]] into floats.
        array = np.array(array, dtype=object)
    if array.dtype.kind not in "biufOUST":
        raise LabelError(f"an array of {array.dtype} cannot hold labels", source="labels")
    if array.ndim == 1:
        array = array[:, np.newaxis]
    if array.ndim != 2:
        raise LabelError(f"expected (n, m) labels, found {array.ndim} dimensions", source="labels")
    return None, list(np.asarray(array).T)


def refuse_ragged(rows: Sequence[Any]) -> None:
    """Raise LabelError unless all nested lists have the same length. A flat list is one column."""
    widths = [len(row) if isinstance(row, list | tuple | np.ndarray) else None for row in rows]
    for at, width in enumerate(widths):
        if width != widths[0]:
            raise LabelError("not as many labels as in row 0", source="labels", row=at)


def series_values(series: Any) -> Any:
    """The values of one array: numbers as a numpy array where that loses nothing, otherwise Python values."""
    if isinstance(series, np.ma.MaskedArray):
        values = np.ma.getdata(series).astype(object)
        values[np.ma.getmaskarray(series)] = None
        return values
    if hasattr(series, "to_pylist"):  # pyarrow
        exact = series.null_count == 0 and str(series.type) in ARROW_NUMBERS
        return series.to_numpy() if exact else series.to_pylist()
    if hasattr(series, "null_count") and hasattr(series, "to_list"):  # polars
        exact = series.null_count() == 0 and (series.dtype.is_integer() or series.dtype.is_float())
        return series.to_numpy() if exact else series.to_list()
    if hasattr(series, "cat"):  # pandas, categorical: to_numpy would turn integers into floats if some are missing
        categories = [*series_values(series.cat.categories), None]
        return [categories[code] for code in series.cat.codes]
    if hasattr(series, "to_numpy"):  # pandas
        exact = isinstance(series.dtype, np.dtype) and series.dtype.kind in "biuf"
        return series.to_numpy() if exact else series.to_numpy(dtype=object)
    return np.asarray(series) if hasattr(series, "__array__") else series
