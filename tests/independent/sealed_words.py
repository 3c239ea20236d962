"""Words of a sealed job, from docs/protocol.md ("Terms", "Streams", "Products", "Share"). Imports nothing of ce.

Also what make_sealed_answers.py computes known answers with.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache, cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from keys_and_masks import Array, hkdf, joined, number, require, sha256, texts

CHECKS = 8  # columns of V
Shape = int | tuple[int, ...]


class Stream:
    """Numbers of AES-256-CTR over zeros, one after the other."""

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def take(self, kind: str, shape: Shape) -> Array:
        """kind: <u2, <u4, <u8 or u1."""
        size = int(np.prod(shape)) * np.dtype(kind).itemsize
        return np.frombuffer(self._encryptor.update(bytes(size)), kind).reshape(shape)


def stream(seed: bytes, purpose: bytes, *parts: bytes) -> Stream:
    return Stream(hkdf(seed, purpose, *parts))


@dataclass(frozen=True)
class Ring:
    """Words modulo 2^bits, as uint64 arrays."""

    bits: int

    def reduced(self, values: Array) -> Array:
        return np.asarray(values.astype(np.uint64) & np.uint64(2**self.bits - 1))

    def drawn(self, source: Stream, shape: Shape) -> Array:
        return self.reduced(source.take("<u4", shape))

    def product(self, left: Array, right: Array) -> Array:
        return self.reduced(left.T.astype(np.uint64) @ right.astype(np.uint64))  # exact modulo 2^64

    def size(self, count: int) -> int:
        return -(-count * self.bits // 8)

    def packed(self, words: Array) -> bytes:
        bits = (words.reshape(-1, 1) >> np.arange(self.bits, dtype=np.uint64)) & np.uint64(1)
        return np.packbits(bits.astype(np.uint8).reshape(-1), bitorder="little").tobytes()

    def unpacked(self, data: bytes, shape: Shape) -> Array:
        count = int(np.prod(shape))
        require(len(data) == self.size(count), f"words: expected {self.size(count)} bytes, got {len(data)}")
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        require(not bits[count * self.bits :].any(), "words: bits after the last word")
        powers = np.uint64(1) << np.arange(self.bits, dtype=np.uint64)
        return np.asarray((bits[: count * self.bits].reshape(count, self.bits) * powers).sum(axis=1)).reshape(shape)


# "Products".


def correction(ring: Ring, seed: bytes, second: str, width: int, second_width: int) -> tuple[Array, Array]:
    """c and c' of the pair of s, whose seed it is, and t."""
    source = stream(seed, b"ce product correction 1", second.encode())
    return ring.drawn(source, (width, second_width)), ring.drawn(source, (width, CHECKS))


def rows_of(ring: Ring, seed: bytes, digest: bytes, objects: int, width: int) -> Array:
    return ring.drawn(stream(seed, b"ce product rows 1", digest), (objects, width))


def check_rows_of(ring: Ring, seed: bytes, digest: bytes, objects: int) -> Array:
    return ring.drawn(stream(seed, b"ce product check rows 1", digest), (objects, CHECKS))


def check_columns(ring: Ring, check_seed: bytes, width: int) -> Array:
    return ring.drawn(stream(check_seed, b"ce product check columns 1"), (width, CHECKS))


def one_hot(codes: Array, widths: Sequence[int]) -> Array:
    """Rows of zeros and ones; -1 is no label."""
    parts = [codes[:, j : j + 1] == np.arange(width) for j, width in enumerate(widths)]
    return np.hstack(parts).astype(np.uint64)


def check_message(
    ring: Ring,
    seed: bytes,
    check_seed: bytes,
    blocks: Iterable[tuple[bytes, int]],
    width: int,
    dealt: tuple[Array, Array],
) -> bytes:
    """Of t, for s. `blocks`: digest and objects of the common ones; `dealt`: d and d'."""
    v = check_columns(ring, check_seed, width)
    message = check_seed
    for digest, objects in blocks:
        rows = rows_of(ring, seed, digest, objects, width)
        message += ring.packed(ring.reduced(ring.product(rows.T, v) + check_rows_of(ring, seed, digest, objects)))
    d, d_check = dealt
    return message + ring.packed(ring.reduced(ring.product(d.T, v) + d_check))


def dealer_is_right(
    ring: Ring, seed: bytes, second: str, blocks: Sequence[tuple[bytes, int]], widths: tuple[int, int], message: bytes
) -> bool:
    """At s, with the check message of t. `widths`: of s and t."""
    v, at = check_columns(ring, message[:32], widths[1]), 32
    c, c_check = correction(ring, seed, second, *widths)
    total = ring.product(c.T, v) + c_check
    for digest, objects in blocks:
        end = at + ring.size(objects * CHECKS)
        total += ring.product(
            rows_of(ring, seed, digest, objects, widths[0]), ring.unpacked(message[at:end], (objects, CHECKS))
        )
        at = end
    return np.array_equal(ring.reduced(total), ring.unpacked(message[at:], (widths[0], CHECKS)))


# Noise: thresholds of 126 bits, searched with the first 63 bits of two words of a stream.


