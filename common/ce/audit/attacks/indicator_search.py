"""Indicators in the span of what was measured: labels from totals that are linear, or nearly linear, in the labels.

Let every object have a row of numbers to which each of its labels adds a vector, v_1(x_i1) + ... + v_C(x_iC), with
unknown vectors and a small error. The span of the rows then has as many directions as there are labels, and contains
the indicator 1(x_ic = r) of each of them. Such a mask of objects is found by two steps in turn: the nearest function in
the span, and the best split of its values in two. It is recognised by the share of it that lies in the span. Masks
whose cells lie in the span too belong to one column.

Sums at known weights are such rows: a cell adds m_h u_h / sum_g m_g u_g, so that with unequal parameters u = 1 + d the
difference total_h / m_h - total_g / m_g is the sum of the labels' d_h - d_g, up to terms of second order in d.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ce.audit.partitions import Groups
from ce.ring import Reals

#: Most objects among which masks are searched; what is found is a linear function, which all objects have.
_SAMPLE = 500
_FEWEST = 20
#: Each mask is searched from the difference of two objects: this many near ones, and as many random pairs.
_PAIRS = 600
_TURNS = 40
#: How often it is searched, each time away from what is known.
_PASSES = 3
_NEIGHBOURS = 12
#: Directions below this, relative to the largest, are rounding errors.
_RANK = 1e-7
#: Shares of a mask in the span: for a column, and for a cell of a column when a mask is added to it.
_INSIDE, _CELL_INSIDE = 0.8, 0.77
#: Masks of fewer objects, relative to all, are not used; nor are such cells.
_SMALLEST = 0.015
_SAME_MASK = 0.02
#: Directions of the span that labels have in common with weaker ones are not explained.
_EXPLAINED = 0.2
#: Most masks for each label.
_MASKS = 3
_SMALLEST_MESSAGE = 1e-4

Masks = NDArray[np.bool_]


@dataclass(frozen=True)
class Measured:
    """(starts, k, n) totals and the messages from which they were computed; None: they do not depend on messages."""

    total: Reals
    message: Reals | None


def linear_rows(measured: Iterable[Measured]) -> Reals:
    """(n, width) numbers that are nearly linear in the labels, with the same variance in every exchange."""
    found = []
    for seen in measured:
        at_weights = seen.total if seen.message is None else seen.total / np.maximum(seen.message, _SMALLEST_MESSAGE)
        rows = (at_weights - at_weights[:, -1:])[:, :-1].reshape(-1, seen.total.shape[-1]).T
        spread = float(rows.std(axis=0).mean()) if rows.size else 0.0
        if spread > 0:
            found.append((rows - rows.mean(axis=0)) / spread)
    return np.concatenate(found, axis=1) if found else np.zeros((0, 0))


def indicator_columns(rows: Reals, labels: Sequence[int], complete: Masks, seed: int = 0) -> list[Groups]:
    """Partitions of all objects, the best first, at most as many as there are columns.

    `rows` are numbers that are nearly linear in the labels, `labels` the number of labels of each column, `complete`
    the objects without a missing label, among which masks are searched.
    """
    at = np.flatnonzero(complete)
    rng = np.random.default_rng(seed)
    if len(at) > _SAMPLE:
        at = np.sort(rng.choice(at, _SAMPLE, replace=False))
    if len(at) < _FEWEST or not rows.size:
        return []
    middle = rows[at].mean(axis=0)
    left, sizes, right = np.linalg.svd(rows[at] - middle, full_matrices=False)
    rank = min(int((sizes > _RANK * sizes[0]).sum()), sum(labels) - len(labels), len(at) // 2)
    if sizes[0] <= 0 or rank < 1:
        return []
    span = left[:, :rank]
    columns = _columns(span, labels, rng)
    # The same functions for all objects: an object has the label whose indicator is largest there.
    everywhere = (rows - middle) @ (right[:rank].T / sizes[:rank])
    found = []
    for column in columns[: len(labels)]:
        members = np.stack([column == label for label in range(column.max() + 1)], axis=1)
        share = members.mean(axis=0)
        found.append((share + everywhere @ (span.T @ (members - share))).argmax(axis=1).astype(np.intp))
    return found


def _columns(span: Reals, labels: Sequence[int], rng: np.random.Generator) -> list[Groups]:
    """Partitions that lie in the span, the best first. Masks are searched until every column has all its labels."""
    n = len(span)
    distances = np.square(span).sum(axis=1)[:, None] - 2.0 * span @ span.T + np.square(span).sum(axis=1)
    distances[distances < 1e-12] = np.inf
    near = np.argsort(distances, axis=1, kind="stable")[:, : min(_NEIGHBOURS, n - 1)]
    neighbours = np.stack([np.repeat(np.arange(n), near.shape[1]), near.reshape(-1)], axis=1)
    found: list[tuple[float, Masks]] = []
    columns: list[Groups] = []
    for _ in range(_PASSES):
        chosen = neighbours[rng.permutation(len(neighbours))[:_PAIRS]]
        pairs = np.concatenate([chosen, rng.integers(0, n, (_PAIRS, 2))])
        differences = (span[pairs[:, 0]] - span[pairs[:, 1]]).T
        if found:
            # Directions of masks that are known lead to these again.
            known = np.linalg.qr(span.T @ np.array([mask - mask.mean() for _, mask in found]).T)[0]
            differences = differences - known @ (known.T @ differences)
        before = len(found)
        _add_new(found, span, _turned(span, differences))
        if len(found) == before:
            break
        best = sorted(found, key=lambda pair: -pair[0])[: _MASKS * sum(labels)]
        columns = _joined(span, np.array([mask for _, mask in best]), max(labels))
        if _complete(span, columns[: len(labels)], labels):
            break
    return columns


def _complete(span: Reals, columns: Sequence[Groups], labels: Sequence[int]) -> bool:
    """Whether every column has all its labels, and these explain every direction of the span."""
    if sorted(labels) != sorted(int(column.max()) + 1 for column in columns):
        return False
    members = np.concatenate([column[:, None] == np.arange(column.max() + 1) for column in columns], axis=1)
    sizes = np.linalg.svd(span.T @ (members / np.sqrt(members.sum(axis=0))), compute_uv=False)
    return bool((sizes > _EXPLAINED).sum() == span.shape[1])


def _turned(span: Reals, differences: Reals) -> Masks:
    """(n, m) masks: the nearest function in the span and the best split of its values, in turn."""
    masks = _split(span @ differences)
    for _ in range(_TURNS):
        before = masks
        masks = _split(span @ (span.T @ (masks - masks.mean(axis=0))))
        if (masks == before).all():
            break
    return masks


def _add_new(found: list[tuple[float, Masks]], span: Reals, masks: Masks) -> None:
    """Add those of the masks (n, m) that lie in the span and differ from all others, the best first."""
    n = len(masks)
    inside = _inside(span, masks)
    order = np.argsort(-inside, kind="stable")
    order = order[inside[order] >= _INSIDE]
    smaller = np.where(2 * masks.sum(axis=0) <= n, masks, ~masks)[:, order].T
    large = smaller.sum(axis=1) >= _SMALLEST * n
    order, smaller = order[large], smaller[large]
    every = np.concatenate([np.array([mask for _, mask in found], dtype=bool).reshape(-1, n), smaller])
    counts, numbers = every.sum(axis=1), every.astype(np.float32)
    near = counts[:, None] + counts - 2.0 * numbers @ numbers.T <= _SAME_MASK * n
    known = near[: len(found)].any(axis=0)
    for at in range(len(order)):
        if not known[row := at + len(every) - len(order)]:
            known |= near[row]
            found.append((float(inside[order[at]]), smaller[at]))


def _split(values: Reals) -> Masks:
    """(n, m) -> (n, m): each column's values split in two, so that the variance between the parts is largest."""
    n = len(values)
    sums = np.cumsum(ordered := np.sort(values, axis=0), axis=0)[:-1]
    count = np.arange(1, n)[:, None]
    between = np.square(sums - count * ordered.sum(axis=0) / n) / (count * (n - count))
    at = between.argmax(axis=0)
    found: Masks = values > np.take_along_axis(ordered, at[None], axis=0)
    return found


