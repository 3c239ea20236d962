"""Statistics of the transcript: whether words that should be random are, and whether rows of them follow labels.

Bytes of one message are compared with a uniform distribution by chi square; rows of one message, one for each object,
are clustered, and clusters that agree with a column would show that something of the labels is left in them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ce.audit.adversary_views import Guess
from ce.audit.partitions import k_means, principal
from ce.ring import Reals

#: Fewer bytes than this are not judged: chi square needs about five in each of 256 cells.
FEWEST_BYTES = 1280


def uniformity(content: bytes) -> float:
    """How many standard deviations the bytes are from uniform ones; 0 if there are too few to say."""
    if len(content) < FEWEST_BYTES:
        return 0.0
    seen = np.bincount(np.frombuffer(content, dtype=np.uint8), minlength=256)
    expected = len(content) / 256.0
    chi_square = float(np.square(seen - expected).sum() / expected)
    # Wilson and Hilferty: the cube root of chi square over its degrees of freedom is nearly normal.
    spread = 2.0 / (9.0 * 255.0)
    return (math.cbrt(chi_square / 255.0) - (1.0 - spread)) / math.sqrt(spread)


def clustered_rows(messages: Sequence[NDArray[np.uint8]], objects: int, groups: int) -> Guess:
    """One guess from all messages that have the same number of bytes for every object, the cipher's own aside."""
    parts = [message[: len(message) // objects * objects].reshape(objects, -1) for message in messages]
    rows: Reals = np.hstack(parts).astype(np.float64)
    return k_means(principal(rows), groups)
