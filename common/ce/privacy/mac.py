"""A linear message authentication code for totals: whoever has not its key cannot change a total unseen.

Each contributor to a total computes a tag of its own words w under a key that all contributors share, and that the
party who adds does not have:

    tag(w) = sum over i of c_i w_i   modulo P = 2^89 - 1, a prime

The coefficients c_i are uniform in [0, 2^64): words of a keystream that runs through all arrays of a round that have
these contributors, bound to the same context as their mask. The w_i are signed whole numbers whose sum over the
contributors fits in the bits of a word, 64 or 32 (`ce.ring`), so that the tags of the contributors add up to the tag of
the total, read as signed words.

**What a forger can do.** The adder sends back a total w + d in the place of w, and a tag t + e in the place of t. As
whole numbers, -2^64 < d_i < 2^64, also where w_i + d_i wraps around modulo 2^64; of 32-bit words, which are signed
numbers of 32 bits before and after, -2^32 < d_i < 2^32. The contributors accept if sum c_i d_i = e modulo P. Take any i
with d_i != 0. P is a prime larger than |d_i|, so that for given other coefficients at most one residue of c_i fulfils
this; P > 2^64, so that at most one of its 2^64 values does: c_i has 64 bits for words of either width. All that the
adder has seen of the coefficients is a tag under masks. **A changed total passes with probability 2^-64 at most,
whatever d and e are**, beside the odds of breaking AES-256 or HKDF-SHA256. A prime of 61 bits would pass every change
by a multiple of it, for totals reach 2^62; tags modulo 2^64 would pass a change by 2^63 half of the time. Tags of
32-bit words modulo 2^32, or with coefficients of 32 bits, would pass a change with probability 2^-32 or more.

**What travels.** A tag is sent as three words of 30 bits each, least first, so that they can be added like all words
without an overflow. The sums of these words show carries, which depend on more than the total. So contributors first
add shares of zero modulo P, drawn for each pair (`Masks.share_of_zero`): what they send is uniform but for its sum
modulo P, which is the tag of the total.
"""

from __future__ import annotations

from operator import mul

import numpy as np
from numpy.typing import NDArray

from ce.privacy.derivation import derive
from ce.privacy.masks import AES_BLOCK, Keystream, Words

PRIME = 2**89 - 1
#: Words that a tag is sent as, and bits of each.
MAC_WORDS, WORD_BITS = 3, 30
#: Coefficients made at a time. Numbers of 16 bits, as doubles: their products, over so many words, add up to 2^45.
_STRETCH = 2**13
_LIMBS, _LIMB_BITS = 4, 16
#: For so few words, whole numbers of any size are faster.
_FEW = 256


def mac_key(set_key: bytes, context: bytes) -> bytes:
    """The key of the coefficients of one round; `context` as for the mask that its users share."""
    return derive(set_key, b"ce mac 2", context)


def tag(words: Words, coefficients: Keystream) -> int:
    """The tag of an array of any shape, row-major, of words of either width, with the next words of a stream: a number
    in [0, PRIME)."""
    flat = np.ascontiguousarray(words, dtype="<i8").reshape(-1)
    exact = _product(flat, coefficients) if len(flat) <= _FEW else _product_of_many(flat, coefficients)
    return exact % PRIME


def _product(flat: Words, stream: Keystream) -> int:
    """sum c_i w_i, as a whole number of any size."""
    room = bytearray(8 * len(flat) + AES_BLOCK)
    stream.into(room, 8 * len(flat))
    coefficients: list[int] = np.frombuffer(room, dtype="<u8", count=len(flat)).tolist()
    return sum(map(mul, coefficients, flat.tolist()))


def _product_of_many(flat: Words, stream: Keystream) -> int:
    """The same, from all products of a limb of a coefficient and one of a word: doubles hold their sums exactly, and a
    product of matrices is the fastest way to many sums."""
    limbs, signed = _in_limbs(flat, "<u2"), _in_limbs(flat, "<i2")
    most = min(_STRETCH, len(flat))
    room = bytearray(8 * most + AES_BLOCK)
    coefficients = np.frombuffer(room, dtype="<u2", count=_LIMBS * most).reshape(-1, _LIMBS)
    left, right = np.empty((most, _LIMBS)), np.empty((most, _LIMBS))
    sums = np.zeros((_LIMBS, _LIMBS), dtype=np.int64)
    for begin in range(0, len(flat), _STRETCH):
        size = min(_STRETCH, len(flat) - begin)
        stream.into(room, 8 * size)
        left[:size] = coefficients[:size]
        right[:size] = limbs[begin : begin + size]
        right[:size, -1] = signed[begin : begin + size, -1]  # only the highest limb has the sign
        sums += (left[:size].T @ right[:size]).astype(np.int64)
    exact = 0
    for (i, j), value in np.ndenumerate(sums):
        exact += int(value) << (_LIMB_BITS * (i + j))
    return exact


def to_words(value: int) -> Words:
    """A tag as words that are sent."""
    return np.array([value >> (WORD_BITS * at) & (2**WORD_BITS - 1) for at in range(MAC_WORDS)], dtype=np.int64)


def from_words(total: Words) -> int | None:
    """The tag that words of several contributors add up to; None if no tags add up to these."""
    if (total < 0).any():  # so that a change of these words is one number, whether or not it wraps around
        return None
    return sum(int(word) << (WORD_BITS * at) for at, word in enumerate(total)) % PRIME


def _in_limbs(flat: Words, kind: str) -> NDArray[np.generic]:
    return flat.view(kind).reshape(-1, _LIMBS)