def _inside(span: Reals, masks: Masks) -> Reals:
    """(m,) the share of each mask (n, m) that lies in the span: 1 for the indicator of a label."""
    centred = masks - masks.mean(axis=0)
    length = np.square(centred).sum(axis=0)
    found: Reals = np.square(span.T @ centred).sum(axis=0) / np.maximum(length, 1e-12)
    return found


def _joined(span: Reals, masks: Masks, most_labels: int) -> list[Groups]:
    """Columns, those that lie in the span best first: a mask is added to a column if all cells lie in the span."""
    n = len(span)
    columns: list[Groups] = []
    for mask in masks:
        for at, column in enumerate(columns):
            cells = 2 * column + mask
            names, counts = np.unique(cells, return_counts=True)
            large = names[counts >= _SMALLEST * n]
            if len(large) <= len(np.unique(column)):
                break  # known already: labels of this column
            if len(large) > most_labels:
                continue
            if _inside(span, cells[:, None] == large).min() >= _CELL_INSIDE:
                columns[at] = _nearest(span, cells, large)
                break
        else:
            columns.append(mask.astype(np.intp))
    quality = [float(_inside(span, column[:, None] == np.arange(column.max() + 1)).mean()) for column in columns]
    order = sorted(range(len(columns)), key=lambda at: (-(columns[at].max()), -quality[at]))
    return [columns[at] for at in order]


def _nearest(span: Reals, cells: Groups, names: Groups) -> Groups:
    """Each object in the cell whose indicator's projection is largest there."""
    members = cells[:, None] == names
    share = members.mean(axis=0)
    found: Groups = (share + span @ (span.T @ (members - share))).argmax(axis=1).astype(np.intp)
    _, found = np.unique(found, return_inverse=True)
    return found.reshape(-1).astype(np.intp)