@cache
def thresholds(variance: Fraction) -> tuple[int, list[int]]:
    """The largest value m, and for -m .. m: the chance of at most this value, times 2^126."""
    most = math.ceil(math.sqrt(variance) * 13.5) + 1
    with localcontext() as context:
        context.prec = 90
        twice = Decimal(2 * variance.numerator) / Decimal(variance.denominator)
        half = [(-(v * v) / twice).exp() for v in range(most, -1, -1)]
        reached = list(accumulate([*half, *half[-2::-1]]))
        return most, [*(int(chance / reached[-1] * 2**126) for chance in reached[:-1]), 2**126]


def noise(variance: Fraction, key: bytes, count: int) -> Array:
    most, steps = thresholds(variance)
    words = (Stream(key).take("<u8", (count, 2)) >> np.uint64(1)).tolist()
    return np.array([bisect_right(steps, (high << 63) + low) - most for high, low in words])


# "Terms".


def epsilon_of(rho: float, delta: float) -> float:
    """The derivative in a, rho + ln(a delta) / (a - 1)^2, changes its sign once."""
    low, high = 0.0, 1 / delta
    for _ in range(100):
        middle = (low + high) / 2
        below = rho * middle**2 + math.log(delta) + math.log1p(middle) < 0
        low, high = (middle, high) if below else (low, middle)
    a = 1 + high
    return a * rho + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1)


def rho_of(epsilon: float, delta: float) -> float:
    low, high = 0.0, 1e4
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(middle, delta) <= epsilon else (low, middle)
    return low


def row_change(holders: Mapping[str, Sequence[str]], site: str) -> int:
    h = {name: len(sites) for name, sites in holders.items()}
    own = [name for name, sites in holders.items() if site in sites]
    total = sum(2 * h[j] ** 2 for _ in own for j in h if j not in own)
    for at, i in enumerate(own):
        for j in own[at + 1 :]:
            both = (h[i] + h[j] - 1) ** 2 + (h[i] - 1) ** 2 + (h[j] - 1) ** 2 + 1
            total += max(2 * h[i] ** 2, 2 * h[j] ** 2, both)
    return total


def change(holders: Mapping[str, Sequence[str]], unit: str, sites: Iterable[str]) -> int:
    squares = [len(held) ** 2 for held in holders.values()]
    if unit == "site_row":
        return max(row_change(holders, site) for site in sites)
    if unit == "label":
        return max(2 * (sum(squares) - own) for own in squares)
    return sum(2 * a * b for at, a in enumerate(squares) for b in squares[at + 1 :])


@dataclass(frozen=True)
class Terms:
    """`columns`: name, holders and number of categories, by name, those with a category."""

    job_digest: bytes
    job: dict[str, Any]
    roster: tuple[str, ...]
    columns: tuple[tuple[str, tuple[str, ...], int], ...]
    objects: int

    @cached_property
    def variance(self) -> Fraction | None:
        if self.job["epsilon"] == "exact":
            return None
        holders = {name: sites for name, sites, _ in self.columns}
        rho = Fraction(rho_of(self.job["epsilon"], self.job["delta"]))
        least = Fraction(change(holders, self.job["unit"], self.roster)) / (2 * rho)
        return Fraction(max(math.ceil(256 * least / (len(self.roster) - self.job["collusion"])), 9 * 256), 256)

    @cached_property
    def sd(self) -> float:
        return math.sqrt((self.variance or 0) * len(self.roster))

    @cached_property
    def largest(self) -> dict[tuple[int, int], int]:
        """By pair of columns i < j, in order: the largest total of their table."""
        h = [len(sites) for _, sites, _ in self.columns]
        return {(i, j): self.objects * h[i] * h[j] for i in range(len(h)) for j in range(i + 1, len(h))}

    @cached_property
    def ring(self) -> Ring:
        return Ring(22 if max(self.largest.values()) + 16 * self.sd < 2**22 else 32)

    @cached_property
    def spans(self) -> list[slice]:
        """Where the categories of each column are among all."""
        ends = np.cumsum([0, *(k for _, _, k in self.columns)]).tolist()
        return [slice(a, b) for a, b in pairwise(ends)]

    def cells_of(self, site: str) -> Array:
        """Where the categories of a site's columns are among all."""
        held = [span for span, (_, sites, _) in zip(self.spans, self.columns, strict=True) if site in sites]
        return np.array([at for span in held for at in range(span.start, span.stop)], np.intp)

    def cells(self, square: Array) -> Array:
        """The cells of all tables, in order, of a (D, D) array."""
        return np.concatenate([square[self.spans[i], self.spans[j]].reshape(-1) for i, j in self.largest])

    @cached_property
    def digest(self) -> bytes:
        columns = [joined(n.encode(), number(k), *(site.encode() for site in held)) for n, held, k in self.columns]
        noisy = b"" if self.variance is None else str(self.variance).encode()
        parts = (number(self.objects), str(self.job["clusters"]).encode(), noisy)
        return sha256(joined(b"ce sealed terms 1", self.job_digest, texts(self.roster), joined(*columns), *parts))
