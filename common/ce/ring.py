"""Sums as integers: fixed-point numbers in the ring of 64-bit words.

Every total in ce, even on a single site, is a sum of words. Each term (one cell's phi, one object's share of the bound)
is rounded to fixed point by itself, and the words are added modulo 2^64. Integer addition is exact and does not depend
on the order, so that a total has the same bits however the labels are split, and masks cancel exactly.

The scale of an array follows from limits that all parties know before the round: f = 62 - ceil(log2(largest total))
fraction bits. A term above its declared limit is an error at the sender. A sum of terms within their limits cannot
overflow.
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
    """How the terms of one array become words: with `bits` fraction bits; no term is larger than `limit`."""

    bits: int
    limit: float

    @classmethod
    def for_sum(cls, terms: float, limit: float) -> Scale:
        """The finest scale at which the sum of `terms` terms of at most `limit` each cannot overflow."""
        return cls(LARGEST_BITS - math.ceil(math.log2(max(terms * limit, 1.0))), limit)

    @classmethod
    def counting(cls) -> Scale:
        """The scale of whole numbers: counts of objects or labels."""
        return cls(0, 2.0**LARGEST_BITS)

    def times(self, factor: float) -> Scale:
        """The same number of bits for terms that each stand for `factor` terms."""
        return Scale(self.bits, self.limit * factor)

    @cached_property
    def unit(self) -> float:
        return math.ldexp(1.0, self.bits)


def encode(values: Reals, scale: Scale, name: str) -> Words:
    """Round each term to a word. Raises RingOverflow, naming the array, if a term is not finite or too large."""
    # ufunc.reduce instead of values.min(), which goes through Python and is slower for small arrays.
    if (
        values.size
        and not max(-np.minimum.reduce(values, axis=None), np.maximum.reduce(values, axis=None)) <= scale.limit
    ):
        raise RingOverflow(
            f"{name}: a term is not a finite number within ±{scale.limit:g}, the limit declared for this sum"
        )
    return np.rint(values * scale.unit).astype(np.int64)


def decode(words: Words, scale: Scale) -> Reals:
    """The real numbers that words stand for."""
    return words.astype(np.float64) / scale.unit


def weighted_total(words: Words, weights: Words | None) -> Words:
    """Sum over the last axis (objects). `weights` are the numbers of equal objects that the entries stand for."""
    total: Words = (words if weights is None else words * weights).sum(axis=-1)
    return total
