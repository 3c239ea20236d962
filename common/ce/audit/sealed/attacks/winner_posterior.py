"""Winners: what the published label of an object, with its own labels and the opened model, says about foreign labels.

The winner is the cluster with the best score over all labels of the object. Foreign rows are drawn from the model given
the own labels; those that would have the same winner are kept, and the most frequent label among them is guessed. In a
block of two sites with one foreign column this is often certain; rule `min_foreign_columns` is about that.
"""

from __future__ import annotations

import numpy as np

from ce.audit.sealed.attacks.predictions import cluster_chances
from ce.audit.sealed.site_knowledge import SiteGuesses, SiteKnowledge

_DRAWS = 400


def guess_from_winners(known: SiteKnowledge) -> SiteGuesses:
    """The likeliest label of each object in each target column, given its winner."""
    seen = known.seen[0]
    release, layout = seen.release, seen.layout
    rng = np.random.default_rng(0)
    by_cluster = cluster_chances(known)
    logs = np.log(np.maximum(release.beta, 1e-4))
    start = np.log(np.maximum(release.weights, 1e-13))
    wanted = sorted({target.column for target in known.targets})
    found = {j: np.zeros(len(known.winners), dtype=np.intp) for j in wanted}
    _, first, groups = np.unique(known.alike, return_index=True, return_inverse=True)
    for g, at in enumerate(first):
        columns = [int(j) for j in np.flatnonzero(known.available[at])]
        own = start.copy()
        for j in known.own_columns:
            if seen.own[at, j] >= 0:
                own += logs[layout.offsets[j] + seen.own[at, j]]
        clusters = rng.choice(len(own), _DRAWS, p=by_cluster[at])
        scores = np.tile(own, (_DRAWS, 1))
        drawn = {}
        for j in columns:
            summed = np.cumsum(release.beta[seen.span(j)], axis=0)[:, clusters]
            drawn[j] = np.minimum((rng.random(_DRAWS) > summed).sum(axis=0), layout.categories[j] - 1)
            scores += logs[layout.offsets[j] + drawn[j]]
        kept = scores.argmax(axis=1) == known.winners[at]
        for j in wanted:
            if j in drawn:
                labels = drawn[j][kept] if kept.any() else drawn[j]
                found[j][groups.reshape(-1) == g] = np.bincount(labels, minlength=layout.categories[j]).argmax()
    return {target.key: found[target.column] for target in known.targets}
