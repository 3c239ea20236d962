"""Laws that every total obeys in every layout: checked before a total is used.

Masks that do not cancel leave uniformly random words: when sites disagree about job, epoch, members, objects, shape or
scale, or when a site sends false sums, a total soon breaks one of these laws, and the job fails naming it:

    labels        0 <= number of labels of an object <= clusterings
    votes         0 <= votes and ballots of an object, and no more than classifiers
    object sums   every a_ih between the smallest and the largest that the object's labels can give, and, where a label
                  is shared out among the clusters, sum_h a_ih = number of labels
    column sums   0 <= n_hr <= objects
    counts        0 <= objects counted, moved, agreeing <= objects
    sizes         0 <= size of a cluster, and all sizes together are the objects that have a label
    shares        within the bound that was declared for the sum
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ce.errors import BrokenTotals
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.topology.site_view import SiteView
from ce.ring import LARGEST_BITS, Reals, Scale, SentWords, Words
from ce.steps.model import Model, Sizes

#: What rounding each term to fixed point can add up to, per label: far more than it does, far less than noise. In units
#: of the last bit, which is what counts where an array has few fraction bits.
_SLACK, _SLACK_BITS = 2.0**-20, 64


def check_opening(name: str, total: Words, view: SiteView, scales: Mapping[str, Scale]) -> None:
    """Labels, votes and claims of a shared block, and the number of objects."""
    array, sizes = ArrayName(name), view.sizes
    among = array.contributors(view)
    match (array.kind, array.what):
        case ("global", "objects"):
            _within(name, "0 <= objects <= all objects", total, 0, sizes.objects, among)
        case (_, "labels" | "hidden"):
            _within(name, "0 <= labels <= clusterings", total, 0, sizes.clusterings, among)
        case (_, "ballots"):
            _within(name, "0 <= ballots <= classifiers", total, 0, sizes.classifiers, among)
        case (_, "votes"):
            unit = scales["votes"].unit
            _within(name, "0 <= votes", total, 0, sizes.classifiers * unit, among)
            _within(name, "votes <= classifiers", total.sum(axis=0), 0, (sizes.classifiers + _SLACK) * unit, among)
        case (_, "claims"):
            _within(name, "0 <= claims <= sites", total, 0, 2**31, among)


def check_object_sums(
    total: SentWords, labels: Words, model: Model, scale: Scale, members: Mapping[tuple[str, ...], slice]
) -> None:
    """Object sums (starts, k, n) of objects that have so many labels; which members hold which of them."""
    if not labels.size:
        return
    try:
        _check_object_sums(total, labels, model, scale)
    except BrokenTotals:
        for among, part in members.items():
            _check_object_sums(total[..., part], labels[part], model, scale, among)
        raise


def _check_object_sums(total: SentWords, labels: Words, model: Model, scale: Scale, among: Sequence[str] = ()) -> None:
    name, unit = "object sums", scale.unit
    smallest, largest = (term * unit for term in model.cell_terms)
    slack: Reals = labels.astype(np.float64) * max(unit * _SLACK, _SLACK_BITS) + model.k
    _within(name, "smallest <= a_ih", total, labels * smallest - slack if smallest else 0, None, among)
    if model.normalised:  # and then no a_ih is too large either
        difference = total.sum(axis=1) - labels * unit
        _within(name, "sum_h a_ih = number of labels", difference, -slack * model.k, slack * model.k, among)
    else:
        _within(name, "a_ih <= largest", total, None, labels * largest + slack, among)


def check_column_sums(total: Words, sizes: Sizes, scale: Scale, holders: Sequence[str]) -> None:
    """Column sums (starts, k, categories)."""
    _within("column sums", "0 <= n_hr <= objects", total, 0, (sizes.objects + 1) * scale.unit, holders)


def check_shares(name: str, total: Words, view: SiteView) -> None:
    """Totals over all objects of an iteration, and those of the end."""
    if name in ("moved", "agreement", "sizes"):
        _within(name, "0 <= count <= objects", total, 0, view.sizes.objects, view.sites)
    else:
        _within(name, "within its declared bound", total, -(2**LARGEST_BITS), 2**LARGEST_BITS, view.sites)


def check_sizes(total: Words, objects: int, view: SiteView) -> None:
    """Sizes (k,) of the clusters: every object that has a label is in one of them."""
    check_shares("sizes", total, view)
    _within("sizes", "sum_h size_h = objects with a label", total.sum(keepdims=True), objects, objects, view.sites)


def _within(
    name: str,
    law: str,
    total: SentWords | Reals,
    least: Reals | float | None,
    most: Reals | float | None,
    among: Sequence[str],
) -> None:
    if total.size and (_any_below(total, least) or _any_above(total, most)):
        raise BrokenTotals(name, law, among)


# One bound for all entries is compared with the smallest or the largest of them. ufunc.reduce is total.min() without
# its layers of Python, which cost more than the work where there are few entries.


def _any_below(total: SentWords | Reals, least: Reals | float | None) -> bool:
    if isinstance(least, np.ndarray):
        return bool((total < least).any())
    return least is not None and np.minimum.reduce(total, axis=None).item() < least


def _any_above(total: SentWords | Reals, most: Reals | float | None) -> bool:
    if isinstance(most, np.ndarray):
        return bool((total > most).any())
    return most is not None and np.maximum.reduce(total, axis=None).item() > most
