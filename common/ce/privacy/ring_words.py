"""Words modulo 2^22 or 2^32: streams of them, exact products of matrices of them, and how they are packed into bytes.

The products between sites (`dealt_products`) and the shares of the released tables are such words. A product is made by
double-precision BLAS: doubles hold whole numbers below 2^53 exactly, so that few enough rows at a time give exact sums;
words of 32 bits are multiplied in halves of 16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import DTypeLike, NDArray

from ce.cancellation import check_cancelled
from ce.errors import InputError, MessageError
from ce.privacy.derivation import derive

RingWords = NDArray[np.uint32]
Shape = int | tuple[int, ...]

#: Size of the seeds and keys that streams are made from.
SEED_SIZE = 32
#: Standard deviations of noise that the ring leaves room for, both sides together.
NOISE_ROOM = 16
_NONCE = bytes(16)  # constant, because every key is used for one stream only
#: Rows of one sum: 2^(53 - 2 22), as doubles hold whole numbers below 2^53 exactly. Halves of 16 bits would allow more
#: rows, but products this small stay on one thread of BLAS and are as fast.
_EXACT_ROWS = 2**9
_HALF_BITS = 16
#: Words of 22 bits are packed four at a time, into 11 bytes.
_GROUP, _GROUP_BYTES = 4, 11
_PACKED_AT_ONCE = 2**18
#: Rows of a matrix that are in memory as doubles at a time.
_ROWS_AT_ONCE = 2**12


class Stream:
    """A stream of bytes: AES-256-CTR over zeros, from the beginning. Its key is used for this stream only."""

    def __init__(self, key: bytes) -> None:
        if len(key) != SEED_SIZE:
            raise MessageError(f"seed: expected {SEED_SIZE} bytes, got {len(key)}")
        self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(_NONCE)).encryptor()

    def bytes(self, size: int) -> bytes:
        """The next bytes of the stream."""
        return self._encryptor.update(bytes(size))

    def words(self, shape: Shape, dtype: DTypeLike) -> NDArray[Any]:
        """The next words of the stream, little-endian, row-major."""
        kind = np.dtype(dtype).newbyteorder("<")
        return np.frombuffer(self.bytes(int(np.prod(shape)) * kind.itemsize), dtype=kind).reshape(shape)


def stream_of(seed: bytes, purpose: bytes, *context: bytes) -> Stream:
    """The stream of a seed for one purpose; no two purposes or contexts have the same stream."""
    if len(seed) != SEED_SIZE:
        raise MessageError(f"seed: expected {SEED_SIZE} bytes, got {len(seed)}")
    return Stream(derive(seed, purpose, *context))


@dataclass(frozen=True)
class Ring:
    """Whole numbers modulo 2^bits, as arrays of uint32 below 2^bits."""

    bits: int

    def __post_init__(self) -> None:
        if self.bits not in (22, 32):
            raise InputError(f"ring: expected 22 or 32 bits, got {self.bits}")

    @property
    def modulus(self) -> int:
        return 1 << self.bits

    @property
    def mask(self) -> np.uint32:
        return np.uint32(self.modulus - 1)

    def drawn(self, stream: Stream, shape: Shape) -> RingWords:
        """Uniform words: 4 bytes of the stream each."""
        words: RingWords = stream.words(shape, np.uint32)
        return words & self.mask

    def reduced(self, values: NDArray[Any]) -> RingWords:
        """Whole numbers of any sign, of at most 64 bits, modulo 2^bits."""
        return values.astype(np.uint32, casting="unsafe") & self.mask

    def from_below(self, words: RingWords, lowest: int) -> NDArray[np.int64]:
        """The whole numbers from `lowest` to lowest + 2^bits - 1 that have these words."""
        shifted = (words.astype(np.int64) - lowest) & np.int64(self.modulus - 1)
        return shifted + lowest

    def packed_size(self, count: int) -> int:
        """Bytes of so many words."""
        return -(-count * self.bits // 8)

    def packed(self, words: RingWords) -> bytes:
        """The words, row-major, `bits` bits each, lowest bit first; the last byte is filled with zeros."""
        flat = np.ascontiguousarray(words, dtype="<u4").reshape(-1)
        if self.bits == 32:
            return flat.tobytes()
        room = bytearray(self.packed_size(len(flat)))
        for begin in range(0, len(flat), _PACKED_AT_ONCE):
            part = flat[begin : begin + _PACKED_AT_ONCE]
            at = self.packed_size(begin)
            room[at : at + self.packed_size(len(part))] = _packed_22(part)[: self.packed_size(len(part))]
        return bytes(room)

    def unpacked(self, data: bytes | memoryview, shape: Shape) -> RingWords:
        """The words that were packed. Raises MessageError for another size, and for bits after the last word."""
        count = int(np.prod(shape))
        if len(data) != self.packed_size(count):
            raise MessageError(f"words: expected {self.packed_size(count)} bytes for {count} words, got {len(data)}")
        if self.bits == 32:
            return np.frombuffer(data, dtype="<u4").astype(np.uint32).reshape(shape)
        words = np.empty(count, dtype=np.uint32)
        for begin in range(0, count, _PACKED_AT_ONCE):
            part = words[begin : begin + _PACKED_AT_ONCE]
            at = self.packed_size(begin)
            part[:] = _unpacked_22(data[at : at + self.packed_size(len(part))], len(part))
        return words.reshape(shape)

    def product(self, left: RingWords, right: RingWords) -> RingWords:
        """left' right modulo 2^bits, for (n, p) and (n, q) words: exact."""
        total = np.zeros((left.shape[1], right.shape[1]), dtype=np.uint64)
        for begin in range(0, len(left), _ROWS_AT_ONCE):
            check_cancelled()
            rows = slice(begin, begin + _ROWS_AT_ONCE)
            total += self._product_of_few(left[rows], right[rows])
        return self.reduced(total)

    def product_with_bits(self, left: NDArray[np.float64], right: RingWords) -> RingWords:
        """left' right modulo 2^bits, for (n, p) zeros and ones and (n, q) words: exact."""
        return self.reduced(_product_of_doubles(left, right.astype(np.float64)))

    def _product_of_few(self, left: RingWords, right: RingWords) -> NDArray[np.uint64]:
        """The same for at most _ROWS_AT_ONCE rows, not yet reduced."""
        if self.bits == 22:
            return _product_of_doubles(left.astype(np.float64), right.astype(np.float64))
        low, high = np.uint32((1 << _HALF_BITS) - 1), np.uint32(_HALF_BITS)
        left_low, left_high = (left & low).astype(np.float64), (left >> high).astype(np.float64)
        right_low, right_high = (right & low).astype(np.float64), (right >> high).astype(np.float64)
        # The product of the high halves is 0 modulo 2^32.
        mixed = _product_of_doubles(left_low, right_high) + _product_of_doubles(left_high, right_low)
        return _product_of_doubles(left_low, right_low) + (mixed << np.uint64(_HALF_BITS))


