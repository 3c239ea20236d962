"""Differences of releases: what changed between two jobs over the same objects.

If another site labels few objects anew, the difference of the tables is a sum over these few: the sparsest change that
explains it names them and their new labels, if tables are exact. With noise in both, most of the difference is noise.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, eye_array, hstack, kron

from ce.audit.adversary_views import NOT_ASKED, Guess
from ce.audit.sealed.site_knowledge import SiteKnowledge, Target
from ce.ring import Reals

#: A part of an object at least so large is taken for a new label.
_CLEAR = 0.5


def guess_after_edit(difference: SiteKnowledge, target: Target, prior: Reals) -> Guess | None:
    """The labels after the edit: the likeliest ones, and where the sparsest change names a new label, that one.

    `prior`: (objects, labels) chances. None: no own column of which all counts are of own objects.
    """
    columns = difference.exclusive_columns
    asked = np.flatnonzero(difference.available[:, target.column])
    if not columns or len(asked) < 2:
        return None
    seen = difference.seen[0]
    rows = csr_array(seen.one_hot(columns)[asked].T)
    counts = seen.cells(columns, target.column)
    k = target.groups
    unknowns = kron(rows, eye_array(k))
    gap = eye_array(counts.size)
    price = np.sqrt(2.0) / seen.release.sd if seen.release.sd else 100.0
    solved = linprog(
        np.concatenate([np.ones(2 * len(asked) * k), np.full(2 * counts.size, price)]),
        A_eq=hstack([unknowns, -unknowns, gap, -gap]),
        b_eq=counts.ravel(),
        bounds=[(0.0, 1.0)] * (2 * len(asked) * k) + [(0.0, None)] * (2 * counts.size),
        method="highs",
    )
    guess = np.full(len(difference.winners), NOT_ASKED, dtype=np.intp)
    guess[asked] = prior[asked].argmax(axis=1)
    if solved.x is not None:
        gained = solved.x[: len(asked) * k].reshape(len(asked), k)
        changed = gained.max(axis=1) >= _CLEAR
        guess[asked[changed]] = gained[changed].argmax(axis=1)
    return guess
