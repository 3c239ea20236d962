"""Unmixing: totals that are linear in the labels reveal every column's partition, although no beta is known.

Totals are linear where sums do not depend on messages (mixture, diffusion: every exchange), or where all objects have
the same message (BCE's first exchange on one machine; this is why objects of a distributed job start at different
points). A total is then sum_c v_c(x_ic) with secret vectors v_c(r). Over all starts and exchanges, the totals span the
indicators 1(x_ic = r) as soon as they have as many dimensions: starts * (k - 1) >= sum_c (k_c - 1) in one exchange of
BCE. An indicator is a linear function f of the totals that rarely changes between neighbours, because two objects whose
labels differ in one column only agree in the indicators of all others. So the linear programme

    minimise sum over edges (i, j) of neighbours |f(t_i) - f(t_j)|     such that f changes by 1 along a chosen edge

is solved exactly by an indicator. A change of label switches two indicators of the same column, and the indicators of
one column never overlap: this shows which indicators belong together. What remains unknown is the name of each label,
and which site a column belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.spatial.distance import cdist

from ce.audit.adversary_views import BlockRound, CoordinatorView, CuriousSiteView, Guesses, Question
from ce.audit.attacks.message_inversion import Inferred, inferred_totals
from ce.audit.partitions import Groups, equal_rows, features, nearly_equal_rows
from ce.ring import Reals, decode
from ce.steps.model import Model, stage_of

#: Number of distinct points among which functions are searched; these are then evaluated on all objects.
_MOST_POINTS = 300
_NEIGHBOURS = 3
#: Singular values below this, relative to the largest, are rounding errors.
_RANK = 1e-9
_SAME = 1e-7
#: Values closer than this are equal. A function of one column has as many values as the column has labels.
_ONE_VALUE = 1e-5
_MOST_VALUES = 8
#: The search ends after this many programmes without a new indicator; the second number holds before the first one.
_PATIENCE, _FIRST_PATIENCE = 12, 6
#: Limit of programmes times dimensions. Not every label must be found to show that labels can be found.
_WORK = 3000
_MOST_DIMENSIONS = 120
#: Weight of edges along which a known indicator changes, so that the other indicator of the same edge is found.
_DISCOURAGED = 4.0

Mask = NDArray[np.bool_]


def unmix(view: CoordinatorView, questions: Sequence[Question]) -> Guesses:
    """Unmix the totals that the coordinator sees."""
    guesses: Guesses = {}
    for block in {question.block for question in questions}:
        totals = [decode(r.total, view.scale(r.stage, "objects")) for r in linear_rounds(view, block)]
        found = unmixed_columns(totals, largest_sum(view))
        guesses |= {question: found for question in questions if question.block == block}
    return guesses


def unmix_parts(view: CoordinatorView, questions: Sequence[Question]) -> Guesses:
    """Unmix the words that one site sent."""
    guesses: Guesses = {}
    for block, holder in {(question.block, question.holder) for question in questions}:
        rounds = linear_rounds(view, block)
        parts = [decode(r.parts[holder], view.scale(r.stage, "objects")) for r in rounds]
        found = unmixed_columns(parts, largest_sum(view))
        guesses |= {q: found for q in questions if (q.block, q.holder) == (block, holder)}
    return guesses


def unmix_as_site(view: CuriousSiteView, questions: Sequence[Question]) -> Guesses:
    """Unmix the totals that a site infers, minus its own part."""
    linear = [seen for seen in inferred_totals(view) if _is_linear(stage_of(view.model, seen.stage), seen)]
    found = unmixed_columns([seen.residual for seen in linear], largest_sum(view))
    return dict.fromkeys(questions, found)


def linear_rounds(view: CoordinatorView, block: int) -> list[BlockRound]:
    """The exchanges whose totals are linear in the labels and differ between objects."""
    found = [r for r in view.rounds(block) if _is_linear(stage_of(view.model, r.stage), r)]
    return [r for r in found if np.ptp(r.total, axis=-1).any()]


def _is_linear(model: Model, seen: BlockRound | Inferred) -> bool:
    if model.phases == 2:
        return True
    return seen.message is not None and not np.ptp(seen.message, axis=-1).any()


def largest_sum(view: CoordinatorView | CuriousSiteView) -> float:
    """The largest value that a sum of an object can have. A larger value is not a sum but a mask."""
    return 1.0 + view.topology.sizes.clusterings * max(abs(term) for term in view.model.cell_terms)


def unmixed_columns(totals: Sequence[Reals], largest: float) -> list[Groups]:
    """The columns' partitions from (starts, k, n) totals that are linear in the labels; none if there are too few."""
    if not totals:
        return []
    rows = features(totals, totals[0].shape[-1])
    if not rows.size or np.abs(rows).max() > largest:
        return []
    classes = nearly_equal_rows(rows, _SAME * float(np.abs(rows).max()))
    _, first = np.unique(classes, return_index=True)
    points = _coordinates(rows[first])
    dimensions = points.shape[1]
    # With as many dimensions as points, the indicators span more dimensions, or there is only noise.
    if dimensions >= min(len(first) - 1, _MOST_DIMENSIONS) or len(first) < 4:
        return []
    sample = np.arange(len(points))
    if len(points) > _MOST_POINTS:
        sample = np.sort(np.random.default_rng(0).choice(len(points), _MOST_POINTS, replace=False))
    search = _Search(points, _edges(points[sample], sample))
    search.run()
    return [labels[classes] for labels in search.columns()]


