"""Trajectories: clusters all that was seen of an object over all exchanges, into as many groups as a column has labels.

This is the best attack that solves nothing. Objects with similar labels have similar trajectories, whichever site the
labels come from, so that it finds the consensus again. An adversary cannot tell which of several guesses is best, so
each attack here makes only one: k-means of the whole trajectory. (The best of many guesses, chosen by their scores,
would beat the baseline by luck.)
"""

from __future__ import annotations

from collections.abc import Sequence

from ce.audit.adversary_views import CoordinatorView, CuriousSiteView, Guesses, Question
from ce.audit.attacks.message_inversion import inferred_totals, messages
from ce.audit.partitions import Groups, features, k_means, principal
from ce.ring import Reals, decode


def trajectories(view: CoordinatorView, questions: Sequence[Question]) -> Guesses:
    """Cluster totals over all exchanges and starts."""
    guesses: Guesses = {}
    for block in {question.block for question in questions}:
        totals = [decode(r.total, view.scale(r.stage, "objects")) for r in view.rounds(block)]
        guesses |= _clustered(totals, [q for q in questions if q.block == block])
    return guesses


def clustered_parts(view: CoordinatorView, questions: Sequence[Question]) -> Guesses:
    """Cluster the holder's words over all exchanges."""
    guesses: Guesses = {}
    for block, holder in {(question.block, question.holder) for question in questions}:
        parts = [decode(r.parts[holder], view.scale(r.stage, "objects")) for r in view.rounds(block)]
        guesses |= _clustered(parts, [q for q in questions if (q.block, q.holder) == (block, holder)])
    return guesses


def site_trajectories(view: CuriousSiteView, questions: Sequence[Question]) -> Guesses:
    """Cluster messages over all exchanges."""
    return _clustered(messages(view), questions)


def clustered_residuals(view: CuriousSiteView, questions: Sequence[Question]) -> Guesses:
    """Cluster totals minus the site's own part, over all exchanges."""
    return _clustered([seen.residual for seen in inferred_totals(view)], questions)


def _clustered(arrays: Sequence[Reals], questions: Sequence[Question]) -> Guesses:
    if not arrays:
        return {}
    rows = principal(features(arrays, arrays[0].shape[-1]))
    by_groups: dict[int, Groups] = {g: k_means(rows, g) for g in {question.groups for question in questions}}
    return {question: [by_groups[question.groups]] for question in questions}
