"""Sums as integers: fixed-point numbers in the ring of 64-bit words.

Every total in ce, even on a single site, is a sum of words. Each term (one cell's phi, one object's share of the bound)
is rounded to fixed point by itself, and the words are added modulo 2^64. Integer addition is exact and does not depend
on the order, so that a total has the same bits however the labels are split, and masks cancel exactly.

The scale of an array follows from limits that all parties know before the round: f = 62 - ceil(log2(largest total))
fraction bits. A term above its declared limit is an error at the sender. A sum of terms within their limits cannot
overflow.

In a job with `precision = "single"` the words of an array are 32 bits wide where that leaves enough fraction bits:
f = 30 - ceil(log2(largest total)) >= 20. Terms are rounded at that coarser scale wherever they arise, words travel and
are added modulo 2^32, and totals are signed numbers of 32 bits, exact like all totals. Steps compute with 64-bit words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ce.errors import RingOverflow

Reals = NDArray[np.float64]
Words = NDArray[np.int64]

#: How a job's exchanges are encoded: `Job.precision`.
Precision = Literal["double", "single"]
#: Words as they travel: of 64 or of 32 bits.
SentWords = NDArray[np.int64] | NDArray[np.int32]

#: Bits of the largest total and of its fraction together; of 32-bit words.
LARGEST_BITS, LARGEST_SHORT_BITS = 62, 30
#: With fewer, an array of a job with precision = "single" stays one of 64-bit words.
FEWEST_SHORT_BITS = 20
_WORDS, _SHORT_WORDS = np.dtype(np.int64), np.dtype(np.int32)


@dataclass(frozen=True)
class Scale:
    """How the terms of one array become words of `word_bits`: with `bits` fraction bits; no term is larger than
    `limit`."""

    bits: int
    limit: float
    word_bits: int = 64

    @classmethod
    def for_sum(cls, terms: float, limit: float, precision: Precision = "double") -> Scale:
        """The finest scale at which the sum of `terms` terms of at most `limit` each cannot overflow: of 32-bit words
        in single precision, if they have enough fraction bits."""
        whole = math.ceil(math.log2(max(terms * limit, 1.0)))
        if precision == "single" and LARGEST_SHORT_BITS - whole >= FEWEST_SHORT_BITS:
            return cls(LARGEST_SHORT_BITS - whole, limit, 32)
        return cls(LARGEST_BITS - whole, limit)

    @classmethod
    def counting(cls) -> Scale:
        """The scale of whole numbers: counts of objects or labels."""
        return cls(0, 2.0**LARGEST_BITS)

    def times(self, factor: float) -> Scale:
        """The same number of bits for terms that each stand for `factor` terms."""
        return Scale(self.bits, self.limit * factor, self.word_bits)

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


def word_type(word_bits: int) -> np.dtype[Any]:
    """The type of words of so many bits, as they travel."""
    return _SHORT_WORDS if word_bits == 32 else _WORDS


def narrowed(words: Words, word_bits: int, name: str) -> SentWords:
    """Words as they travel. Raises RingOverflow, naming the array, if one does not fit."""
    if word_bits == 64:
        return words
    if words.size and max(-int(words.min()), int(words.max())) >= 2**31:
        raise RingOverflow(f"{name}: a sum does not fit in 32-bit words, which the limit declared for it says it does")
    return words.astype(np.int32)


def decode(words: SentWords, scale: Scale) -> Reals:
    """The real numbers that words stand for."""
    return words.astype(np.float64) / scale.unit


def weighted_total(words: Words, weights: Words | None) -> Words:
    """Sum over the last axis (objects). `weights` are the numbers of equal objects that the entries stand for."""
    total: Words = np.add.reduce(words if weights is None else words * weights, axis=-1)
    return total
