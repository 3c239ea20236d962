"""Labels and ids from values: what a value means, hard columns, and ids. The readers of arrays and files use it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ce.errors import LabelError
from ce.labels.names import clean_text, factorise
from ce.labels.table import Column, Kind, Noise

# From here on floats do not hold every integer: two labels could have become equal when they were converted.
FLOAT_LIMIT = 2**53
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
# Longest id, in characters. An array of ids is as wide as its longest id, for instance after an unclosed quote.
ID_LENGTH = 1000
# The types of pandas.NA and pandas.NaT, by name: pandas is not imported.
PANDAS_MISSING = {"NAType", "NaTType"}

FRACTIONAL = "a fractional number is not a label: labels are integers or names (probabilities: clf:NAME=CLASS columns)"
INFINITE = "an infinite number is not a label: leave the cell empty if the label is missing"
INEXACT = "a float of 2**53 or more may have lost digits: give the labels of this column as integers or as text"


@dataclass(frozen=True)
class Origin:
    """Where a table comes from, and the row numbers that errors name."""

    source: str
    rows: Sequence[int]

    def error(self, problem: str, at: int, column: str) -> LabelError:
        return LabelError(problem, source=self.source, row=self.rows[at], column=column)


@dataclass(frozen=True, slots=True)
class Reading:
    """One value: its text (None = missing) and, if it is a number, the integer or why it is not an integer."""

    text: str | None
    whole: int | None = None
    problem: str | None = None


def read_value(value: object) -> Reading:
    """The label that a Python or numpy value stands for."""
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
        # The integer of 1e999999 would fill the memory. Only its sign matters, and that it exceeds int64.
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
    """A column of integers if all values are integers, otherwise of names. Each distinct value is read once."""
    distinct, inverse = factorise(values)
    readings = [read(value) for value in distinct]
    negative = [r.whole is not None and r.whole < 0 and noise == "missing" for r in readings]
    labels: list[Any] = [None if missing else r.text for r, missing in zip(readings, negative, strict=True)]
    if all(r.text is None or r.whole is not None or r.problem is not None for r in readings):
        for at, reading in enumerate(readings):
            if reading.problem is not None:
                raise origin.error(reading.problem, int(np.argmax(inverse == at)), name)
        # Beyond int64 the text is the label. A negative number still means missing.
        as_integers = all(r.whole is None or INT64_MIN <= r.whole <= INT64_MAX for r in readings)
        for at, reading in enumerate(readings):
            if reading.whole is not None and as_integers and not negative[at]:
                labels[at] = reading.whole
    categories = tuple(sorted({label for label in labels if label is not None}))
    position = {category: at for at, category in enumerate(categories)}
    codes = np.array([position.get(label, -1) for label in labels], dtype=np.int32)
    return Column(name, kind, categories, codes[inverse], None)


def refuse_containers(values: Iterable[Any], origin: Origin, column: str) -> None:
    for at, value in enumerate(values):
        if value.__hash__ is None or isinstance(value, tuple):
            raise origin.error("a list or another container: expected one value per cell", at, column)


def array_column(name: str, kind: Kind, values: Any, origin: Origin, noise: Noise) -> Column:
    """A hard column from a numpy array or a list: the same as `hard_column`, but faster for numbers."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf":
        values = values.tolist() if isinstance(values, np.ndarray) else values
        refuse_containers(values, origin, name)
        # 1, 1.0 and True are equal as keys but different as text.
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
    categories, found = _distinct(whole[present])
    codes = np.full(len(whole), -1, dtype=np.int32)
    codes[present] = found
    return Column(name, kind, tuple(categories.tolist()), codes, None)


def _distinct(whole: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """The different numbers, sorted, and each one's index among them. Those of a small range are not sorted but looked
    up, which takes a tenth of the time."""
    smallest, largest = (int(whole.min()), int(whole.max())) if len(whole) else (0, 0)
    if largest - smallest > len(whole):
        categories, found = np.unique(whole, return_inverse=True)
        return categories, found
    shifted = whole - smallest
    used = np.zeros(largest - smallest + 1, dtype=np.bool_)
    used[shifted] = True
    return np.flatnonzero(used) + smallest, (np.cumsum(used) - 1)[shifted]


def object_ids(values: Sequence[Any], origin: Origin, column: str) -> NDArray[np.str_]:
    """The ids as text: none missing, none twice. Integers are written in decimal."""
    refuse_containers(values, origin, column)
    seen: dict[str, int] = {}
    for at, value in enumerate(values):
        reading = Reading(clean_text(value) or None) if type(value) is str else read_value(value)
        if reading.text is None:
            raise origin.error("empty id: every object needs one", at, column)
        if reading.problem is not None:
            raise origin.error("this id is a number but not an integer: give ids as text", at, column)
        # 7 and 7.0 are the same id. Beyond int64 `whole` may not be exact.
        exact = reading.whole is not None and INT64_MIN <= reading.whole <= INT64_MAX
        text = str(reading.whole) if exact else reading.text
        if len(text) > ID_LENGTH:
            raise origin.error(f"an id longer than {ID_LENGTH} characters: check the quotation marks", at, column)
        # numpy drops a NUL at the end of a text, csv does not quote a single carriage return, and an unpaired surrogate
        # cannot be sent or written.
        if not text.isprintable() and any(c in "\0\r" or "\ud800" <= c <= "\udfff" for c in text):
            raise origin.error("an id with a character that is not text: remove the character", at, column)
        other = seen.setdefault(text, at)
        if other != at:
            raise origin.error(f"the same id as in row {origin.rows[other]}: ids are unique", at, column)
    return np.array(list(seen), dtype=np.str_)
