"""Linear programming: the labels whose counts come nearest to the opened tables.

A table of an own column with a foreign one is a sum over the attacker's own objects: for label a of its own,
P[a, b] = sum of y_ib over the objects i that have a, where y_ib says whether i has label b. Each own label is one
equation; y is at least 0 and sums to at most 1 for each object. Exact tables determine y as soon as there are about 0.3
equations for each object. With noise the programme finds labels that explain the noise.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, eye_array, hstack, kron

from ce.audit.adversary_views import NOT_ASKED, Guess
from ce.audit.partitions import Groups
from ce.audit.sealed.site_knowledge import SiteKnowledge, Target
from ce.ring import Reals

#: How much an object of a count that is not explained costs, relative to the prior, where tables are exact.
_EXACT = 100.0
_LEAST_CHANCE = 1e-6


def nearest_labels(known: SiteKnowledge, target: Target, prior: Reals) -> Guess | None:
    """The nearest labels and, among those that are nearly as near, the likelier ones.

    `prior`: (objects, labels) chances. None: no own column of which all counts are of own objects.
    """
    # Counted from the least likely label, so that no label is never the best choice.
    return _solved(known, target, np.log(np.maximum(prior, _LEAST_CHANCE) / _LEAST_CHANCE))


def _solved(known: SiteKnowledge, target: Target, prior: Reals) -> Guess | None:
    columns = known.exclusive_columns
    asked = np.flatnonzero(known.available[:, target.column])
    if not columns or len(asked) < 2:
        return None
    # Objects that the attacker cannot tell apart are one unknown, as large as their number.
    _, first, groups = np.unique(known.alike[asked], return_index=True, return_inverse=True)
    groups = groups.reshape(-1)
    sizes = np.bincount(groups)
    others = [site for site in known.holders[known.seen[0].layout.names[target.column]] if site != known.site]
    equations, counts, prices = [], [], []
    for seen in known.seen:
        rows = np.vstack([seen.one_hot(columns)[asked][groups == g].sum(axis=0) for g in range(len(sizes))])
        own = seen.one_hot(columns).T @ (seen.own[:, [target.column]] == np.arange(target.groups))
        equations.append((rows / sizes[:, None]).T)
        counts.append(seen.cells(columns, target.column) - own)
        prices.append(np.full(equations[-1].shape[0], np.sqrt(2.0) / seen.release.sd if seen.release.sd else _EXACT))
    most = len(others) * sizes
    programme = np.vstack(equations), np.vstack(counts), np.concatenate(prices)
    labels = _programme(*programme, most, prior[asked][first])
    guess = np.full(len(known.winners), NOT_ASKED, dtype=np.intp)
    guess[asked] = labels[groups]
    return guess


def _programme(rows: Reals, counts: Reals, prices: Reals, most: Groups, prior: Reals) -> Guess:
    """(groups,) the label with the largest part. rows: (equations, groups) share of a group's objects in each count."""
    n_equations, n_groups = rows.shape
    k = counts.shape[1]
    unknowns = kron(csr_array(rows), eye_array(k))
    gap = eye_array(n_equations * k)
    per_group = kron(eye_array(n_groups), np.ones((1, k)))
    solved = linprog(
        np.concatenate([-prior.ravel(), np.repeat(prices, k), np.repeat(prices, k)]),
        A_ub=hstack([per_group, csr_array((n_groups, 2 * n_equations * k))]),
        b_ub=most,
        A_eq=hstack([unknowns, gap, -gap]),
        b_eq=counts.ravel(),
        bounds=(0, None),
        method="highs",
    )
    if solved.x is None:
        return np.zeros(n_groups, dtype=np.intp)
    return np.asarray(solved.x[: n_groups * k].reshape(n_groups, k).argmax(axis=1), dtype=np.intp)
