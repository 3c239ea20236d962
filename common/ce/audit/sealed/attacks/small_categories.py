"""Small categories: a label that few of the attacker's objects have reads a row of the table.

If one object alone has label a, P[a, b] is 1 for the label b of this object and 0 for the others; if few have it, the
cells say how their labels are shared out. Every object's chances are updated in turn by what the cells of its own
labels leave to explain, weighed by the noise and by what is not known of the other objects in the same cell.
"""

from __future__ import annotations

import numpy as np

from ce.audit.adversary_views import NOT_ASKED, Guess
from ce.audit.sealed.site_knowledge import SiteKnowledge, Target
from ce.ring import Reals

_ROUNDS = 12
#: Part of the old chances that is kept, so that objects in the same cell do not all take the same label at once.
_KEPT = 0.7


def read_small_categories(known: SiteKnowledge, target: Target, prior: Reals) -> Guess | None:
    """The likeliest labels. `prior`: (objects, labels) chances.

    None: no own column of which all counts are of own objects.
    """
    columns = known.exclusive_columns
    asked = np.flatnonzero(known.available[:, target.column])
    if not columns or len(asked) < 2:
        return None
    logs, chances = np.log(np.maximum(prior[asked], 1e-9)), prior[asked]
    cells = []
    for seen in known.seen:
        one_hot = seen.one_hot(columns)
        own = one_hot.T @ (seen.own[:, [target.column]] == np.arange(target.groups))
        cells.append((one_hot[asked], seen.cells(columns, target.column) - own, seen.release.sd**2))
    for _ in range(_ROUNDS):
        evidence = np.zeros_like(chances)
        for one_hot, counts, variance in cells:
            left = counts - one_hot.T @ chances
            uncertain = one_hot.T @ (chances * (1.0 - chances)) + variance + 0.05
            evidence += one_hot @ ((left - 0.5) / uncertain) + chances * (one_hot @ (1.0 / uncertain))
        fresh = np.exp(logs + evidence - (logs + evidence).max(axis=1, keepdims=True))
        chances = _KEPT * chances + (1.0 - _KEPT) * fresh / fresh.sum(axis=1, keepdims=True)
    guess = np.full(len(known.winners), NOT_ASKED, dtype=np.intp)
    guess[asked] = chances.argmax(axis=1)
    return guess
