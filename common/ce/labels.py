"""The label table: one row per object, one column per base clustering or classifier.

Models, engine and commands read labels only from here. A column is hard (an object has one category or none)
or soft (an object has a probability for every category, or nothing). Categories are sorted integers or names,
and `codes` count into them: two sites agree on a code once they agree on the categories (`Column.recode`).

Text, of ids, names and labels alike, is stripped and Unicode-NFC-normalised: the same word typed on two
systems is the same object. What a table shows of itself (repr, errors) never includes an id or a label.
"""

from __future__ import annotations

import os
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ce.errors import LabelError

Kind = Literal["clustering", "classifier"]
Noise = Literal["missing", "keep"]
FilePath = str | os.PathLike[str]
Categories = tuple[int, ...] | tuple[str, ...]

# Floats at or beyond this no longer hold every integer: two labels could have become one on the way here.
FLOAT_LIMIT = 2**53
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
# One id of a megabyte (a quote that was never closed) would widen the array of all ids to that size.
ID_LENGTH = 1000
# The types of pandas.NA and pandas.NaT, by name: pandas is not imported.
PANDAS_MISSING = {"NAType", "NaTType"}

FRACTIONAL = (
    "a fractional number is not a label: labels are integers or names (probabilities: clf:NAME=CLASS columns)"
)
INFINITE = "an infinite number is not a label: leave the cell empty if the label is missing"
INEXACT = (
    "a float of 2**53 or more may have lost digits: give the labels of this column as integers or as text"
)


@dataclass(frozen=True, eq=False)
class Column:
    """The labels that one base clustering or classifier gave to n objects."""

    name: str
    kind: Kind
    categories: Categories = field(repr=False)  # sorted
    codes: NDArray[np.int32] | None = field(
        repr=False
    )  # (n,) index into categories, -1 = missing; None if soft
    probabilities: NDArray[np.float64] | None = field(
        repr=False
    )  # (n, categories), missing = NaN; None if hard

    def __post_init__(self) -> None:
        if (self.codes is None) == (self.probabilities is None):
            raise LabelError("a column has either codes or probabilities", column=self.name)

    @property
    def soft(self) -> bool:
        return self.codes is None

    @property
    def n_objects(self) -> int:
        return len(self.observed if self.codes is None else self.codes)

    @property
    def observed(self) -> NDArray[np.bool_]:
        """(n,) True where the object has a label in this column."""
        if self.codes is not None:
            return self.codes >= 0
        assert self.probabilities is not None
        return np.logical_not(np.isnan(self.probabilities).any(axis=1))

    def take(self, rows: Any) -> Column:
        """The given rows (indices, mask or slice), in the same categories."""
        return replace(
            self,
            codes=None if self.codes is None else self.codes[rows],
            probabilities=None if self.probabilities is None else self.probabilities[rows],
        )

    def recode(self, categories: Categories) -> Column:
        """The same labels, counted in a larger set of sorted categories."""
        position = {category: at for at, category in enumerate(categories)}
        target = np.array([position.get(category, -1) for category in self.categories], dtype=np.int32)
        absent = LabelError("the new categories lack one that this column uses", column=self.name)
        if self.codes is not None:
            codes = np.append(target, np.int32(-1))[self.codes]
            if np.any((codes < 0) & self.observed):
                raise absent
            return replace(self, categories=categories, codes=codes)
        assert self.probabilities is not None
        if np.any((target < 0) & (np.nansum(self.probabilities, axis=0) > 0)):
            raise absent
        probabilities = np.zeros((len(self.probabilities), len(categories)))
        probabilities[:, target[target >= 0]] = self.probabilities[:, target >= 0]
        probabilities[~self.observed] = np.nan
        return replace(self, categories=categories, probabilities=probabilities)


