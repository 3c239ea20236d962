"""Attacks that look for objects with equal rows of numbers.

distinct rows        sums of one site with one column, where they do not depend on messages (mixture): objects have
                     equal rows if and only if they have the same label
phi inversion        phi_ih / message_ih, normalised, depends on the object only through its label
distinct totals      totals of the last exchanges: objects with nearly equal rows have the same labels everywhere
equality classes     the same, scored against the labels of all sites together; soft results show these classes anyway
votes                a classifier's votes are added per class: one vote is a label
the paper's rows     what sites would send in section 5.2.2 of the BCE paper: ln beta_j(x_ij)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ce.audit.adversary_views import BlockRound, CoordinatorView, Guesses, Question
from ce.audit.partitions import Groups, close_rows, equal_rows, nearly_equal_rows
from ce.kernels.cells import Number
from ce.kernels.special import over_clusters
from ce.protocol.messages.array_names import ArrayName
from ce.ring import Reals, Words, decode

#: Errors of one phi, rounded to fixed point and divided by a message above _SMALLEST_MESSAGE, are far below this.
_TOLERANCE = 1e-6
_SMALLEST_MESSAGE = 1e-5
#: Distances, relative to the largest total, up to which totals are taken to be equal; each gives one guess.
_NEARLY_EQUAL = (1e-12, 1e-10, 1e-8, 1e-6, 1e-4)


def distinct_rows(view: CoordinatorView, questions: Sequence[Question]) -> Guesses:
    """Equal rows of the words that the holder sent, in the first exchange in which objects differ."""
    guesses: Guesses = {}
    for question in questions:
        rounds = [round_.parts[question.holder] for round_ in view.rounds(question.block)]
        guesses[question] = [equal_rows(_first_that_differs(rounds))]
    return guesses


def distinct_totals(view: CoordinatorView, questions: Sequence[Question]) -> Guesses:
    """Equal rows of the totals."""
    classes = {block: equality_classes(view, block) for block in {q.block for q in questions}}
    return {question: classes[question.block] for question in questions}


def equality_classes(view: CoordinatorView, block: int) -> list[Groups]:
    """Objects whose totals are nearly equal in the last exchange, or in the last one of all starts; one guess for each
    distance of `_NEARLY_EQUAL`.

    Objects start at different points. Those with equal labels end at the same one, as far as the job has converged.
    """
    rounds = view.rounds(block)
    most = max(len(round_.starts) for round_ in rounds)
    full = [round_ for round_ in rounds if len(round_.starts) == most]
    found = []
    for last in [full[-1]] if full[-1] is rounds[-1] else [full[-1], rounds[-1]]:
        found += equal_at_the_end(decode(last.total, view.scale(last.stage, "objects")))
    return found


def equal_at_the_end(total: Reals) -> list[Groups]:
    """Objects with nearly equal (starts, k, n) totals; one guess for each distance of `_NEARLY_EQUAL`."""
    rows = _flat(total)
    return [close_rows(rows, distance * float(np.abs(rows).max(initial=0.0))) for distance in _NEARLY_EQUAL]


def phi_inversion(view: CoordinatorView, questions: Sequence[Question]) -> Guesses:
    """Divide the holder's sums by the message from which they were computed; this leaves one column of beta."""
    guesses: Guesses = {}
    for question in questions:
        best = _flattest(view.rounds(question.block))
        if best is None:
            guesses[question] = []
            continue
        phi = decode(best.parts[question.holder], view.scale(best.stage, "objects"))
        guesses[question] = [nearly_equal_rows(likelihood_rows(phi, best.message), _TOLERANCE)]
    return guesses


def likelihood_rows(phi: Reals, message: Reals | None) -> Reals:
    """(n, starts * k): phi (starts, k, n) divided by the message from which it was computed, normalised."""
    likelihood = phi if message is None else phi / np.maximum(message, _SMALLEST_MESSAGE)
    total = over_clusters(likelihood)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        return _flat(np.nan_to_num(np.where(total > 0, likelihood / total, 0.0)))


def votes(view: CoordinatorView, questions: Sequence[Question]) -> Guesses:
    """The class with most votes: in the holder's words, and in the total."""
    guesses: Guesses = {}
    for question in questions:
        total, parts = view.opening(ArrayName.of_block(question.block, "votes"))
        part = parts.get(question.holder)
        guesses[question] = [words.argmax(axis=0).astype(np.intp) for words in (part, total) if words is not None]
    return guesses


def paper_rows(beta: Reals, codes: Groups) -> Groups:
    """The partition that rows ln beta_j(x_ij) reveal; `beta` is (k, categories)."""
    rows = np.where(codes[:, None] >= 0, np.log(beta.T)[np.maximum(codes, 0)], 0.0)
    return equal_rows(rows)


def _flattest(rounds: Sequence[BlockRound]) -> BlockRound | None:
    """Of the exchanges in which totals differ between objects, the one whose smallest message is largest: dividing by
    such a message loses least."""
    informative = [round_ for round_ in rounds if np.ptp(round_.total, axis=-1).any()]
    if not informative:
        return None
    differing = [r for r in informative if r.message is not None and np.ptp(r.message, axis=-1).any()]
    return max(differing or informative, key=lambda r: 1.0 if r.message is None else float(r.message.min()))


def _first_that_differs(rounds: Sequence[Words]) -> Words:
    """(n, starts * k) of the first exchange in which not all objects have the same sums."""
    for words in rounds:
        if np.ptp(words, axis=-1).any():
            return _flat(words)
    return _flat(rounds[0])


def _flat(array: NDArray[Number]) -> NDArray[Number]:
    return np.ascontiguousarray(array.reshape(-1, array.shape[-1]).T)
