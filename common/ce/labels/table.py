"""The data of a label table: one row per object, one column per base clustering or classifier.

A column is hard (an object has one category or none) or soft (an object has a probability for every category, or is
missing). Categories are sorted integers or names, and `codes` are indices into them: two sites mean the same by a code
once they use the same categories (`Column.recode`).

The text of ids, names and labels is stripped and Unicode-NFC-normalised, so that the same word typed on two systems is
the same object. The repr of a table and its errors never include an id or a label.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ce.errors import LabelError, UnknownColumn
from ce.labels.names import factorise, listed, refuse_repeated

Kind = Literal["clustering", "classifier"]
Noise = Literal["missing", "keep"]
FilePath = str | os.PathLike[str]
Categories = tuple[int, ...] | tuple[str, ...]

#: An odd number that spreads a row's words over 64 bits.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, eq=False)
class Column:
    """The labels that one base clustering or classifier gave to n objects."""

    name: str
    kind: Kind
    categories: Categories = field(repr=False)  # sorted
    codes: NDArray[np.int32] | None = field(repr=False)  # (n,) index into categories, -1 = missing; None if soft
    probabilities: NDArray[np.float64] | None = field(repr=False)  # (n, categories), missing = NaN; None if hard

    def __post_init__(self) -> None:
        if (self.codes is None) == (self.probabilities is None):
            raise LabelError("a column has either codes or probabilities", column=self.name)
        if self.probabilities is not None:
            self._refuse_improper(self.probabilities)

    def _refuse_improper(self, probabilities: NDArray[np.float64]) -> None:
        """Raise LabelError unless each row is a distribution or completely missing. Any other row would count as more
        or less than one label."""
        missing = np.isnan(probabilities)
        with np.errstate(invalid="ignore"):
            proper = (probabilities >= 0).all(axis=1) & (np.abs(probabilities.sum(axis=1) - 1.0) <= 1e-6)
        improper = ~(proper | missing.all(axis=1))
        if improper.any():
            problem = "expected probabilities of 0 or more that sum to 1, or all missing"
            raise LabelError(problem, row=int(improper.argmax()), column=self.name)

    @property
    def soft(self) -> bool:
        """Whether labels are probabilities."""
        return self.codes is None

    @property
    def n_objects(self) -> int:
        """The number of objects, with and without a label in this column."""
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

    @property
    def likeliest(self) -> NDArray[np.int32]:
        """(n,) the code of each label, for a soft label that of its most likely category; -1 = missing."""
        if self.codes is not None:
            return self.codes
        assert self.probabilities is not None
        best = np.nan_to_num(self.probabilities, nan=-1.0).argmax(axis=1)
        return np.where(self.observed, best, -1).astype(np.int32)

    def recode(self, categories: Categories) -> Column:
        """The same labels with codes for other categories, which must include all that are used."""
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
class LabelData:
    """Objects and their labels. `LabelTable` adds the ways to read them from arrays and files."""

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
        """The number of objects."""
        return len(self.ids)

    @property
    def clusterings(self) -> tuple[Column, ...]:
        """The columns that are base clusterings."""
        return tuple(column for column in self.columns if column.kind == "clustering")

    @property
    def classifiers(self) -> tuple[Column, ...]:
        """The columns that are classifiers."""
        return tuple(column for column in self.columns if column.kind == "classifier")

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """(n,) True where the object has at least one label."""
        found = np.zeros(self.n_objects, dtype=np.bool_)
        for column in self.columns:
            found |= column.observed
        return found

    def column(self, name: str) -> Column:
        """The column of this name. Raises UnknownColumn if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        known = listed(column.name for column in self.columns)
        raise UnknownColumn(f"unknown column; the columns are {known}", source=self.source, column=name)

    def select(self, rows: Any = None, columns: Iterable[str] | None = None) -> Self:
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


def equal_rows(parts: Sequence[NDArray[Any]]) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.int64]]:
    """Group the rows that are equal, byte for byte, in all `parts`: (n, *) arrays with the same n.

    Returns (first, inverse, weight): the first row of each group, each row's group, each group's size. Groups
    are in the order of their first rows. A model computes on `part[first]` with `weight`, and spreads its
    results by `[inverse]`.
    """
    n = len(parts[0])
    blocks = [np.ascontiguousarray(part).reshape(n, part[:1].size).view(np.uint8) for part in parts if part.size]
    width = -(-sum(block.shape[1] for block in blocks) // 8) * 8
    rows = np.zeros((n, width), dtype=np.uint8)
    if blocks:
        np.concatenate(blocks, axis=1, out=rows[:, : sum(block.shape[1] for block in blocks)])
    words = rows.view(np.uint64)
    digests = np.zeros(n, dtype=np.uint64)
    for word in words.T:
        digests = (digests ^ word) * _SPREAD
        digests ^= digests >> np.uint64(32)
    _, first, inverse = np.unique(digests, return_index=True, return_inverse=True)
    if any((words[part] != words[first[inverse[part]]]).any() for part in _stretches(n)):  # two rows with one digest
        _, inverse = factorise(row.tobytes() for row in rows)
        _, first = np.unique(inverse, return_index=True)
    # Groups in the order of their first rows.
    rank = np.empty(len(first), dtype=np.intp)
    rank[np.argsort(first)] = np.arange(len(first))
    inverse = rank[inverse]
    return np.sort(first), inverse, np.bincount(inverse).astype(np.int64)


def _stretches(n: int) -> Iterator[slice]:
    """Some rows at a time."""
    return (slice(begin, begin + 2**16) for begin in range(0, n, 2**16))