@dataclass(frozen=True, eq=False)
class LabelTable:
    """What one site knows: its objects and their labels."""

    ids: NDArray[np.str_] = field(repr=False)  # (n,) unique
    columns: tuple[Column, ...]
    source: str = "labels"

    def __post_init__(self) -> None:
        refuse_repeated([column.name for column in self.columns], self.source)
        for column in self.columns:
            if column.n_objects != self.n_objects:
                raise LabelError("not one row per id", source=self.source, column=column.name)

    @property
    def n_objects(self) -> int:
        return len(self.ids)

    @property
    def clusterings(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.kind == "clustering")

    @property
    def classifiers(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.kind == "classifier")

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """(n,) True where the object has at least one label."""
        found = np.zeros(self.n_objects, dtype=np.bool_)
        for column in self.columns:
            found |= column.observed
        return found

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        known = listed(column.name for column in self.columns)
        raise LabelError(f"unknown column; the columns are {known}", source=self.source, column=name)

    def select(self, rows: Any = None, columns: Iterable[str] | None = None) -> LabelTable:
        """Some objects (indices, mask or slice) and columns (names) in that order, in the same categories."""
        names = [columns] if isinstance(columns, str) else columns
        chosen = self.columns if names is None else tuple(self.column(name) for name in names)
        if rows is None:
            return replace(self, columns=chosen)
        try:
            index = np.arange(self.n_objects)[rows]
        except IndexError:
            problem = f"expected row indices or a mask for {self.n_objects} objects"
            raise LabelError(problem, source=self.source) from None
        if len(np.unique(index)) < len(index):
            raise LabelError("an object is selected twice: ids are unique", source=self.source)
        return replace(self, ids=self.ids[index], columns=tuple(column.take(index) for column in chosen))

    @classmethod
    def from_arrays(
        cls,
        labels: Any,
        ids: Any = None,
        columns: Iterable[object] | None = None,
        classifiers: Iterable[str] = (),
        *,
        noise: Noise = "missing",
    ) -> LabelTable:
        """A table from an (n, m) array, nested lists, or a pandas, polars or pyarrow table.

        Missing: a negative integer (unless noise="keep"), NaN, None, empty text. Text stays text, even "1".
        `classifiers` says which columns are classifiers, by name or glob. Rows in errors are 0-based.
        A LabelTable is returned as it is, whatever the other arguments.
        """
        if isinstance(labels, LabelTable):
            return labels
        return table_from_arrays(labels, ids, columns, classifiers, noise)

    @classmethod
    def from_csv(
        cls, path: FilePath, id: str = "id", classifiers: Iterable[str] = (), *, noise: Noise = "missing"
    ) -> LabelTable:
        """A table from a CSV or TSV label file, gzipped or not; see `ce.label_files`."""
        from ce import label_files

        return label_files.read_csv(path, id, classifiers, noise)

    @classmethod
    def from_parquet(
        cls, path: FilePath, id: str = "id", classifiers: Iterable[str] = (), *, noise: Noise = "missing"
    ) -> LabelTable:
        """A table from a Parquet label file (needs pyarrow); see `ce.label_files`."""
        from ce import label_files

        return label_files.read_parquet(path, id, classifiers, noise)

    @classmethod
    def from_file(
        cls, path: FilePath, id: str = "id", classifiers: Iterable[str] = (), *, noise: Noise = "missing"
    ) -> LabelTable:
        """A table from a label file: Parquet if its name ends in .parquet or .pq, else CSV or TSV."""
        parquet = os.fspath(path).lower().endswith((".parquet", ".pq"))
        read = cls.from_parquet if parquet else cls.from_csv
        return read(path, id, classifiers, noise=noise)


def equal_rows(parts: Sequence[NDArray[Any]]) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.int64]]:
    """Groups the rows that are equal, byte for byte, in all `parts`: (n, *) arrays with the same n.

    Returns (first, inverse, weight): the first row of each group, each row's group, each group's size. Groups
    are in the order of their first rows. A model computes on `part[first]` with `weight`, and spreads its
    results by `[inverse]`.
    """
    n = len(parts[0])
    blocks = [
        np.ascontiguousarray(part).reshape(n, part[:1].size).view(np.uint8) for part in parts if part.size
    ]
    width = sum(block.shape[1] for block in blocks)
    raw = np.concatenate(blocks, axis=1).tobytes() if blocks else b""
    _, inverse = factorise(raw[at * width : (at + 1) * width] for at in range(n))
    weight = np.bincount(inverse).astype(np.int64)
    # Assigned backwards, so that the first row of a group is the one that stays.
    first = np.empty(len(weight), dtype=np.intp)
    first[inverse[::-1]] = np.arange(n - 1, -1, -1)
    return first, inverse, weight


# What arrays and label files share: text, ids, names, and a hard column from its values.


@dataclass(frozen=True)
class Origin:
    """Where a table comes from, and the number under which a person finds each of its rows."""

    source: str
    rows: Sequence[int]

    def error(self, problem: str, at: int, column: str) -> LabelError:
        return LabelError(problem, source=self.source, row=self.rows[at], column=column)


@dataclass(frozen=True, slots=True)
class Reading:
    """One value: its text (None = missing) and, if it is a number, the integer it is or why it is none."""

    text: str | None
    whole: int | None = None
    problem: str | None = None


