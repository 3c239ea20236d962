"""Labels as samplers read them: one code for each cell, an index into the categories of all columns together.

Objects without a label have no rows: they would say nothing, and count where draws are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError
from ce.labels import LabelTable


@dataclass(frozen=True)
class HardLabels:
    """The cells of a table's clusterings."""

    codes: NDArray[np.int32] = field(repr=False)  # (objects with a label, m), -1 = missing
    widths: NDArray[np.int64]  # (m,) categories of each column; 0: it has no label
    labelled: NDArray[np.bool_] = field(repr=False)  # (n,) which objects of the table these are

    @classmethod
    def of(cls, table: LabelTable) -> Self:
        """Raises InputError if a column has probabilities: a sampler draws the cluster behind one label."""
        columns = table.clusterings
        if not columns:
            raise InputError("there is no clustering: a sampler needs at least one column that is not a classifier")
        widths = np.array([len(column.categories) for column in columns], dtype=np.int64)
        begins = np.cumsum(widths) - widths
        codes = np.full((table.n_objects, len(columns)), -1, dtype=np.int32)
        for at, column in enumerate(columns):
            if column.codes is None:
                raise InputError(
                    f"column {column.name!r} has probabilities, and Gibbs sampling needs one label for each cell: give "
                    'the most likely one, or use inference="vb"'
                )
            codes[:, at] = np.where(column.codes < 0, -1, column.codes + begins[at])
        if not (codes >= 0).any():
            raise InputError("no object has a label that this model uses")
        labelled: NDArray[np.bool_] = np.any(codes >= 0, axis=1)
        return cls(np.ascontiguousarray(codes[labelled]), widths, labelled)

    @property
    def counts(self) -> NDArray[np.int64]:
        """(n,) labels of each object."""
        found: NDArray[np.int64] = (self.codes >= 0).sum(axis=1)
        return found

    @property
    def begins(self) -> NDArray[np.int64]:
        """(m,) where the categories of each column begin."""
        found: NDArray[np.int64] = np.cumsum(self.widths) - self.widths
        return found
