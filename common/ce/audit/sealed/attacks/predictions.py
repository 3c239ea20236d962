"""Predictions of a foreign column that tell no two objects with equal own labels and winner apart.

They use the opened tables as statistics over all objects, as anybody may who trains a classifier on a noisy table: what
differential privacy allows on purpose. So they are no attack on an object but, with the published labels and the
attacker's own columns, the baseline that attacks are compared with.
"""

from __future__ import annotations

import numpy as np

from ce.audit.adversary_views import Guess
from ce.audit.sealed.site_knowledge import Seen, SiteKnowledge, Target
from ce.ring import Reals

#: Pseudo-counts of a cell, beside what noise leaves uncertain.
_SMOOTHING = 0.5


def implied(known: SiteKnowledge, target: Target) -> list[Guess]:
    """Every prediction that counts as baseline."""
    seen = known.seen[0]
    own = [seen.own[:, j].astype(np.intp) for j in known.own_columns]
    predicted = [label_chances(known, target).argmax(axis=1)]
    for j in known.own_columns:
        table = _positive(seen, j, target.column)
        column = table.argmax(axis=1)[seen.own[:, j]]
        column[seen.own[:, j] < 0] = table.sum(axis=0).argmax()
        predicted.append(column)
    by_cluster = cluster_chances(known)
    beta = seen.release.beta[seen.span(target.column)]
    predicted.append((by_cluster @ beta.T).argmax(axis=1))
    predicted.append(by_cluster.argmax(axis=1))
    predicted.append(beta.argmax(axis=0)[known.winners])
    predicted.append(informed_chances(known, target).argmax(axis=1))
    return [known.winners, *own, *(guess.astype(np.intp) for guess in predicted)]


def label_chances(known: SiteKnowledge, target: Target) -> Reals:
    """(objects, labels) chances of each label given the own labels, as if these were independent of each other."""
    seen = known.seen[0]
    columns = known.own_columns
    logs = np.zeros((len(seen.own), target.groups))
    margins = sum((_positive(seen, j, target.column).sum(axis=0) for j in columns), np.zeros(target.groups))
    logs += np.log(margins / margins.sum()) if columns else 0.0
    for j in columns:
        table = _positive(seen, j, target.column)
        given = np.log(table / table.sum(axis=0))
        labelled = seen.own[:, j] >= 0
        logs[labelled] += given[seen.own[labelled, j]]
    return _normalised(logs)


def informed_chances(known: SiteKnowledge, target: Target) -> Reals:
    """The same, given the published label too, as if it were one more column."""
    seen = known.seen[0]
    beta = seen.release.beta[seen.span(target.column)]
    chances = label_chances(known, target) * np.where(known.winners[:, None] >= 0, beta.T[known.winners], 1.0)
    normalised: Reals = chances / chances.sum(axis=1, keepdims=True)
    return normalised


def cluster_chances(known: SiteKnowledge) -> Reals:
    """(objects, k) chances of each cluster given the own labels, by the opened model."""
    release, own = known.seen[0].release, known.seen[0].own
    logs = np.tile(np.log(np.maximum(release.weights, 1e-12)), (len(own), 1))
    for j in known.own_columns:
        beta = np.log(np.maximum(release.beta[known.seen[0].span(j)], 1e-4))
        labelled = own[:, j] >= 0
        logs[labelled] += beta[own[labelled, j]]
    return _normalised(logs)


def _positive(seen: Seen, column: int, target: int) -> Reals:
    """The table of two columns, without cells that only noise makes, smoothed by what noise leaves uncertain."""
    table = seen.cells([column], target)
    positive: Reals = np.maximum(table, 0.0) + _SMOOTHING + 0.1 * seen.release.sd
    return positive


def _normalised(logs: Reals) -> Reals:
    chances = np.exp(logs - logs.max(axis=1, keepdims=True))
    normalised: Reals = chances / chances.sum(axis=1, keepdims=True)
    return normalised
