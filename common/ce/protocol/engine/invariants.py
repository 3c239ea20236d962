"""Laws that every total obeys in every layout: checked before a total is used.

Masks that do not cancel leave uniformly random words: when sites disagree about job, epoch, members, objects, shape or
scale, or when a site sends false sums, a total soon breaks one of these laws, and the job fails naming it:

    labels        0 <= number of labels of an object <= clusterings
    votes         0 <= votes and ballots of an object, and no more than classifiers
    object sums   every a_ih between the smallest and the largest that the object's labels can give, and, where a label
                  is shared out among the clusters, sum_h a_ih = number of labels
    column sums   0 <= n_hr <= objects
    counts        0 <= objects counted, moved, agreeing <= objects
    shares        within the bound that was declared for the sum
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ce.errors import BrokenTotals
from ce.protocol.messages.array_names import ArrayName
from ce.ring import LARGEST_BITS, Reals, Scale, Words
from ce.steps.model import Model, Sizes

#: What rounding each term to fixed point can add up to, per label: far more than it does, far less than noise.
_SLACK = 2.0**-20


def check_opening(name: str, total: Words, sizes: Sizes, scales: Mapping[str, Scale]) -> None:
    """Labels, votes and claims of a shared block, and the number of objects."""
    array = ArrayName(name)
    match (array.kind, array.what):
        case ("global", "objects"):
            _within(name, "0 <= objects <= all objects", total, 0, sizes.objects)
        case (_, "labels" | "hidden"):
            _within(name, "0 <= labels <= clusterings", total, 0, sizes.clusterings)
        case (_, "ballots"):
            _within(name, "0 <= ballots <= classifiers", total, 0, sizes.classifiers)
        case (_, "votes"):
            unit = scales["votes"].unit
            _within(name, "0 <= votes", total, 0, sizes.classifiers * unit)
            _within(name, "votes <= classifiers", total.sum(axis=0), 0, (sizes.classifiers + _SLACK) * unit)
        case (_, "claims"):
            _within(name, "0 <= claims <= sites", total, 0, 2**31)


def check_object_sums(total: Words, labels: Words, model: Model, scale: Scale) -> None:
    """Object sums (starts, k, n) of objects that have so many labels."""
    name, unit = "object sums", scale.unit
    smallest, largest = (term * unit for term in model.cell_terms)
    slack: Reals = labels.astype(np.float64) * (unit * _SLACK) + model.k
    _within(name, "smallest <= a_ih", total, labels * smallest - slack if smallest else 0, None)
    if model.normalised:  # and then no a_ih is too large either
        difference = total.sum(axis=1) - labels * unit
        _within(name, "sum_h a_ih = number of labels", difference, -slack * model.k, slack * model.k)
    else:
        _within(name, "a_ih <= largest", total, None, labels * largest + slack)


def check_column_sums(total: Words, sizes: Sizes, scale: Scale) -> None:
    """Column sums (starts, k, categories)."""
    _within("column sums", "0 <= n_hr <= objects", total, 0, (sizes.objects + 1) * scale.unit)


def check_shares(name: str, total: Words, sizes: Sizes) -> None:
    """Totals over all objects of an iteration, and those of the end."""
    if name in ("moved", "agreement", "sizes"):
        _within(name, "0 <= count <= objects", total, 0, sizes.objects)
    else:
        _within(name, "within its declared bound", total, -(2**LARGEST_BITS), 2**LARGEST_BITS)


def _within(name: str, law: str, total: Words | Reals, least: Reals | float | None, most: Reals | float | None) -> None:
    if (least is not None and (total < least).any()) or (most is not None and (total > most).any()):
        raise BrokenTotals(name, law)