def _product_of_doubles(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.uint64]:
    """left' right of whole numbers whose products are below 2^44, modulo 2^64."""
    whole = len(left) // _EXACT_ROWS * _EXACT_ROWS
    total: NDArray[np.uint64] = (left[whole:].T @ right[whole:]).astype(np.uint64)
    if whole:
        parts = left[:whole].reshape(-1, _EXACT_ROWS, left.shape[1]).transpose(0, 2, 1)
        total = total + (parts @ right[:whole].reshape(-1, _EXACT_ROWS, right.shape[1])).astype(np.uint64).sum(axis=0)
    return total


def ring_bits(largest_total: int, sd: float) -> Literal[22, 32]:
    """The bits of the smallest ring that holds totals of at most `largest_total` with noise of this sd."""
    needed = largest_total + NOISE_ROOM * sd
    if needed < 1 << 22:
        return 22
    if needed < 1 << 32:
        return 32
    raise InputError(
        f"the largest total of a table with its noise: expected below 2^32, got {needed:.3g}; "
        "run the job with fewer objects or a larger epsilon"
    )


def _packed_22(words: RingWords) -> bytes:
    """Four words, 88 bits, as three words of 4 bytes that overlap in one byte, where they have the same bits."""
    groups = np.zeros((-(-len(words) // _GROUP), _GROUP), dtype="<u4")
    groups.reshape(-1)[: len(words)] = words
    a, b, c, d = groups.T
    packed = bytearray(len(groups) * _GROUP_BYTES)
    _at(packed, 0, len(groups))[:] = a | (b << np.uint32(22))  # bits that are shifted out come with the next word
    _at(packed, 4, len(groups))[:] = (b >> np.uint32(10)) | (c << np.uint32(12))
    _at(packed, 7, len(groups))[:] = (c >> np.uint32(12)) | (d << np.uint32(10))
    return bytes(packed)


def _unpacked_22(data: bytes | memoryview, count: int) -> RingWords:
    groups = -(-count // _GROUP)
    room = bytearray(groups * _GROUP_BYTES)
    room[: len(data)] = data
    words = np.empty((groups, _GROUP), dtype=np.uint32)
    for place, (offset, shift) in enumerate(((0, 0), (2, 6), (5, 4), (7, 10))):
        words[:, place] = _at(room, offset, groups) >> np.uint32(shift)
    flat = words.reshape(-1) & np.uint32((1 << 22) - 1)
    if flat[count:].any():
        raise MessageError("words: expected zeros after the last word, got other bits")
    return flat[:count]


def _at(room: bytearray, offset: int, groups: int) -> RingWords:
    """The words of 4 bytes that begin at this byte of every group."""
    return np.ndarray((groups,), dtype="<u4", buffer=room, offset=offset, strides=(_GROUP_BYTES,))