def _coordinates(rows: Reals) -> Reals:
    """The same points in as few dimensions as possible, with the same variance in each."""
    left, size, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    rank = int((size > _RANK * size[0]).sum())
    spread: Reals = left[:, :rank] * np.sqrt(len(rows))
    return spread


def _edges(points: Reals, names: NDArray[np.intp]) -> NDArray[np.intp]:
    """(edges, 2): each point with its nearest neighbours, which mostly differ from it in one label only."""
    distances = cdist(points, points)
    np.fill_diagonal(distances, np.inf)
    near = np.argsort(distances, axis=1, kind="stable")[:, :_NEIGHBOURS]
    ends = np.stack([np.repeat(np.arange(len(points)), near.shape[1]), near.reshape(-1)], axis=1)
    return names[np.unique(np.sort(ends, axis=1), axis=0)]


@dataclass
class _Search:
    """A search for indicators: those found so far, each a mask of the points, none twice."""

    points: Reals
    edges: NDArray[np.intp]

    def __post_init__(self) -> None:
        self._steps = self.points[self.edges[:, 0]] - self.points[self.edges[:, 1]]
        self._masks: list[Mask] = []
        self._changes = np.zeros((0, len(self.edges)), dtype=bool)

    def run(self) -> None:
        """Solve one programme per edge along which too few known indicators change: edges with none before edges with
        one, until every edge has two."""
        tried = np.zeros(len(self.edges), dtype=np.intp)
        order = np.random.default_rng(0).permutation(len(self.edges))
        failures = 0
        for _ in range(_WORK // self.points.shape[1]):
            explained = self._changes.sum(axis=0)
            turn = np.where(explained >= 2, 1000, explained) + 10 * tried
            edge = int(np.lexsort((order, turn))[0])
            if turn[edge] >= 20:
                return
            tried[edge] += 1
            failures += not self._add(self._solve(edge))
            if failures >= (_PATIENCE + len(self._masks) if self._masks else _FIRST_PATIENCE):
                return

    def _solve(self, edge: int) -> Reals | None:
        """f of all points. The dual programme is solved: one equation per dimension, one bounded variable per edge."""
        known = self._changes[self._changes[:, edge]]
        weights = np.where(known.any(axis=0), _DISCOURAGED, 1.0) if len(known) else np.ones(len(self.edges))
        bounds = np.column_stack([np.append(-weights, 0.0), np.append(weights, np.inf)])
        solution = linprog(
            np.append(np.zeros(len(weights)), -1.0),
            A_eq=np.column_stack([self._steps.T, -self._steps[edge]]),
            b_eq=np.zeros(self._steps.shape[1]),
            bounds=bounds,
            method="highs-ds",
        )
        if solution.status != 0:
            return None
        function = solution.eqlin.marginals
        along = float(self._steps[edge] @ function)
        values: Reals = self.points @ function
        return values / along if abs(along) > 1e-12 else None

    def _add(self, values: Reals | None) -> bool:
        """Add the indicators of the values of a function that has few values; True if at least one of them is new."""
        if values is None:
            return False
        order = np.argsort(values, kind="stable")
        level = np.empty(len(values), dtype=np.intp)
        level[order] = np.cumsum(np.diff(values[order], prepend=values[order[0]]) > _ONE_VALUE)
        if level.max() >= _MOST_VALUES:
            return False
        return sum(self._add_indicator(level == at) for at in range(level.max() + 1)) > 0

    def _add_indicator(self, mask: Mask) -> bool:
        """Add a mask if it is a linear function of the points, and new."""
        mask = mask if 2 * mask.sum() <= len(mask) else ~mask
        # Points are centred, orthogonal, and of length 1 on average, so that this is the nearest linear function.
        nearest = mask.mean() + self.points @ (self.points.T @ mask) / len(mask)
        if np.abs(nearest - mask).max() > _ONE_VALUE or any((mask == other).all() for other in self._masks):
            return False
        self._masks.append(mask)
        self._changes = np.vstack([self._changes, mask[self.edges[:, 0]] != mask[self.edges[:, 1]]])
        return True

    def columns(self) -> list[Groups]:
        """Join indicators to columns: those that switch along the same edges, if they can belong to one column."""
        if not self._masks:
            return []
        masks = np.array(self._masks)
        steps = self._changes.astype(np.intp)
        sides = np.stack([masks, ~masks]).astype(np.intp)
        # For two indicators of one column, one of the four pairs of their sides has no object in common.
        compatible = np.einsum("amp,bnp->abmn", sides, sides).min(axis=(0, 1)) == 0
        columns = _Columns(compatible)
        together = steps[:, steps.sum(axis=0) <= 3] @ steps[:, steps.sum(axis=0) <= 3].T
        order = np.argsort(-together, axis=None, kind="stable")
        for a, b in np.column_stack(np.unravel_index(order, compatible.shape)):
            if a < b and together[a, b]:
                columns.merge(int(a), int(b))
        # A change of label switches two indicators. Where one switches alone, the other was not found, and its column
        # may be in several pieces.
        incomplete = [members for members in columns.members() if (steps[members].sum(axis=0) == 1).any()]
        for one, other in combinations(incomplete, 2):
            columns.merge(one[0], other[0])
        return [equal_rows(masks[members].T.astype(np.int64)) for members in columns.members()]


class _Columns:
    """A partition of the indicators into columns. Columns are merged only if all their indicators are compatible."""

    def __init__(self, compatible: NDArray[np.bool_]) -> None:
        self._compatible = compatible
        self._column_of = list(range(len(compatible)))

    def members(self) -> list[list[int]]:
        return [self._members(column) for column in dict.fromkeys(self._column_of)]

    def merge(self, a: int, b: int) -> None:
        """Merge the columns of the indicators a and b."""
        one, other = self._members(self._column_of[a]), self._members(self._column_of[b])
        if self._compatible[np.ix_(one, other)].all():
            for at in other:
                self._column_of[at] = self._column_of[a]

    def _members(self, column: int) -> list[int]:
        return [at for at, other in enumerate(self._column_of) if other == column]