def clean_text(text: str) -> str:
    text = text.strip()
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def listed(names: Iterable[str]) -> str:
    """Column names for an error message."""
    known = [repr(name) for name in names]
    return ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")


def refuse_repeated(names: Sequence[str], source: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise LabelError("two columns have this name: rename one", source=source, column=name)
        seen.add(name)


def refuse_unknown_noise(noise: str) -> None:
    if noise not in ("missing", "keep"):
        raise LabelError(f"unknown noise {noise!r}: expected 'missing' or 'keep'")


def matching(names: Sequence[str], patterns: Iterable[str], source: str) -> set[str]:
    """The names that a pattern (a name or a glob) picks; every pattern must pick one."""
    picked: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        hits = {name for name in names if name == pattern or fnmatchcase(name, pattern)}
        if not hits:
            problem = f"unknown column: no column matches this classifier; the columns are {listed(names)}"
            raise LabelError(problem, source=source, column=pattern)
        picked |= hits
    return picked


def factorise(values: Iterable[Hashable]) -> tuple[list[Any], NDArray[np.intp]]:
    """The distinct values in order of appearance, and for every value its place among them."""
    place: defaultdict[Hashable, int] = defaultdict()
    place.default_factory = place.__len__
    inverse = np.fromiter(map(place.__getitem__, values), dtype=np.intp)
    return list(place), inverse


def read_value(value: object) -> Reading:
    """A Python or numpy value, as from_arrays understands it."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value).__name__ in PANDAS_MISSING:
        return Reading(None)
    if isinstance(value, str):
        return Reading(clean_text(value) or None)
    if isinstance(value, bytes):
        return Reading(clean_text(value.decode("utf-8", errors="backslashreplace")) or None)
    if isinstance(value, int):
        return Reading(str(value), whole=int(value))
    if isinstance(value, float | np.floating):
        reading = read_decimal(Decimal(float(value)), str(value))
        inexact = reading.whole is not None and abs(reading.whole) >= FLOAT_LIMIT
        return Reading(reading.text, problem=INEXACT) if inexact else reading
    if isinstance(value, Decimal):
        return read_decimal(value, str(value))
    return Reading(clean_text(str(value)) or None)


def read_decimal(value: Decimal, text: str) -> Reading:
    """A number that need not be an integer."""
    if value.is_nan():
        return Reading(None)
    if not value.is_finite():
        return Reading(text, problem=INFINITE)
    if value != value.to_integral_value():
        return Reading(text, problem=FRACTIONAL)
    if value and value.adjusted() > 30:
        # The integer of 1e999999 would fill memory; all that matters is that it exceeds int64, and its sign.
        value = Decimal(2**64).copy_sign(value)
    return Reading(text, whole=int(value) if value else 0)


def hard_column(
    name: str,
    kind: Kind,
    values: Iterable[Hashable],
    read: Callable[[Any], Reading],
    origin: Origin,
    noise: Noise,
) -> Column:
    """A column of integers if every value is one, else of names; each distinct value is read once."""
    distinct, inverse = factorise(values)
    readings = [read(value) for value in distinct]
    labels: list[Any] = [reading.text for reading in readings]
    if all(r.text is None or r.whole is not None or r.problem is not None for r in readings):
        for at, reading in enumerate(readings):
            if reading.problem is not None:
                raise origin.error(reading.problem, int(np.argmax(inverse == at)), name)
        # Beyond int64 the text is the label; a negative number means missing all the same.
        as_integers = all(r.whole is None or INT64_MIN <= r.whole <= INT64_MAX for r in readings)
        for at, reading in enumerate(readings):
            if reading.whole is not None:
                missing = reading.whole < 0 and noise == "missing"
                labels[at] = None if missing else reading.whole if as_integers else reading.text
    categories = tuple(sorted({label for label in labels if label is not None}))
    position = {category: at for at, category in enumerate(categories)}
    codes = np.array([position.get(label, -1) for label in labels], dtype=np.int32)
    return Column(name, kind, categories, codes[inverse], None)


def refuse_containers(values: Iterable[Any], origin: Origin, column: str) -> None:
    for at, value in enumerate(values):
        if value.__hash__ is None or isinstance(value, tuple):
            raise origin.error("a list or another container: expected one value per cell", at, column)


def array_column(name: str, kind: Kind, values: Any, origin: Origin, noise: Noise) -> Column:
    """A hard column from a numpy array or a list; the same result as value by value, faster for numbers."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf":
        values = values.tolist() if isinstance(values, np.ndarray) else values
        refuse_containers(values, origin, name)
        # 1, 1.0 and True are equal as keys and different as text.
        typed = [(type(value), value) for value in values]
        return hard_column(name, kind, typed, lambda key: read_value(key[1]), origin, noise)
    present = np.ones(len(values), dtype=np.bool_)
    if values.dtype.kind == "f":
        floats = values.astype(np.float64)
        present = ~np.isnan(floats)
        wrong = present & ~((np.abs(floats) < FLOAT_LIMIT) & (floats == np.floor(floats)))
        if wrong.any():
            at = int(np.argmax(wrong))
            raise origin.error(read_value(floats[at]).problem or FRACTIONAL, at, name)
        values = np.where(present, floats, -1)
    elif values.dtype.kind == "u" and values.max() > INT64_MAX:
        return hard_column(name, kind, values.tolist(), read_value, origin, noise)
    whole = values.astype(np.int64)
    if noise == "missing":
        present &= whole >= 0
    categories, found = np.unique(whole[present], return_inverse=True)
    codes = np.full(len(whole), -1, dtype=np.int32)
    codes[present] = found
    return Column(name, kind, tuple(categories.tolist()), codes, None)


def object_ids(values: Sequence[Any], origin: Origin, column: str) -> NDArray[np.str_]:
    """The ids as text, checked: none missing, none twice. Integers become their decimals."""
    refuse_containers(values, origin, column)
    seen: dict[str, int] = {}
    for at, value in enumerate(values):
        reading = Reading(clean_text(value) or None) if type(value) is str else read_value(value)
        if reading.text is None:
            raise origin.error("empty id: every object needs one", at, column)
        if reading.problem is not None:
            raise origin.error("this id is a number but no integer: give ids as text", at, column)
        # 7 and 7.0 are one id; beyond int64 `whole` may not be exact.
        exact = reading.whole is not None and INT64_MIN <= reading.whole <= INT64_MAX
        text = str(reading.whole) if exact else reading.text
        if len(text) > ID_LENGTH:
            raise origin.error(f"an id longer than {ID_LENGTH} characters", at, column)
        # numpy drops a NUL at the end of a text, and half a surrogate pair cannot be sent or written.
        if not text.isprintable() and any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text):
            raise origin.error("an id with a character that is not text", at, column)
        other = seen.setdefault(text, at)
        if other != at:
            raise origin.error(f"the same id as in row {origin.rows[other]}: ids are unique", at, column)
    return np.array(list(seen), dtype=np.str_)


