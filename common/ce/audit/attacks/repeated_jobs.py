"""Repeated jobs: several jobs over the same labels that differ in name and smoothing. Each adds equations.

Starts of another job are other random numbers, so that its totals measure the same label rows anew: what one job hides
because there are more labels than numbers, some jobs together show. In another job objects have other pseudonyms and
another order. A member knows its objects by name. The coordinator links them by what does not depend on the job: how
many labels and votes they have, and to which clusters they belong in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from ce.audit.adversary_views import CoordinatorView, CuriousSiteView, Guesses, Question
from ce.audit.attacks.alternation import columns_of, labels_of, measured_by_coordinator, measured_by_site
from ce.audit.attacks.flat_sums import flat_columns, flat_residuals, flat_totals
from ce.audit.attacks.indicator_search import Measured
from ce.audit.attacks.linear_unmix import largest_sum
from ce.audit.partitions import Groups
from ce.protocol.messages.array_names import ArrayName
from ce.ring import Reals

#: How often clusters and objects of two jobs are matched in turn.
_MATCHES = 4
#: Weight of counts, which are the same in every job, beside memberships, which are nearly so.
_COUNTS = 10.0


def repeat(views: Sequence[CoordinatorView], questions: Sequence[Question]) -> Guesses:
    """Solve the totals of several jobs together, as the coordinator. Objects are in the order of the first job."""
    guesses: Guesses = {}
    for block in {question.block for question in questions}:
        asked = [question for question in questions if question.block == block]
        orders = [linked(views[0], view, block) for view in views]
        measured = [measured_by_coordinator(view, block) for view in views]
        flat = [
            [total[..., order] for total in flat_totals(view, block)] for view, order in zip(views, orders, strict=True)
        ]
        guesses |= dict.fromkeys(asked, _solved(measured, orders, flat, asked, largest_sum(views[0])))
    return guesses


def repeat_as_site(views: Sequence[CuriousSiteView], questions: Sequence[Question]) -> Guesses:
    """The same as one site, which knows which objects are the same."""
    place = [{int(row): at for at, row in enumerate(view.rows)} for view in views]
    orders = [np.array([at[int(row)] for row in views[0].rows], dtype=np.intp) for at in place]
    measured = [measured_by_site(view) for view in views]
    flat = [[total[..., order] for total in flat_residuals(view)] for view, order in zip(views, orders, strict=True)]
    return dict.fromkeys(questions, _solved(measured, orders, flat, questions, largest_sum(views[0])))


def _solved(
    measured: Sequence[Sequence[Measured]],
    orders: Sequence[Groups],
    flat: Sequence[Sequence[Reals]],
    questions: Sequence[Question],
    largest: float,
) -> list[Groups]:
    labels = labels_of(questions)
    found = columns_of(list(_interleaved(measured, orders)), labels, largest, first=len(orders))
    totals = [total for of_job in flat for total in of_job]
    return [*found, *flat_columns(totals, labels, largest)] if totals else found


def _interleaved(measured: Sequence[Sequence[Measured]], orders: Sequence[Groups]) -> Iterator[Measured]:
    """The first exchange of every job, the second one of every job, and so on, all in the order of the first job."""
    for exchange in zip_longest(*measured):
        for seen, order in zip(exchange, orders, strict=True):
            if seen is not None:
                message = None if seen.message is None else seen.message[..., order]
                yield Measured(seen.total[..., order], message)


def linked(one: CoordinatorView, other: CoordinatorView, block: int) -> Groups:
    """For each object of a block in one job, its place in the other job, as far as the coordinator can tell."""
    size = one.topology.blocks[block].size
    if one is other:
        return np.arange(size)
    here, there = _memberships(one, block), _memberships(other, block)
    if here is None or there is None:
        return np.arange(size)
    counts, others = _counts(one, block), _counts(other, block)
    # Clusters may be in another order: at first memberships are compared in order of size, then cluster by cluster.
    cost = cdist(np.sort(here, axis=1), np.sort(there, axis=1)) + _COUNTS * cdist(counts, others)
    order = linear_sum_assignment(cost)[1]
    for _ in range(_MATCHES):
        clusters = linear_sum_assignment(-(here.T @ there[order]))[1]
        again = linear_sum_assignment(cdist(here, there[:, clusters]) + _COUNTS * cdist(counts, others))[1]
        if (again == order).all():
            break
        order = again
    found: Groups = order.astype(np.intp)
    return found


def _memberships(view: CoordinatorView, block: int) -> Reals | None:
    """(n, k) the result, which the home sends to the members of a block; None where the coordinator is not the home."""
    for exchange in view.exchanges:
        found = exchange.sent(ArrayName.of_block(block, "memberships"))
        if found is not None:
            return found.reshape(-1, found.shape[-1]).T
    return None


def _counts(view: CoordinatorView, block: int) -> Reals:
    """(n, ...) what is counted once, before the first iteration: labels, and votes by class."""
    found = [np.zeros((1, view.topology.blocks[block].size))]
    for what in ("labels", "hidden", "votes"):
        total, _ = view.opening(ArrayName.of_block(block, what))
        if total is not None:
            numbers = total.reshape(-1, total.shape[-1]).astype(np.float64)
            found.append(numbers / max(float(np.abs(numbers).max()), 1.0))
    return np.concatenate(found).T
