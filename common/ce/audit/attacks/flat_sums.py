"""Flat sums: a step in which all objects have the same message, so that its object sums are linear in the labels.

The clusterings-only step of bc3e is such a step where it asks for the sums of shared objects. One exchange has k - 1
dimensions: with classes - 1 >= sum over columns of (labels - 1) every column is found. The attack looks at any step
that asks for object sums outside of an iteration; there is none at present.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ce.audit.adversary_views import CoordinatorView, CuriousSiteView, Guesses, Question
from ce.audit.attacks.alternation import labels_of
from ce.audit.attacks.indicator_search import Measured, indicator_columns, linear_rows
from ce.audit.attacks.linear_unmix import largest_sum, unmixed_columns
from ce.audit.partitions import Groups
from ce.ring import Reals, decode


def unmix_flat_sums(view: CoordinatorView, questions: Sequence[Question]) -> Guesses:
    """Unmix the totals that the coordinator sees."""
    guesses: Guesses = {}
    for block in {question.block for question in questions}:
        asked = [question for question in questions if question.block == block]
        if totals := flat_totals(view, block):
            guesses |= dict.fromkeys(asked, flat_columns(totals, labels_of(asked), largest_sum(view)))
    return guesses


def unmix_flat_as_site(view: CuriousSiteView, questions: Sequence[Question]) -> Guesses:
    """Unmix the totals that a site reads in `blind`, minus its own part. In `masked` it is not sent them."""
    totals = flat_residuals(view)
    return dict.fromkeys(questions, flat_columns(totals, labels_of(questions), largest_sum(view))) if totals else {}


def flat_totals(view: CoordinatorView, block: int) -> list[Reals]:
    """(starts, k, n) totals of the steps in which all objects have the same message."""
    return [decode(r.total, view.scale(r.stage, "objects")) for r in view.flat_rounds(block)]


def flat_residuals(view: CuriousSiteView) -> list[Reals]:
    """The same minus the site's own part."""
    return [decode(r.total - r.parts[view.name], view.scale(r.stage, "objects")) for r in view.flat_totals]


def flat_columns(totals: Sequence[Reals], labels: Sequence[int], largest: float) -> list[Groups]:
    """The columns' partitions from totals that are linear in the labels."""
    if any(np.abs(total).max(initial=0.0) > largest for total in totals):
        return []  # masks
    complete = np.abs(totals[0][0].sum(axis=0) - len(labels)) < 0.5
    rows = linear_rows(Measured(total, None) for total in totals)
    return [*unmixed_columns(totals, largest), *indicator_columns(rows, labels, complete)]
