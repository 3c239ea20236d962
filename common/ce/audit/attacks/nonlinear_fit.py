"""Fitting: BCE's totals with known messages reveal every label, although no column parameters are known.

Objects with the same labels everywhere end at the same total (`equality classes`), and start at different points. So a
class of p such objects gives the values of one unknown function, in one exchange of one start, at p known messages m:

    total_h(m) = sum over columns c of m_h u_ch / sum_g m_g u_cg          u_c = beta_c(the class's label in c)

1. With more objects than columns, least squares finds the columns' vectors u_c. The right solution is recognised by its
   residual, which is rounding only.
2. For an object that differs from the class in one column, the total minus the vectors of the other columns gives the
   vector of its label there. Vectors on which two or more objects agree to six digits are the column's other labels.
   The same is then done from other rows.
3. With these column parameters every other total is decoded, as in `known_beta_decode`.

The attack works for any number of columns and labels. It fails where every class is smaller than the number of columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ce.audit.adversary_views import NO_IDEA, NOT_ASKED, CoordinatorView, CuriousSiteView, Guesses, Question
from ce.audit.attacks.equal_rows import equal_at_the_end, equality_classes
from ce.audit.attacks.linear_unmix import largest_sum
from ce.audit.attacks.meet_in_the_middle import SumSearch
from ce.audit.attacks.message_inversion import inferred_totals
from ce.audit.partitions import Groups, nearly_equal_rows
from ce.ring import Reals, decode
from ce.steps.model import stage_of

#: The largest classes of equal objects are tried, each with every start, from several initial values.
_CLASSES, _INITIAL_VALUES = 3, 8
_MOST_OF_A_CLASS = 150
#: More equations than unknowns, so that a residual of zero is not by chance.
_SPARE_OBJECTS = 2
_STEPS, _PATIENCE = 600, 100
#: Mean square of the residuals: words are exact to 1e-14, totals that a site computes to 1e-11.
_SOLVED = 1e-20
#: Two vectors of one label differ by rounding errors, which small numbers magnify.
_SAME_VECTOR, _SMALLEST_REST = 1e-6, 1e-4
_SAME_TOTAL = 1e-6
#: How often new labels are searched from known rows, and from how many rows.
_ROUNDS, _ROWS = 6, 40
#: At most this many objects are decoded.
_SAMPLE = 150
#: With this share of them decoded no other class is tried.
_NEARLY_ALL = 0.9

Mask = NDArray[np.bool_]


def fit_totals(view: CoordinatorView, questions: Sequence[Question]) -> Guesses:
    """Fit the first totals to their messages, both as the coordinator sees them."""
    guesses: Guesses = {}
    for block in {question.block for question in questions}:
        asked = [question for question in questions if question.block == block]
        first, last = view.rounds(block)[0], view.rounds(block)[-1]
        totals = decode(first.total, view.scale(first.stage, "objects"))
        if not stage_of(view.model, first.stage).audit.posterior_sums or np.abs(totals).max() > largest_sum(view):
            continue
        if first.message is not None and last.message is not None:
            found = _fit(totals, first.message, equality_classes(view, block), _columns(asked))
            guesses |= dict.fromkeys(asked, _completed(found, last.message[0].argmax(axis=0)))
    return guesses


def fit_as_site(view: CuriousSiteView, questions: Sequence[Question]) -> Guesses:
    """Fit the totals that a site infers, minus its own part."""
    seen = inferred_totals(view)
    for first in seen[:1]:
        if first.message is not None and stage_of(view.model, first.stage).audit.posterior_sums:
            found = _fit(first.residual, first.message, equal_at_the_end(seen[-1].total), _columns(questions))
            return dict.fromkeys(questions, _completed(found, view.memberships.argmax(axis=0)))
    return {}


def _columns(questions: Sequence[Question]) -> int:
    return len({question.column for question in questions})


def _fit(totals: Reals, message: Reals, classes: Sequence[Groups], columns: int) -> list[Groups]:
    """The columns' partitions from (starts, k, n) totals and messages; none if no class can be fitted.

    `classes` are several guesses of which objects have equal labels.
    """
    if not np.ptp(message, axis=-1).any():
        return []  # such totals are linear in the labels: see `linear_unmix`
    rng = np.random.default_rng(0)
    best: list[Groups] = []
    most = 0
    complete = np.abs(totals[0].sum(axis=0) - columns) < _SAME_TOTAL
    for members in _largest(classes, complete, columns + _SPARE_OBJECTS):
        for start_total, start_message in zip(totals, message, strict=True):
            vectors = _column_vectors(start_total[:, members], start_message[:, members], columns, rng)
            if vectors is not None:
                found = _decoded(start_total, start_message, vectors)
                decoded = int((found[0] >= 0).sum())
                if decoded > most:
                    best, most = found, decoded
                if decoded > _NEARLY_ALL * min(len(complete), _SAMPLE):
                    return best
    return best


def _completed(columns: Sequence[Groups], consensus: Groups) -> list[Groups]:
    """Give objects that were not decoded the most frequent label of the decoded objects of the same cluster; where the
    cluster has none, a group for the cluster itself."""
    found = []
    for codes in columns:
        guess = codes.copy()
        for cluster in np.unique(consensus):
            members = consensus == cluster
            known = codes[members & (codes >= 0)]
            likely = np.bincount(known).argmax() if len(known) else codes.max() + 1 + cluster
            guess[members & (codes == NO_IDEA)] = likely
        found.append(guess)
    return found


def _largest(classes: Sequence[Groups], complete: Mask, fewest: int) -> Iterator[Groups]:
    """The members of large classes that lack no label, no class twice. The strictest guess of "equal" comes first: one
    object of another class makes the fit fail."""
    found: dict[bytes, Groups] = {}
    for groups in classes:
        sizes = np.bincount(groups[complete], minlength=1)
        for name in np.argsort(-sizes, kind="stable")[:_CLASSES]:
            if sizes[name] >= fewest:
                members = np.flatnonzero((groups == name) & complete)
                found[members.tobytes()] = members
    for members in list(found.values())[:_CLASSES]:
        yield members[:_MOST_OF_A_CLASS]


def _column_vectors(total: Reals, message: Reals, columns: int, rng: np.random.Generator) -> Reals | None:
    """ln u (k, columns) of objects with equal labels, columns in any order; None if no initial value leads there."""
    for _ in range(_INITIAL_VALUES):
        logs, residual = _least_squares(total, message, np.log(rng.exponential(size=(len(total), columns))))
        if residual < _SOLVED:
            centred: Reals = logs - logs.mean(axis=0)
            return centred
    return None


def _terms(message: Reals, logs: Reals) -> Reals:
    """(k, n, vectors): the term that each vector adds to the total of an object with this message."""
    joint = message[:, :, None] * np.exp(logs)[:, None, :]
    phi: Reals = joint / joint.sum(axis=0)
    return phi


def _least_squares(total: Reals, message: Reals, logs: Reals) -> tuple[Reals, float]:
    """The solution of Levenberg and Marquardt's method, and the mean square of its residuals."""
    (k, n), columns = total.shape, logs.shape[1]
    damping = 1e-2
    phi = _terms(message, logs)
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
            try:
                step = np.linalg.solve(square + damping * np.eye(len(square)), -gradient).reshape(logs.shape)
            except np.linalg.LinAlgError:  # a factor per column changes nothing: without damping there are many steps
                damping *= 4.0
                continue
            moved = logs + np.clip(step, -2.0, 2.0)
            reached = _terms(message, moved)
            left = reached.sum(axis=2) - total
            if float(np.square(left).sum()) < before:
                break
            damping *= 4.0
        else:
            break
        logs, phi, rest, damping = moved, reached, left, max(damping / 4.0, 1e-16)
        after = float(np.square(rest).sum())
        # Vectors are far less precise than totals, so the iteration goes on to the last bit.
        if after < _SOLVED * rest.size and after > 0.5 * before:
            break
    return logs, float(np.square(rest).mean())


