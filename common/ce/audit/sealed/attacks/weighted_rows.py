"""Rows that are not one-hot: a site that deviates weighs chosen objects so much that noise does not hide them.

The product of two sites is linear in their rows, and nobody can see that a masked row is not one-hot. An object with
weight w in a category of its own shows its foreign labels as w in one cell of the table and 0 in the others; the rest
of its row, 1 - w, is spread over the categories where all other objects are, so that totals and ranges look like those
of honest rows. This is a stated limit: in sealed jobs sites are trusted to follow the protocol.
"""

from __future__ import annotations

import numpy as np

from ce.audit.partitions import Groups
from ce.audit.sealed.pooled_labels import PooledLabels
from ce.audit.sealed.releases import noisy_tables
from ce.job import Job
from ce.ring import Reals

#: Weight of a chosen object, in deviations of the noise.
_WEIGHT = 4.5


def chosen_labels(
    labels: PooledLabels, site: str, job: Job, epsilon: float | str, draw: int
) -> tuple[list[tuple[int, int, int]], bool]:
    """Guesses (object, column, label) for as many objects as the attacker has categories to spare, and whether the
    tables would pass the checks of the other sites."""
    layout = labels.layout
    mine = [j for j, name in enumerate(layout.names) if labels.holders[name] == (site,)]
    foreign = [j for j, name in enumerate(layout.names) if site not in labels.holders[name]]
    tables, sd = noisy_tables(labels, job, epsilon, ("weighted rows", draw))
    noise = tables - labels.tables
    shared = np.flatnonzero(np.sum([labels.held[s] for s in labels.sites], axis=0) > 1)
    shared = shared[labels.held[site][shared]]
    weight = np.ceil(_WEIGHT * max(sd, 1.0))
    guesses, passed, at = [], True, 0
    for j in mine:
        spare = layout.categories[j] // 2
        chosen = shared[at : at + spare]
        at += spare
        rows = _rows(labels, site, layout.categories[j], chosen, weight)
        for other in foreign:
            counts = labels.counts[other]
            cells = np.ix_(_span(labels, j), _span(labels, other))
            opened = rows.T @ counts + noise[cells]
            most = len(labels.ids) + 8.0 * sd
            passed &= bool(opened.min() >= -8.0 * sd and opened.max() <= most)
            for number, object_ in enumerate(chosen):
                if counts[object_].any():
                    guesses.append((int(object_), other, int(opened[number].argmax())))
    return guesses, passed


def _rows(labels: PooledLabels, site: str, categories: int, chosen: Groups, weight: float) -> Reals:
    """(objects, categories) of one column: each chosen object has the first categories, the others share the rest."""
    rows = np.zeros((len(labels.ids), categories))
    first = categories // 2
    held = np.flatnonzero(labels.held[site])
    rows[held, first + np.arange(len(held)) % (categories - first)] = 1.0
    rows[chosen] = 0.0
    rows[np.ix_(chosen, np.arange(first, categories))] = (1.0 - weight) / (categories - first)
    rows[chosen, np.arange(len(chosen))] = weight
    return rows


def _span(labels: PooledLabels, column: int) -> Groups:
    begin = labels.layout.offsets[column]
    return np.arange(begin, begin + labels.layout.categories[column])
