"""Fitting: BCE's totals with known messages give every label away, though no table is known.

Objects with the same labels everywhere end at the same total (`equality classes`), and begin at points of their own. So
a class of p such objects shows one and the same unknown function, in one exchange of one start, at p known messages m:

    total_h(m) = sum over columns c of m_h u_ch / sum_g m_g u_cg          u_c = beta_c(the class's label in c)

1. With more objects than columns least squares takes that sum apart: the columns' vectors u_c. The right answer
   is known by its residual, which is nothing but rounding.
2. An object that differs from the class in one column has there what the others' vectors leave of its total. Vectors
   that two objects or more agree on to the sixth digit are the column's other labels. So on from other rows.
3. With these tables every other total decodes, as in `decoding`.

Neither the number of columns nor that of labels stands against it, but a class that is smaller than the number of
columns does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ce.audit.adversary_views import NO_IDEA, NOT_ASKED, CoordinatorView, CuriousSiteView, Guesses, Question
from ce.audit.attacks.equal_rows import equal_at_the_end, equality_classes
from ce.audit.attacks.linear_unmix import largest_sum
from ce.audit.attacks.meet_in_the_middle import Meeting
from ce.audit.attacks.message_inversion import inferred_totals
from ce.audit.partitions import Groups, nearly_equal_rows
from ce.ring import Reals, decode
from ce.steps.bce import BCESteps
from ce.steps.model import stage_of

#: So many classes of equal objects are tried, each with every start, from so many beginnings.
_CLASSES, _BEGINNINGS = 3, 8
_MOST_OF_A_CLASS = 150
#: More equations than unknowns: a residual of nothing is then no accident.
_SPARE_OBJECTS = 2
_STEPS, _PATIENCE = 600, 100
#: Mean square of the residuals: words are exact to 1e-14, totals that a site works out to 1e-11.
_SOLVED = 1e-20
#: Two vectors of one label differ by rounding, which small numbers magnify.
_SAME_VECTOR, _SMALLEST_REST = 1e-6, 1e-4
_SAME_TOTAL = 1e-6
#: From rows that are known to labels that are not, and back.
_ROUNDS, _ROWS = 6, 40
#: So many objects tell as much as all of them.
_SAMPLE = 150
#: With so many of them decoded no other class is looked at.
_NEARLY_ALL = 0.9

Mask = NDArray[np.bool_]


def fit_totals(view: CoordinatorView, questions: Sequence[Question]) -> Guesses:
    """From the first totals and messages as the coordinator sees them."""
    guesses: Guesses = {}
    for block in {question.block for question in questions}:
        asked = [question for question in questions if question.block == block]
        first, last = view.rounds(block)[0], view.rounds(block)[-1]
        totals = decode(first.total, view.scale(first.stage, "objects"))
        if not isinstance(stage_of(view.model, first.stage), BCESteps) or np.abs(totals).max() > largest_sum(view):
            continue
        if first.message is not None and last.message is not None:
            found = _fit(totals, first.message, equality_classes(view, block), _columns(asked))
            guesses |= dict.fromkeys(asked, _completed(found, last.message[0].argmax(axis=0)))
    return guesses


def fit_as_site(view: CuriousSiteView, questions: Sequence[Question]) -> Guesses:
    """From the totals that a site works out, less its own part."""
    seen = inferred_totals(view)
    for first in seen[:1]:
        if first.message is not None and isinstance(stage_of(view.model, first.stage), BCESteps):
            found = _fit(first.residual, first.message, equal_at_the_end(seen[-1].total), _columns(questions))
            return dict.fromkeys(questions, _completed(found, view.memberships.argmax(axis=0)))
    return {}


def _columns(questions: Sequence[Question]) -> int:
    return len({question.column for question in questions})


def _fit(totals: Reals, message: Reals, ideas: Sequence[Groups], columns: int) -> list[Groups]:
    """The columns' partitions, out of (starts, k, n) totals and messages; none if no class can be taken apart."""
    if not np.ptp(message, axis=-1).any():
        return []  # these are linear in the labels: `unmixing`
    rng = np.random.default_rng(0)
    best: list[Groups] = []
    most = 0
    complete = np.abs(totals[0].sum(axis=0) - columns) < _SAME_TOTAL
    for own in _largest(ideas, complete, columns + _SPARE_OBJECTS):
        for total, told in zip(totals, message, strict=True):
            vectors = _taken_apart(total[:, own], told[:, own], columns, rng)
            if vectors is not None:
                found = _decoded(total, told, vectors)
                decoded = int((found[0] >= 0).sum())
                if decoded > most:
                    best, most = found, decoded
                if decoded > _NEARLY_ALL * min(len(complete), _SAMPLE):
                    return best
    return best


def _completed(columns: Sequence[Groups], consensus: Groups) -> list[Groups]:
    """Where nothing decoded: the label that most objects of the same cluster have, of those that did; if none did, the
    cluster itself."""
    found = []
    for codes in columns:
        guess = codes.copy()
        for cluster in np.unique(consensus):
            own = consensus == cluster
            known = codes[own & (codes >= 0)]
            likely = np.bincount(known).argmax() if len(known) else codes.max() + 1 + cluster
            guess[own & (codes == NO_IDEA)] = likely
        found.append(guess)
    return found


