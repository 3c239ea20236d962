"""Whether the clusterings follow the classes: Cohen's kappa between two assignments of classes, from k² counts."""

from __future__ import annotations

import numpy as np

from ce.ring import Reals
from ce.steps.model import Opening


def agreement(scores: Reals, opening: Opening) -> Reals:
    """Per object (starts, k*k, n): 1 at (class of `scores`, class of the votes) if it has labels and votes, else 0.

    `scores` (starts, k, n) are what the clusterings say; the class with the largest score counts.
    """
    starts, k, n = scores.shape
    counts = np.zeros((starts, k * k, n))
    cell = scores.argmax(axis=1) * k + opening.votes.argmax(axis=0)
    both = (opening.labels > 0) & (opening.votes.sum(axis=0) > 0)
    np.put_along_axis(counts, cell[:, None, :], both[None, None, :].astype(np.float64), axis=1)
    return counts


def kappa(counts: Reals) -> Reals:
    """Cohen's kappa (starts, 1) of counts (starts, k*k); 0 where no object was counted."""
    k = round(counts.shape[1] ** 0.5)
    square = counts.reshape(-1, k, k)
    total = np.maximum(square.sum(axis=(1, 2)), 1.0)
    observed = np.trace(square, axis1=1, axis2=2) / total
    chance = (square.sum(axis=1) * square.sum(axis=2)).sum(axis=1) / np.square(total)
    value: Reals = np.where(chance < 1.0, (observed - chance) / np.where(chance < 1.0, 1.0 - chance, 1.0), 1.0)
    return np.where(square.sum(axis=(1, 2)) > 0, value, 0.0)[:, None]
