"""Peeling: reads whole label rows from one site's column sums, where the site has few objects.

If only one object has the label r in column j, its sums are n_hjr = phi_h ∝ m_h beta_hj(r). The home knows beta of
shared columns, so it can compute the object's message m = n / beta, which identifies the object. The same message under
labels of other columns is the same object: this gives its row, column by column. Known objects are then subtracted from
labels that several objects have, which isolates further ones, until nothing changes. Objects with equal rows are peeled
together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from ce.audit.adversary_views import ColumnRound, CoordinatorView, Row
from ce.kernels.special import over_clusters
from ce.protocol.topology.site_view import ColumnGroup
from ce.ring import Reals, decode

#: Relative to 1: rounding of phi, divided by entries of beta.
_TOLERANCE = 1e-6
#: The number of known objects whose combinations, of at most two, are subtracted.
_MOST_KNOWN = 40


@dataclass(eq=False)
class _Objects:
    """Some objects with the same message, and the labels known of them so far."""

    message: Reals  # (starts, k), summing to 1
    count: int
    labels: dict[int, int] = field(default_factory=dict)


def label_rows(view: CoordinatorView, group: ColumnGroup) -> dict[str, Counter[Row]]:
    """The rows that peeling finds for each holder, with how many objects have them."""
    known = [r for r in view.column_rounds(group.index) if r.beta is not None and r.beta.all()]
    if not known:
        return {site: Counter() for site in group.holders}
    scale = view.scale(known[0].stage, "columns")
    return {
        site: _rows(group, _Cells(group, known[0], decode(words, scale)).peel())
        for site, words in known[0].parts.items()
    }


class _Cells:
    """What remains of each label's sums while objects are peeled off."""

    def __init__(self, group: ColumnGroup, seen: ColumnRound, sums: Reals) -> None:
        assert seen.beta is not None
        self._objects: list[_Objects] = []
        self._left: dict[tuple[int, int], Reals] = {}
        self._counts: dict[tuple[int, int], int] = {}
        self._beta: dict[tuple[int, int], Reals] = {}
        for column, where in group.slices.items():
            for r in range(where.stop - where.start):
                cell = sums[..., where.start + r]
                count = float(cell[0].sum())
                if not 0.5 < count < 2**31:
                    continue
                self._left[column, r] = cell
                self._counts[column, r] = round(count)
                self._beta[column, r] = seen.beta[..., where.start + r]

    def peel(self) -> list[_Objects]:
        changed = True
        while changed:
            changed = self._match() or self._subtract()
        return self._objects

    def _match(self) -> bool:
        """Assign labels whose message is that of known objects, or the same in two columns, or that of one object."""
        changed = False
        for cell, count in list(self._counts.items()):
            message = self._message(cell)
            column, label = cell
            owner = next((o for o in self._open(column) if o.count == count and _same(o.message, message)), None)
            if owner is None and (count == 1 or self._seen_elsewhere(cell, message, count)):
                owner = _Objects(message, count)
                self._objects.append(owner)
            if owner is not None:
                owner.labels[column] = label
                del self._counts[cell]
                changed = True
        return changed

    def _subtract(self) -> bool:
        """Assign one label that one or two known objects have, alone or together with other known objects."""
        for cell, count in self._counts.items():
            candidates = [o for o in self._open(cell[0])[:_MOST_KNOWN] if o.count < count]
            for size in (1, 2):
                for some in combinations(candidates, size):
                    if self._explains(cell, count, some):
                        return True
        return False

    def _explains(self, cell: tuple[int, int], count: int, some: tuple[_Objects, ...]) -> bool:
        rest = self._left[cell] - sum(o.count * self._phi(cell, o.message) for o in some)
        left = count - sum(o.count for o in some)
        if left < 0 or rest.min() < -_TOLERANCE * count:
            return False
        if left == 0:
            if np.abs(rest).max() > _TOLERANCE * count:
                return False
            del self._counts[cell]
        else:
            message = _normal(np.maximum(rest, 0.0) / self._beta[cell])
            if not any(_same(o.message, message) and o.count == left for o in self._open(cell[0]) if o not in some):
                return False
            self._left[cell], self._counts[cell] = rest, left
        for o in some:
            o.labels[cell[0]] = cell[1]
        return True

    def _open(self, column: int) -> list[_Objects]:
        """Objects whose label in this column is not known yet."""
        return [o for o in self._objects if column not in o.labels]

    def _message(self, cell: tuple[int, int]) -> Reals:
        return _normal(self._left[cell] / self._beta[cell])

    def _phi(self, cell: tuple[int, int], message: Reals) -> Reals:
        return _normal(message * self._beta[cell])

    def _seen_elsewhere(self, cell: tuple[int, int], message: Reals, count: int) -> bool:
        return any(
            other[0] != cell[0] and self._counts[other] == count and _same(self._message(other), message)
            for other in self._counts
        )


def _rows(group: ColumnGroup, objects: list[_Objects]) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for o in objects:
        found[tuple(o.labels.get(column.index, -1) for column in group.columns)] += o.count
    return found


def _normal(rows: Reals) -> Reals:
    total = over_clusters(rows[..., None])
    normal: Reals = rows / np.where(total == 0, 1.0, total)
    return normal


def _same(a: Reals, b: Reals) -> bool:
    return bool(np.abs(a - b).max() < _TOLERANCE)
