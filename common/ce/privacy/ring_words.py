"""Words modulo 2^22 or 2^32: streams of them, exact products of matrices of them, and how they are packed into bytes.

The products between sites (`dealt_products`) and the shares of the released tables are such words. A product is made by
double-precision BLAS: doubles hold whole numbers below 2^53 exactly, so that few enough rows at a time give exact sums.
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
_EXACT_BITS = 53  # doubles hold whole numbers below 2^53 exactly
_HALF_BITS = 16
#: Words of 22 bits are packed four at a time, into 11 bytes.
_GROUP, _GROUP_BYTES = 4, 11
_PACKED_AT_ONCE = 2**18
#: Rows of a matrix that are in memory as doubles at a time; a multiple of the rows of one exact sum.
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
        """left' right modulo 2^bits, for at most 2^21 rows of zeros and ones and as many rows of words."""
        return self.reduced((left.T @ right.astype(np.float64)).astype(np.uint64))

    def _product_of_few(self, left: RingWords, right: RingWords) -> NDArray[np.uint64]:
        """The same for at most _ROWS_AT_ONCE rows, not yet reduced."""
        if self.bits == 32:
            low, high = np.uint32((1 << _HALF_BITS) - 1), np.uint32(_HALF_BITS)
            left_low, left_high = (left & low).astype(np.float64), (left >> high).astype(np.float64)
            right_low, right_high = (right & low).astype(np.float64), (right >> high).astype(np.float64)
            mixed = left_low.T @ right_high + left_high.T @ right_low  # the product of high halves is 0 modulo 2^32
            return (left_low.T @ right_low).astype(np.uint64) + (mixed.astype(np.uint64) << np.uint64(_HALF_BITS))
        exact = 1 << (_EXACT_BITS - 2 * self.bits)
        whole = len(left) // exact * exact
        first, second = left.astype(np.float64), right.astype(np.float64)
        total: NDArray[np.uint64] = (first[whole:].T @ second[whole:]).astype(np.uint64)
        if whole:
            tall = first[:whole].reshape(-1, exact, left.shape[1]).transpose(0, 2, 1)
            total = total + (tall @ second[:whole].reshape(-1, exact, right.shape[1])).astype(np.uint64).sum(axis=0)
        return total


def ring_bits(largest_total: int, sd: float) -> Literal[22, 32]:
    """The bits of the smallest ring in which totals of at most `largest_total` with noise of this sd are unambiguous."""
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
    """Four words are 88 bits: 64 of them in a word of 8 bytes, 24 in 3 bytes."""
    groups = np.zeros((-(-len(words) // _GROUP), _GROUP), dtype=np.uint64)
    groups.reshape(-1)[: len(words)] = words
    a, b, c, d = groups.T
    packed = np.empty((len(groups), _GROUP_BYTES), dtype=np.uint8)
    low = a | b << np.uint64(22) | c << np.uint64(44)  # the two highest bits of c are shifted out
    high = c >> np.uint64(20) | d << np.uint64(2)
    packed[:, :8] = low.astype("<u8").view(np.uint8).reshape(-1, 8)
    packed[:, 8:] = high.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3]
    return packed.tobytes()


def _unpacked_22(data: bytes | memoryview, count: int) -> RingWords:
    groups = -(-count // _GROUP)
    packed = np.zeros(groups * _GROUP_BYTES, dtype=np.uint8)
    packed[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    packed = packed.reshape(groups, _GROUP_BYTES)
    low = np.ascontiguousarray(packed[:, :8]).view("<u8").reshape(-1)
    last = np.zeros((groups, 4), dtype=np.uint8)
    last[:, :3] = packed[:, 8:]
    high = last.view("<u4").reshape(-1).astype(np.uint64)
    words = np.stack((low, low >> np.uint64(22), low >> np.uint64(44) | high << np.uint64(20), high >> np.uint64(2)), 1)
    flat = (words & np.uint64((1 << 22) - 1)).astype(np.uint32).reshape(-1)
    if flat[count:].any():
        raise MessageError("words: expected zeros after the last word, got other bits")
    return flat[:count]
