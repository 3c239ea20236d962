"""The label table: one row per object, one column per base clustering or classifier.

Models, engine and commands read labels only from here. A column is hard (an object has one category or none)
or soft (an object has a probability for every category, or nothing). Categories are sorted integers or names,
and `codes` count into them: two sites agree on a code once they agree on the categories (`Column.recode`).

Text, of ids, names and labels alike, is stripped and Unicode-NFC-normalised: the same word typed on two
systems is the same object. What a table shows of itself (repr, errors) never includes an id or a label.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ce.errors import LabelError, UnknownColumn
from ce.labels.names import factorise, listed, refuse_repeated

Kind = Literal["clustering", "classifier"]
Noise = Literal["missing", "keep"]
FilePath = str | os.PathLike[str]
Categories = tuple[int, ...] | tuple[str, ...]


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
        """A row is a distribution or missing altogether: anything else would count as more or less than a label."""
        missing = np.isnan(probabilities)
        with np.errstate(invalid="ignore"):
            proper = (probabilities >= 0).all(axis=1) & (np.abs(probabilities.sum(axis=1) - 1.0) <= 1e-6)
        improper = ~(proper | missing.all(axis=1))
        if improper.any():
            problem = "probabilities are not negative and sum to 1, or are all missing"
            raise LabelError(problem, row=int(improper.argmax()), column=self.name)

    @property
    def soft(self) -> bool:
        """Whether labels are probabilities."""
        return self.codes is None

    @property
    def n_objects(self) -> int:
        """How many objects there are, with and without a label here."""
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
        """(n,) the code of each label; of a soft one its most likely category; -1 = missing."""
        if self.codes is not None:
            return self.codes
        assert self.probabilities is not None
        best = np.nan_to_num(self.probabilities, nan=-1.0).argmax(axis=1)
        return np.where(self.observed, best, -1).astype(np.int32)

    def recode(self, categories: Categories) -> Column:
        """The same labels, counted in other categories, which must include all that are used."""
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
        """How many objects there are."""
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
        """The column of this name; UnknownColumn when there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        known = listed(column.name for column in self.columns)
        raise UnknownColumn(f"unknown column; the columns are {known}", source=self.source, column=name)

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
        from ce.labels.arrays import table_from_arrays

        return table_from_arrays(labels, ids, columns, classifiers, noise)

    @classmethod
    def from_csv(
        cls,
        path: FilePath,
        id: str = "id",
        classifiers: Iterable[str] = (),
        *,
        columns: Iterable[str] | None = None,
        noise: Noise = "missing",
    ) -> LabelTable:
        """A table from a CSV or TSV label file, gzipped or not; see `ce.labels.files`. `columns`: only these."""
        from ce.labels import files

        return files.read_csv(path, id, classifiers, columns, noise)

    @classmethod
    def from_parquet(
        cls,
        path: FilePath,
        id: str = "id",
        classifiers: Iterable[str] = (),
        *,
        columns: Iterable[str] | None = None,
        noise: Noise = "missing",
    ) -> LabelTable:
        """A table from a Parquet label file (needs pyarrow); see `ce.labels.files`. `columns`: only these."""
        from ce.labels import files

        return files.read_parquet(path, id, classifiers, columns, noise)

    @classmethod
    def from_file(
        cls,
        path: FilePath,
        id: str = "id",
        classifiers: Iterable[str] = (),
        *,
        columns: Iterable[str] | None = None,
        noise: Noise = "missing",
    ) -> LabelTable:
        """A table from a label file: Parquet if its name ends in .parquet or .pq, else CSV or TSV."""
        parquet = os.fspath(path).lower().endswith((".parquet", ".pq"))
        read = cls.from_parquet if parquet else cls.from_csv
        return read(path, id, classifiers, columns=columns, noise=noise)


def equal_rows(parts: Sequence[NDArray[Any]]) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.int64]]:
    """Groups the rows that are equal, byte for byte, in all `parts`: (n, *) arrays with the same n.

    Returns (first, inverse, weight): the first row of each group, each row's group, each group's size. Groups
    are in the order of their first rows. A model computes on `part[first]` with `weight`, and spreads its
    results by `[inverse]`.
    """
    n = len(parts[0])
    blocks = [np.ascontiguousarray(part).reshape(n, part[:1].size).view(np.uint8) for part in parts if part.size]
    width = sum(block.shape[1] for block in blocks)
    raw = np.concatenate(blocks, axis=1).tobytes() if blocks else b""
    _, inverse = factorise(raw[at * width : (at + 1) * width] for at in range(n))
    weight = np.bincount(inverse).astype(np.int64)
    # Assigned backwards, so that the first row of a group is the one that stays.
    first = np.empty(len(weight), dtype=np.intp)
    first[inverse[::-1]] = np.arange(n - 1, -1, -1)
    return first, inverse, weight
