"""The dealer of the secure argmax: knows the seeds of all members, never a score, and sends the last member what makes
the members' random numbers fit. Works in stretches, so that its memory does not grow with the number of objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ce.errors import InputError
from ce.privacy.secure_argmax import (
    DIGIT_BITS,
    DIGITS,
    MOST_MEMBERS,
    TOP_BIT,
    Corrections,
    Randomness,
    Thermometers,
    Words,
    drawn,
    level_comparisons,
    stretches,
)


def corrections(
    seeds: Sequence[bytes], context: bytes, rows: int, candidates: int
) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Level and corrections, in parts, of every level of a block's tournament. `seeds` in the order of the members."""
    for level, comparisons in enumerate(level_comparisons(rows, candidates)):
        yield level, level_corrections(seeds, context, level, comparisons)


def level_corrections(seeds: Sequence[bytes], context: bytes, level: int, comparisons: int) -> Iterator[bytes]:
    """The corrections of one level, in parts that are joined by whoever receives them."""
    if not 2 <= len(seeds) <= MOST_MEMBERS:
        raise InputError(f"seeds: expected those of 2 to {MOST_MEMBERS} members, got {len(seeds)}")
    for stretch, size in stretches(comparisons):
        yield _corrections([drawn(seed, context, level, stretch, size) for seed in seeds], size).to_bytes()


def _corrections(members: Sequence[Randomness], comparisons: int) -> Corrections:
    """What is missing from the sum, or the xor, of what the members drew."""
    mask = _sum([member.mask for member in members])
    bit = np.unpackbits(np.bitwise_xor.reduce([m.bit for m in members]), count=comparisons).astype(np.uint32)
    left = np.bitwise_xor.reduce([member.left for member in members])
    right = np.bitwise_xor.reduce([member.right for member in members])
    return Corrections(
        thermometers=_thermometers(mask) ^ np.bitwise_xor.reduce([member.thermometers for member in members]),
        both=(left & right) ^ np.bitwise_xor.reduce([member.both for member in members]),
        bit_word=bit - _sum([member.bit_word for member in members]),
        masked_word=bit * mask - _sum([member.masked_word for member in members]),
    )


def _thermometers(mask: Words) -> Thermometers:
    """2^digit - 1 for every digit of the masks; bit 31 of a mask is the highest bit of its last thermometer."""
    found = np.empty((DIGITS, len(mask)), dtype=np.uint16)
    one = np.uint16(1)
    for digit in range(DIGITS):
        bits = DIGIT_BITS if digit < DIGITS - 1 else DIGIT_BITS - 1
        value = (mask >> np.uint32(DIGIT_BITS * digit)) & np.uint32((1 << bits) - 1)
        found[digit] = (one << value.astype(np.uint16)) - one
    found[-1] |= (mask >> np.uint32(TOP_BIT)).astype(np.uint16) << np.uint16(15)
    return found


def _sum(parts: Sequence[Words]) -> Words:
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total
