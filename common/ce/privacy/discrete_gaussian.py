"""Whole numbers with discrete Gaussian noise: P(v) proportional to exp(-v^2 / (2 variance)).

A cumulative table with thresholds of 126 bits, looked up by a keystream: the distribution is within 2^-100 of the exact
one in total variation. Sites add such numbers to the tables that a sealed job opens. The stream's key must be fresh for
every opening: noise that is used twice cancels in the difference of two releases.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

from ce.cancellation import BATCH, check_cancelled
from ce.errors import InputError
from ce.privacy.ring_words import Stream

#: A threshold is two words of 63 bits.
WORD_BITS = 63
THRESHOLD_BITS = 2 * WORD_BITS
LARGEST_SD = 2**16
#: Standard deviations that the table covers on each side: less than 2^-130 is beyond them.
_COVERED = 13.5
#: Digits of the probabilities. Each follows from the one before, so that relative errors add up to n^2 10^-90.
_DIGITS = 90
#: Draws looked up at a time.
_STRETCH = 2**16


@dataclass(frozen=True)
class DiscreteGaussian:
    """The distribution with this variance parameter, around 0."""

    variance: Fraction

    def __post_init__(self) -> None:
        if not 0 < self.variance <= LARGEST_SD**2:
            raise InputError(
                f"variance of the noise: expected above 0 and at most {LARGEST_SD}^2, got {float(self.variance):.3g}"
            )

    @cached_property
    def _table(self) -> tuple[int, NDArray[np.uint64], NDArray[np.uint64]]:
        return _table(self.variance)

    def sample(self, stream: Stream, count: int) -> NDArray[np.int64]:
        """Independent draws, each from the next 16 bytes of the stream."""
        most, high, low = self._table
        found = np.empty(count, dtype=np.int64)
        for begin in range(0, count, _STRETCH):
            check_cancelled()
            part = found[begin : begin + _STRETCH]
            drawn = stream.words((len(part), 2), np.uint64) >> np.uint64(64 - WORD_BITS)
            part[:] = np.searchsorted(high, drawn[:, 0], side="left")
            # About once in 2^50 draws the first words are equal, and the second words decide.
            for at in np.flatnonzero(high[part] == drawn[:, 0]):
                while high[part[at]] == drawn[at, 0] and low[part[at]] <= drawn[at, 1]:
                    part[at] += 1
        return found - most


def thresholds(variance: Fraction) -> tuple[int, list[int]]:
    """The largest value m of the table, and for v = -m .. m the chance of at most v, times 2^126. The last is 2^126."""
    most = ceil(sqrt(float(variance)) * _COVERED) + 1
    with localcontext() as context:
        context.prec = _DIGITS
        exact = Decimal(variance.numerator) / Decimal(variance.denominator)
        # p(v + 1) / p(v) = exp(-(2 v + 1) / (2 variance)), and each such ratio is exp(-1 / variance) times the last.
        ratio, factor = (-1 / (2 * exact)).exp(), (-1 / exact).exp()
        chances = [Decimal(1)]
        for value in range(most):
            if not value % BATCH:
                check_cancelled()
            chances.append(chances[-1] * ratio)
            ratio *= factor
        total = chances[0] + 2 * sum(chances[1:])
        scale = Decimal(1 << THRESHOLD_BITS) / total
        found, reached = [], Decimal(0)
        for value in range(-most, most):
            reached += chances[abs(value)]
            found.append(int(reached * scale))
    return most, [*found, 1 << THRESHOLD_BITS]


@lru_cache(maxsize=8)
def _table(variance: Fraction) -> tuple[int, NDArray[np.uint64], NDArray[np.uint64]]:
    most, found = thresholds(variance)
    high = np.array([threshold >> WORD_BITS for threshold in found], dtype=np.uint64)
    low = np.array([threshold & ((1 << WORD_BITS) - 1) for threshold in found], dtype=np.uint64)
    return most, high, low
