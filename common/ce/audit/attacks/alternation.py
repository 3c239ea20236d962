"""Alternating: first totals reveal labels although no column parameters are known and no two objects have equal labels.

In the first exchanges an object's message m is known, and its total is one term for each of its labels:

    total_h = sum over columns c of m_h u_ch / sum_g m_g u_cg          u_c = beta_c(the object's label in c)

Unknown are the tables u (one number for each start, cluster and label) and the label rows. Given the rows, least
squares find the tables; given the tables, the best row of each object is searched, changing one or two labels at a
time. Both in turn lower the residual until it falls no more. From there one or two columns are set to random labels and
the search goes on. Its first rows come from `ce.audit.attacks.indicator_search`: totals at known weights are nearly
linear in the labels. All starts and several exchanges are used together, because the rows are the same in all of them.
Totals need not be exact: rounding them does not help.

Where sums do not depend on messages (mixture) the term of a label is the table itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ce.audit.adversary_views import NO_IDEA, BlockRound, CoordinatorView, CuriousSiteView, Guesses, Question
from ce.audit.attacks.indicator_search import Masks, Measured, indicator_columns, linear_rows
from ce.audit.attacks.linear_unmix import largest_sum
from ce.audit.attacks.message_inversion import Inferred, inferred_totals
from ce.audit.partitions import Groups
from ce.ring import Reals, decode
from ce.steps.model import Model, stage_of

#: Numbers that are wanted of each object, in units of the number of labels, and the most exchanges that are used.
_MEASURED, _MOST_EXCHANGES = 5, 10
#: Those of the tables' search, which takes longer.
_MEASURED_FOR_TABLES = 1
#: Objects among which rows and tables are searched; those of the others follow from the tables.
_SAMPLE = 200
_FEWEST = 20
#: Descents from the rows that the indicators give, and most descents from changed ones; most turns of a descent.
_FIRST, _MOST_CHANGES = 3, 100
_TURNS, _STEPS, _LITTLE_GAIN = 20, 2, 0.995
#: Limits of the work, in multiplications: of one turn (the attack is not played above it), and of one search.
_TURN_WORK, _WORK = 2e8, 8e8
#: Mean square of a residual, relative to what labels add, below which the rows are found.
_SOLVED = 1e-7
#: How many random rows are tried for each object outside of the sample.
_ROW_STARTS = 12
_STEEPEST = 12.0
#: Totals that differ by less from what flat column parameters give tell nothing.
_NOTHING = 1e-9


def alternate(view: CoordinatorView, questions: Sequence[Question]) -> Guesses:
    """Alternate over the totals that the coordinator sees."""
    guesses: Guesses = {}
    for block in {question.block for question in questions}:
        asked = [question for question in questions if question.block == block]
        found = columns_of(measured_by_coordinator(view, block), labels_of(asked), largest_sum(view))
        guesses |= dict.fromkeys(asked, found)
    return guesses


def alternate_as_site(view: CuriousSiteView, questions: Sequence[Question]) -> Guesses:
    """Alternate over the totals that a site infers, minus its own part."""
    found = columns_of(measured_by_site(view), labels_of(questions), largest_sum(view))
    return dict.fromkeys(questions, found)


def labels_of(questions: Iterable[Question]) -> list[int]:
    """The number of labels of each column."""
    most: dict[int, int] = {}
    for question in questions:
        most[question.column] = max(question.groups, most.get(question.column, 0))
    return [most[column] for column in sorted(most)]


def measured_by_coordinator(view: CoordinatorView, block: int) -> list[Measured]:
    """The first exchanges whose totals tell something about labels."""
    rounds = view.rounds(block)
    return _informative(view.model, ((r, decode(r.total, view.scale(r.stage, "objects"))) for r in rounds))


def measured_by_site(view: CuriousSiteView) -> list[Measured]:
    """The same as a site infers them."""
    return _informative(view.model, ((seen, seen.residual) for seen in inferred_totals(view)))


def _informative(model: Model, rounds: Iterable[tuple[BlockRound | Inferred, Reals]]) -> list[Measured]:
    found: list[Measured] = []
    for seen, total in rounds:
        stage = stage_of(model, seen.stage)
        if not np.isfinite(total).all():
            continue
        if stage.phases == 2:
            if np.ptp(total, axis=-1).any():
                found.append(Measured(total, None))
        elif stage.audit.posterior_sums and seen.message is not None:
            message = seen.message / seen.message.sum(axis=1, keepdims=True)
            # Equal parameters of all labels tell nothing: the total is then the message times the number of labels.
            if float(np.abs(total - message * total.sum(axis=1, keepdims=True)).max()) > _NOTHING:
                found.append(Measured(total, message))
        if len(found) >= _MOST_EXCHANGES:
            break
    return found


def _enough(measured: Sequence[Measured], wanted: int) -> list[Measured]:
    """The first of them that give so many numbers of each object."""
    found: list[Measured] = []
    for seen in measured:
        if sum(one.total.shape[0] * (one.total.shape[1] - 1) for one in found) >= wanted:
            break
        found.append(seen)
    return found


def columns_of(
    measured: Sequence[Measured], labels: Sequence[int], largest: float, *, first: int = 1, seed: int = 0
) -> list[Groups]:
    """The columns' partitions from totals of the same objects; none if there is too much to do, or nothing to see.

    `labels` has the number of labels of each column, `largest` the largest value that a total can have. The `first`
    exchanges start from random parameters.
    """
    if not measured or not labels:
        return []
    if any(not np.isfinite(m.total).all() or np.abs(m.total).max(initial=0.0) > largest for m in measured):
        return []  # masks
    linear = measured[0].message is None
    complete = np.ones(measured[0].total.shape[-1], dtype=bool)
    if not linear:
        complete = np.abs(measured[0].total[0].sum(axis=0) - len(labels)) < 0.5
    if complete.sum() < _FEWEST:
        return []
    wanted = sum(labels) - len(labels)
    # Random parameters are far from equal; those that follow are nearer, so that totals are more nearly linear.
    later = measured if linear or len(measured) < 3 * first else measured[first:]
    guessed = indicator_columns(linear_rows(_enough(later, first * _MEASURED * wanted)), labels, complete, seed)
    for_tables = _enough(measured, _MEASURED_FOR_TABLES * wanted)
    total = np.concatenate([m.total for m in for_tables])
    message = (
        np.zeros_like(total) if linear else np.concatenate([m.message for m in for_tables if m.message is not None])
    )
    rng = np.random.default_rng(seed)
    sample = np.flatnonzero(complete)
    if len(sample) > _SAMPLE:
        sample = np.sort(rng.choice(sample, _SAMPLE, replace=False))
    search = _Search(total[..., sample], message[..., sample], tuple(labels), linear)
    if search.turn_work > _TURN_WORK:
        return guessed
    search.run(rng, [column[sample] for column in guessed])
    rows, fits = search.rows_of(total, message, complete, rng)
    found = [np.where(fits, rows[:, c], NO_IDEA).astype(np.intp) for c in range(len(labels))]
    return found if search.residual < _SOLVED else [*found, *guessed]


class _Search:
    """The best rows and tables found so far for a sample of objects without a missing label.

    Labels of all columns are numbered one after the other. The last cluster's table is 0: only ratios matter.
    """

    def __init__(self, total: Reals, message: Reals, labels: tuple[int, ...], linear: bool) -> None:
        self._total, self._message, self._labels, self._linear = total, message, labels, linear
        self._ends = np.cumsum(labels)
        self._begins = self._ends - np.array(labels)
        self._width = int(self._ends[-1])
        starts, k, n = total.shape
        self._free = k if linear else k - 1
        # Numbers of a start in which labels make little difference count as much as the others.
        expected = total.mean(axis=-1, keepdims=True) if linear else message * total.sum(axis=1, keepdims=True)
        self._weight = 1.0 / np.maximum(np.sqrt(np.square(total - expected).mean(axis=(1, 2))), 1e-12)
        tables = starts * self._free * n * (self._free * self._width) ** 2 if not linear else n * self._width**2
        self.turn_work = float(tables + n * self._width**2 * starts * k)
        self._tables: Reals = np.zeros((starts, k, self._width))
        self._rows: Groups = np.zeros((n, len(labels)), dtype=np.intp)
        self.residual = np.inf  # mean square

    def run(self, rng: np.random.Generator, guessed: Sequence[Groups]) -> None:
        """Descend from rows that are partly known, then from the best ones with one or two columns changed.

        `guessed` are partitions that may be columns, the best first.
        """
        turns = int(_WORK / self.turn_work)
        first = self._random(rng, range(len(self._labels)))
        free = sorted(range(len(self._labels)), key=lambda c: self._labels[c])
        unknown = list(free)
        for column in guessed:
            fitting = [c for c in free if c in unknown and self._labels[c] > column.max()]
            if fitting:
                first[:, fitting[0]] = self._begins[fitting[0]] + column
                unknown.remove(fitting[0])
        for _ in range(_FIRST):
            turns -= self._descend(np.zeros_like(self._tables), first.copy())
            if self.residual < _SOLVED or turns <= 0 or not unknown:
                break
            first[:, unknown] = self._random(rng, unknown)
        if self.residual < _SOLVED or turns <= 0:
            return
        for _ in range(_MOST_CHANGES):
            changed = rng.choice(len(self._labels), min(1 + int(rng.random() < 0.5), len(self._labels)), replace=False)
            rows, tables = self._rows.copy(), self._tables.copy()
            rows[:, changed] = self._random(rng, changed)
            for c in changed:
                tables[:, :, self._begins[c] : self._ends[c]] = 0.0
            turns -= self._descend(tables, rows)
            if self.residual < _SOLVED or turns <= 0:
                return

    def _random(self, rng: np.random.Generator, columns: Iterable[int]) -> Groups:
        n = self._total.shape[-1]
        return np.stack([rng.integers(self._begins[c], self._ends[c], n) for c in columns], axis=1).astype(np.intp)

    def _descend(self, tables: Reals, rows: Groups) -> int:
        """Tables and rows in turn; keeps them if they are better than the best. The number of turns."""
        last, damping = np.inf, np.full(len(tables), 0.1)
        turns = 0
        while turns < _TURNS:
            turns += 1
            for _ in range(_STEPS):
                tables, damping = self._better_tables(tables, rows, damping)
            terms = self._terms(self._message, tables)
            rows, squares = self._better_rows(self._total, terms, rows, sweeps=1)
            residual = float(squares.mean()) / (self._total.shape[0] * self._total.shape[1])
            if residual < _SOLVED or residual > _LITTLE_GAIN * last:
                break
            last = residual
        if residual < self.residual:
            self._tables, self._rows, self.residual = tables, rows, residual
        return turns

    def _terms(self, message: Reals, tables: Reals) -> Reals:
        """(starts, k, n, labels): what each label would add to the total of an object."""
        if self._linear:
            return np.broadcast_to(tables[:, :, None], (*message.shape, tables.shape[-1]))
        joint = message[..., None] * np.exp(tables)[:, :, None]
        terms: Reals = joint / joint.sum(axis=1, keepdims=True)
        return terms

    def _better_tables(self, tables: Reals, rows: Groups, damping: Reals) -> tuple[Reals, Reals]:
        """One step of Levenberg and Marquardt's method in each start; exact where totals are linear."""
        starts, _, n = self._total.shape
        has = np.zeros((n, self._width))
        has[np.arange(n)[:, None], rows] = 1.0
        if self._linear:
            square = has.T @ has + 1e-9 * np.eye(self._width)
            solved = np.linalg.solve(square, has.T @ self._total.reshape(-1, n).T).astype(np.float64)
            return solved.T.reshape(tables.shape), damping
        phi = self._terms(self._message, tables)
        weight = self._weight[:, None, None]
        rest = ((phi * has).sum(axis=-1) - self._total) * weight
        used, free = phi[:, : self._free], self._free
        slopes = -(used * has)[:, :, :, None] * used.transpose(0, 2, 1, 3)[:, None]
        for h in range(free):
            slopes[:, h, :, h] += used[:, h] * has
        matrix = slopes.reshape(starts, free * n, free * self._width) * weight
        turned = matrix.transpose(0, 2, 1)
        square = turned @ matrix + damping[:, None, None] * np.eye(free * self._width)
        step = np.linalg.solve(square, -turned @ rest[:, :free].reshape(starts, -1, 1)).reshape(starts, free, -1)
        moved = tables.copy()
        moved[:, :free] = np.clip(moved[:, :free] + np.clip(step, -2.0, 2.0), -_STEEPEST, _STEEPEST)
        left = ((self._terms(self._message, moved) * has).sum(axis=-1) - self._total) * weight
        better = np.square(left).sum(axis=(1, 2)) < np.square(rest).sum(axis=(1, 2))
        damping = np.where(better, np.maximum(damping / 4.0, 1e-12), np.minimum(damping * 4.0, 10.0))
        return np.where(better[:, None, None], moved, tables), damping

    def _better_rows(
        self, total: Reals, terms: Reals, rows: Groups, sweeps: int, may_miss: bool = False
    ) -> tuple[Groups, Reals]:
        """Rows with a smaller residual, one or two labels changed at a time, and (n,) the squares of their residuals.

        `may_miss`: the number of all labels stands for a missing one, which adds nothing.
        """
        n = total.shape[-1]
        weight = self._weight[:, None, None]
        wanted = (total * weight).reshape(-1, n)
        flat = (terms * weight[..., None]).reshape(len(wanted), n, -1).transpose(1, 2, 0)
        products = np.zeros((n, self._width + 1, self._width + 1))
        products[:, :-1, :-1] = flat @ flat.transpose(0, 2, 1)
        pull = np.zeros((n, self._width + 1))
        pull[:, :-1] = (flat @ wanted.T[:, :, None])[..., 0]
        options = [np.arange(b, e) for b, e in zip(self._begins, self._ends, strict=True)]
        if may_miss:
            options = [np.append(o, self._width) for o in options]
        rows, every = rows.copy(), np.arange(n)
        # The gradient of an option: its product with what the other columns have not explained yet.
        left = pull - products[every[:, None], rows].sum(axis=1)
        own = products[:, np.arange(self._width + 1), np.arange(self._width + 1)]
        for _ in range(sweeps):
            before = rows.copy()
            for c, mine in enumerate(options):
                left += products[every, rows[:, c]]
                rows[:, c] = mine[(own[:, mine] - 2.0 * left[:, mine]).argmin(axis=1)]
                left -= products[every, rows[:, c]]
            for c, mine in enumerate(options):
                for d, other in enumerate(options[:c]):
                    left += products[every, rows[:, c]] + products[every, rows[:, d]]
                    one, two = own[:, mine] - 2.0 * left[:, mine], own[:, other] - 2.0 * left[:, other]
                    both = one[:, :, None] + two[:, None] + 2.0 * products[:, mine[:, None], other]
                    best = both.reshape(n, -1).argmin(axis=1)
                    rows[:, c], rows[:, d] = mine[best // len(other)], other[best % len(other)]
                    left -= products[every, rows[:, c]] + products[every, rows[:, d]]
            if (rows == before).all():
                break
        # |wanted - sum|² = |wanted|² - sum over columns of (pull + left)
        explained = np.take_along_axis(pull + left, rows, axis=1).sum(axis=1)
        return rows, np.maximum(np.square(wanted).sum(axis=0) - explained, 0.0)

    def rows_of(self, total: Reals, message: Reals, complete: Masks, rng: np.random.Generator) -> tuple[Groups, Masks]:
        """(n, columns) the labels of all objects, from the best tables, and for which objects they fit."""
        n = total.shape[-1]
        terms = self._terms(message, self._tables)
        best = np.zeros((n, len(self._labels)), dtype=np.intp)
        least = np.full(n, np.inf)
        for _ in range(_ROW_STARTS):
            first = np.stack([rng.integers(b, e, n) for b, e in zip(self._begins, self._ends, strict=True)], axis=1)
            for some, may_miss in ((complete, False), (~complete, True)):
                at = np.flatnonzero(some & (least > _SOLVED))
                if not len(at):
                    continue
                rows, squares = self._better_rows(total[..., at], terms[:, :, at], first[at], 4, may_miss)
                better = squares < least[at]
                best[at[better]], least[at[better]] = rows[better], squares[better]
        return best, np.isfinite(least)