# Arrays and tables of other libraries, recognised by what they can do: none of them is imported.

ARROW_NUMBERS = {
    "halffloat",
    "float",
    "double",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}


def table_from_arrays(
    labels: Any, ids: Any, columns: Iterable[object] | None, classifiers: Iterable[str], noise: Noise
) -> LabelTable:
    source = "labels"
    refuse_unknown_noise(noise)
    own_names, values = table_columns(labels)
    if columns is not None:
        own_names = [columns] if isinstance(columns, str) else list(columns)
    elif own_names is None:
        own_names = [f"c{at}" for at in range(len(values))]
    names = [clean_text(str(name)) for name in own_names]
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
        given = series_values(ids)
        given = given.tolist() if isinstance(given, np.ndarray) and given.ndim == 1 else list(given)
        if len(given) != n:
            raise LabelError(f"{len(given)} ids for {n} objects", source=source)
        checked_ids = object_ids(given, origin, "ids")
    voting = matching(names, classifiers, source)
    table = LabelTable(
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
    """The names (None if it has none) and the values, column by column, of a table or array."""
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
    """Nested lists must be rows of one length; a flat list is one column."""
    widths = [len(row) if isinstance(row, list | tuple | np.ndarray) else None for row in rows]
    for at, width in enumerate(widths):
        if width != widths[0]:
            raise LabelError("not as many labels as in row 0", source="labels", row=at)


def series_values(series: Any) -> Any:
    """The values of one array: numbers as a numpy array where that loses nothing, else Python values."""
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
    if hasattr(
        series, "cat"
    ):  # pandas, categorical: it would pass integers through floats if some are missing
        categories = [*series_values(series.cat.categories), None]
        return [categories[code] for code in series.cat.codes]
    if hasattr(series, "to_numpy"):  # pandas
        exact = isinstance(series.dtype, np.dtype) and series.dtype.kind in "biuf"
        return series.to_numpy() if exact else series.to_numpy(dtype=object)
    return np.asarray(series) if hasattr(series, "__array__") else series