def _largest(ideas: Sequence[Groups], complete: Mask, fewest: int) -> Iterator[Groups]:
    """Objects of large classes, without missing labels, none twice: of the strictest idea of "equal" first, for
    one object of another class spoils everything."""
    classes: dict[bytes, Groups] = {}
    for groups in ideas:
        sizes = np.bincount(groups[complete], minlength=1)
        for name in np.argsort(-sizes, kind="stable")[:_CLASSES]:
            if sizes[name] >= fewest:
                own = np.flatnonzero((groups == name) & complete)
                classes[own.tobytes()] = own
    for own in list(classes.values())[:_CLASSES]:
        yield own[:_MOST_OF_A_CLASS]


def _taken_apart(total: Reals, message: Reals, columns: int, rng: np.random.Generator) -> Reals | None:
    """ln u (k, columns) of objects with equal labels, in any order; None if no beginning leads there."""
    for _ in range(_BEGINNINGS):
        logs, residual = _least_squares(total, message, np.log(rng.exponential(size=(len(total), columns))))
        if residual < _SOLVED:
            centred: Reals = logs - logs.mean(axis=0)
            return centred
    return None


def _explained(message: Reals, logs: Reals) -> Reals:
    """(k, n, vectors): what each vector adds to the total of an object with this message."""
    joint = message[:, :, None] * np.exp(logs)[:, None, :]
    phi: Reals = joint / joint.sum(axis=0)
    return phi


def _least_squares(total: Reals, message: Reals, logs: Reals) -> tuple[Reals, float]:
    """Levenberg and Marquardt, and the mean square of what is left."""
    (k, n), columns = total.shape, logs.shape[1]
    damping = 1e-2
    phi = _explained(message, logs)
    rest = phi.sum(axis=2) - total
    checked = np.inf
    for turn in range(_STEPS):
        slopes = -phi[:, :, None, :] * phi.transpose(1, 0, 2)[None]
        for h in range(k):
            slopes[h, :, h] += phi[h]
        matrix = slopes.reshape(k * n, k * columns)
        square, gradient = matrix.T @ matrix, matrix.T @ rest.reshape(-1)
        before = float(np.square(rest).sum())
        if turn % _PATIENCE == 0:
            if before > 0.5 * checked:
                break
            checked = before
        for _ in range(8):
            step = np.linalg.solve(square + damping * np.eye(len(square)), -gradient).reshape(logs.shape)
            moved = logs + np.clip(step, -2.0, 2.0)
            reached = _explained(message, moved)
            left = reached.sum(axis=2) - total
            if float(np.square(left).sum()) < before:
                break
            damping *= 4.0
        else:
            break
        logs, phi, rest, damping = moved, reached, left, max(damping / 4.0, 1e-16)
        after = float(np.square(rest).sum())
        # Vectors are known far less well than totals: to the last bit that there is.
        if after < _SOLVED * rest.size and after > 0.5 * before:
            break
    return logs, float(np.square(rest).mean())


def _decoded(total: Reals, message: Reals, vectors: Reals) -> list[Groups]:
    """Of each column the labels of some objects; an object without a label there is in a group of its own."""
    tables = [vector[:, None] for vector in vectors.T]
    rows = np.zeros((1, len(tables)), dtype=np.intp)
    codes = np.full((total.shape[1], len(tables)), NOT_ASKED, dtype=np.intp)
    for _ in range(_ROUNDS):
        unknown = codes[:, 0] < 0
        larger = _with_other_labels(total[:, unknown], message[:, unknown], tables, rows)
        if sum(map(np.size, larger)) == sum(map(np.size, tables)):
            break
        tables = larger
        for i in np.flatnonzero(unknown[:_SAMPLE]):
            codes[i] = _decode_one(total[:, i], message[:, i : i + 1], tables)
        seen, counts = np.unique(codes[codes[:, 0] >= 0], axis=0, return_counts=True)
        # A row with a missing label is of no use here: its last choice is none of the table.
        whole = (seen < [table.shape[1] for table in tables]).all(axis=1)
        rows = seen[whole][np.argsort(-counts[whole], kind="stable")][:_ROWS]
    return list(codes.T)


def _with_other_labels(total: Reals, message: Reals, tables: Sequence[Reals], rows: Groups) -> list[Reals]:
    """The tables (k, labels), and what several objects have in one column in place of any label that is known there."""
    phi = [_explained(message, table) for table in tables]
    found = []
    for c, table in enumerate(tables):
        others = np.delete(np.arange(len(tables)), c)
        known = np.unique(rows[:, others], axis=0)
        rest = np.stack([total - sum(phi[o][:, :, r] for o, r in zip(others, row, strict=True)) for row in known], 1)
        at, owner = np.nonzero((rest > _SMALLEST_REST).all(axis=0))
        logs = np.log(rest[:, at, owner] / message[:, owner])
        candidates = np.hstack([table, logs - logs.mean(axis=0)])
        owners = np.concatenate([-1 - np.arange(table.shape[1]), owner])
        groups = nearly_equal_rows(candidates.T, _SAME_VECTOR)
        shared = {int(g) for g in np.flatnonzero(np.bincount(groups) > 1)} - set(groups[: table.shape[1]].tolist())
        new = [candidates[:, groups == g].mean(axis=1) for g in sorted(shared) if len(set(owners[groups == g])) > 1]
        found.append(np.column_stack([table, *new]))
    return found


def _decode_one(total: Reals, message: Reals, tables: Sequence[Reals]) -> Groups:
    """An object's labels, a column's number of labels standing for none; NO_IDEA if nothing adds up to its total."""
    options = [np.vstack([_explained(message, table)[:, 0].T, np.zeros((1, len(total)))]) for table in tables]
    chosen = Meeting(options).find(total, _SAME_TOTAL)
    return np.full(len(tables), NO_IDEA) if chosen is None else np.array(chosen)
