"""Sums as integers: fixed-point numbers in the ring of 64-bit words.

Every total in ce, also on one site, is a sum of words: each term (one cell's phi, one object's share of the bound) is
rounded to fixed point by itself and the words are added modulo 2^64. Integer addition is exact and has no order, so a
total has the same bits whoever adds it, in whichever order and however the labels are split; and masks cancel exactly.

The scale of an array follows from bounds that everybody knows before the round: f = 62 - ceil(log2(largest total))
fractional bits. A term beyond its declared bound is an error at the sender; a sum of terms within bounds cannot wrap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ce.errors import RingOverflow

Reals = NDArray[np.float64]
Words = NDArray[np.int64]

LARGEST_BITS = 62


@dataclass(frozen=True)
class Scale:
    """How the terms of one array become words: `bits` fractional bits, no term larger than `limit`."""

    bits: int
    limit: float

    @classmethod
    def for_sum(cls, terms: float, limit: float) -> Scale:
        """The finest scale at which `terms` terms of at most `limit` each cannot leave the ring."""
        return cls(LARGEST_BITS - math.ceil(math.log2(max(terms * limit, 1.0))), limit)

    @classmethod
    def counting(cls) -> Scale:
        """Whole numbers: counts of objects or labels."""
        return cls(0, 2.0**LARGEST_BITS)

    def times(self, factor: float) -> Scale:
        """The same fixed point for a term that stands for `factor` terms."""
        return Scale(self.bits, self.limit * factor)

    @cached_property
    def unit(self) -> float:
        return math.ldexp(1.0, self.bits)


def encode(values: Reals, scale: Scale, name: str) -> Words:
    """Round each term to a word. Raises RingOverflow, naming the array, when a term is not finite or too large."""
    # The ufuncs themselves: values.min() goes through Python first, which small arrays feel.
    if (
        values.size
        and not max(-np.minimum.reduce(values, axis=None), np.maximum.reduce(values, axis=None)) <= scale.limit
    ):
        raise RingOverflow(
            f"{name}: a term is not a finite number within ±{scale.limit:g}, the bound declared for this sum"
        )
    return np.rint(values * scale.unit).astype(np.int64)


def decode(words: Words, scale: Scale) -> Reals:
    """The real numbers that words stand for."""
    return words.astype(np.float64) / scale.unit


def weighted_total(words: Words, weights: Words | None) -> Words:
    """Sum over the last axis (objects); `weights` says how many equal objects each entry stands for."""
    total: Words = (words if weights is None else words * weights).sum(axis=-1)
    return total