def _decoded(total: Reals, message: Reals, vectors: Reals) -> list[Groups]:
    """For each column the labels of some objects. Objects without a label in a column form one more group."""
    log_betas = [vector[:, None] for vector in vectors.T]
    rows = np.zeros((1, len(log_betas)), dtype=np.intp)
    codes = np.full((total.shape[1], len(log_betas)), NOT_ASKED, dtype=np.intp)
    for _ in range(_ROUNDS):
        unknown = codes[:, 0] < 0
        larger = _with_other_labels(total[:, unknown], message[:, unknown], log_betas, rows)
        if sum(map(np.size, larger)) == sum(map(np.size, log_betas)):
            break
        log_betas = larger
        for i in np.flatnonzero(unknown[:_SAMPLE]):
            codes[i] = _decode_one(total[:, i], message[:, i : i + 1], log_betas)
        seen, counts = np.unique(codes[codes[:, 0] >= 0], axis=0, return_counts=True)
        # Only rows without a missing label are used: a missing label has no vector.
        complete = (seen < [log_beta.shape[1] for log_beta in log_betas]).all(axis=1)
        rows = seen[complete][np.argsort(-counts[complete], kind="stable")][:_ROWS]
    return list(codes.T)


def _with_other_labels(total: Reals, message: Reals, log_betas: Sequence[Reals], rows: Groups) -> list[Reals]:
    """ln beta (k, labels) of each column, extended by the vectors of further labels that several objects agree on."""
    phi = [_terms(message, log_beta) for log_beta in log_betas]
    found = []
    for c, log_beta in enumerate(log_betas):
        others = np.delete(np.arange(len(log_betas)), c)
        known = np.unique(rows[:, others], axis=0)
        rest = np.stack([total - sum(phi[o][:, :, r] for o, r in zip(others, row, strict=True)) for row in known], 1)
        at, owner = np.nonzero((rest > _SMALLEST_REST).all(axis=0))
        logs = np.log(rest[:, at, owner] / message[:, owner])
        candidates = np.hstack([log_beta, logs - logs.mean(axis=0)])
        owners = np.concatenate([-1 - np.arange(log_beta.shape[1]), owner])
        groups = nearly_equal_rows(candidates.T, _SAME_VECTOR)
        shared = {int(g) for g in np.flatnonzero(np.bincount(groups) > 1)} - set(groups[: log_beta.shape[1]].tolist())
        new = [candidates[:, groups == g].mean(axis=1) for g in sorted(shared) if len(set(owners[groups == g])) > 1]
        found.append(np.column_stack([log_beta, *new]))
    return found


def _decode_one(total: Reals, message: Reals, log_betas: Sequence[Reals]) -> Groups:
    """An object's labels; the number of a column's labels stands for a missing one. NO_IDEA if no choice gives the
    total."""
    options = [np.vstack([_terms(message, log_beta)[:, 0].T, np.zeros((1, len(total)))]) for log_beta in log_betas]
    chosen = SumSearch(options).find(total, _SAME_TOTAL)
    return np.full(len(log_betas), NO_IDEA) if chosen is None else np.array(chosen)
