"""Subtraction by a curious site: the total minus its own part is what the other sites added.

With two sites that is the other site's part, word for word. With more it is the sum of their parts, in which the single
columns still have to be separated (`ce.audit.attacks.trajectories`, `ce.audit.attacks.linear_unmix`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ce.audit.adversary_views import CuriousSiteView, Guesses, Question
from ce.audit.attacks.message_inversion import Inferred, inferred_totals
from ce.audit.partitions import nearly_equal_rows
from ce.kernels.special import over_clusters
from ce.ring import Reals
from ce.steps.model import stage_of

#: Totals are computed from messages, which are exact to the last few bits.
_TOLERANCE = 1e-7


def distinct_residuals(view: CuriousSiteView, questions: Sequence[Question]) -> Guesses:
    """Objects with equal rows of the residual; where messages differ between objects, divided by the message."""
    rounds = [seen for seen in inferred_totals(view) if np.ptp(_finite(seen.residual), axis=-1).any()]
    if not rounds:
        return {}
    first = rounds[0]
    alike = first.message is None or not np.ptp(first.message, axis=-1).any()
    if alike or stage_of(view.model, first.stage).phases == 2:
        found = nearly_equal_rows(_flat(first.residual), _TOLERANCE)
    else:
        best = max(rounds, key=_smallest_message)
        assert best.message is not None
        likelihood = best.residual / np.maximum(best.message, 1e-5)
        with np.errstate(invalid="ignore", divide="ignore"):
            found = nearly_equal_rows(_flat(likelihood / over_clusters(likelihood)[:, None]), 1e-6)
    return {question: [found] for question in questions}


def _smallest_message(seen: Inferred) -> float:
    return 0.0 if seen.message is None else float(seen.message.min())


def _flat(array: Reals) -> Reals:
    return np.ascontiguousarray(_finite(array).reshape(-1, array.shape[-1]).T)


def _finite(array: Reals) -> Reals:
    return np.nan_to_num(array, nan=0.0, posinf=0.0, neginf=0.0)
