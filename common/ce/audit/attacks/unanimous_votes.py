"""Unanimous votes: where all ballots on an object agree, their total names every one of them.

Votes are added per class (bc3e). If an object has as many votes for one class as it has ballots, each classifier voted
for that class. The coordinator sees the totals in `plain` and `masked`; in `blind` a member sees them, and can subtract
its own votes first, so that the others need only agree with each other.
"""

from __future__ import annotations

import numpy as np

from ce.audit.adversary_views import NO_IDEA, CoordinatorView, Guess
from ce.protocol.messages.array_names import ArrayName
from ce.ring import Words

#: Of a ballot: soft votes are rounded one by one.
_ROUNDING = 1e-6


def unanimous_votes(view: CoordinatorView, block: int, *, without: str | None = None) -> Guess | None:
    """The class of all ballots on each object, NO_IDEA where they differ; None if there are no votes.

    `without`: the site that subtracts its own votes; the view is then that of a job with plain sums, whose totals are
    those that a member reads in `blind`.
    """
    votes, vote_parts = view.opening(ArrayName.of_block(block, "votes"))
    ballots, ballot_parts = view.opening(ArrayName.of_block(block, "ballots"))
    if votes is None or ballots is None:
        return None
    if without is not None:
        votes, ballots = votes - vote_parts[without], ballots - ballot_parts[without]
    return _unanimous(votes, ballots, view.scale(0, "votes").unit)


def _unanimous(votes: Words, ballots: Words, unit: float) -> Guess:
    most = votes.argmax(axis=0)
    counted = np.take_along_axis(votes, most[None], axis=0)[0] / unit
    agree = (ballots > 0) & (np.abs(counted - ballots) <= _ROUNDING * np.maximum(ballots, 1))
    return np.where(agree, most, NO_IDEA).astype(np.intp)
