"""`LabelTable`: the labels of one site, and how they are read from arrays and files.

The readers know the data (`ce.labels.table`) and return it; they do not know this class.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ce.labels.arrays import read_arrays
from ce.labels.files import read_csv, read_parquet
from ce.labels.table import FilePath, LabelData, Noise


@dataclass(frozen=True, eq=False)
class LabelTable(LabelData):
    """What one site knows: its objects and their labels."""

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
        `classifiers` names the columns that are classifiers, by name or glob. Rows in errors are 0-based.
        A LabelTable is returned unchanged, whatever the other arguments.
        """
        if isinstance(labels, LabelTable):
            return labels
        return cls._of(read_arrays(labels, ids, columns, classifiers, noise))

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
        """A table from a CSV or TSV label file, gzipped or not; see `ce.labels.files`. `columns`: read only these."""
        return cls._of(read_csv(path, id, classifiers, columns, noise))

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
        """A table from a Parquet label file (needs pyarrow); see `ce.labels.files`. `columns`: read only these."""
        return cls._of(read_parquet(path, id, classifiers, columns, noise))

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
        """A table from a label file: Parquet if its name ends in .parquet or .pq, otherwise CSV or TSV."""
        parquet = os.fspath(path).lower().endswith((".parquet", ".pq"))
        read = cls.from_parquet if parquet else cls.from_csv
        return read(path, id, classifiers, columns=columns, noise=noise)

    @classmethod
    def _of(cls, data: LabelData) -> LabelTable:
        return cls(data.ids, data.columns, data.source)
