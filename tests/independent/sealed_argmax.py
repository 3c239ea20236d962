"""A member's part in the tournament of a block, written from docs/protocol.md ("Tournament"). Imports nothing of ce.

Bits of comparisons stay packed; those that fill the last byte go through the same operations as the others.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass

import numpy as np
from keys_and_masks import Array, number, require
from sealed_words import Stream, stream

DUMMIES, STRETCH, PRODUCTS = 256, 2**16, 11
BIG = 2**20 + 1


def levels(candidates: int) -> list[int]:
    """Pairs of each level."""
    found = []
    while candidates > 1:
        found.append(candidates // 2)
        candidates -= candidates // 2
    return found


@dataclass
class Random:
    """The random words of a member for one level."""

    r: Array
    t: Array
    left: Array
    right: Array
    both: Array
    b: Array
    b_word: Array
    br_word: Array

    @classmethod
    def drawn(cls, seed: bytes, digest: bytes, level: int, comparisons: int) -> Random:
        parts = []
        for at, begin in enumerate(range(0, comparisons, STRETCH)):
            m = min(STRETCH, comparisons - begin)
            source, packed = stream(seed, b"ce argmax 1", digest, number(level), number(at)), -(-m // 8)
            bits = [source.take("<u4", m), source.take("<u2", (8, m))]
            bits += [source.take("u1", (PRODUCTS, packed)) for _ in range(3)]
            parts.append([*bits, source.take("u1", packed), source.take("<u4", m), source.take("<u4", m)])
        return cls(*(np.concatenate(own, axis=-1) for own in zip(*parts, strict=True)))

    def correct(self, data: bytes) -> None:
        """With the dealer's corrections, at the last member."""
        comparisons, at = len(self.r), 0
        found: list[list[Array]] = [[], [], [], []]
        for begin in range(0, comparisons, STRETCH):
            m = min(STRETCH, comparisons - begin)
            shapes = (("<u2", (8, m)), ("u1", (PRODUCTS, -(-m // 8))), ("<u4", (m,)), ("<u4", (m,)))
            for own, (kind, shape) in zip(found, shapes, strict=True):
                count = int(np.prod(shape))
                own.append(np.frombuffer(data, kind, count, at).reshape(shape))
                at += count * np.dtype(kind).itemsize
        require(at == len(data), f"corrections: expected {at} bytes, got {len(data)}")
        t, both, b_word, br_word = (np.concatenate(own, axis=-1) for own in found)
        self.t, self.both = self.t ^ t, self.both ^ both
        self.b_word, self.br_word = self.b_word + b_word, self.br_word + br_word


def tournament(
    position: int, members: int, seed: bytes, digest: bytes, words: Array, corrections: Mapping[int, bytes]
) -> Generator[bytes, list[bytes], Array]:
    """Gives the messages and is sent those of the others; the result is the share of every row.

    `corrections`, by level, are there when the first messages of the level are.
    """
    first, (_, rows) = position == 0, words.shape
    for level, pairs in enumerate(levels(len(words))):
        random = Random.drawn(seed, digest, level, pairs * rows)
        high, low = words[:pairs].reshape(-1), words[pairs : 2 * pairs].reshape(-1)
        own = high - low + random.r
        c = own + sum(np.frombuffer(data, "<u4") for data in (yield own.tobytes()))
        if position == members - 1:
            random.correct(corrections[level])
        nodes = []
        for digit in range(8):
            v = ((c >> np.uint32(4 * digit)) & np.uint32(15 if digit < 7 else 7)).astype(np.uint16)
            t = (random.t[digit] << np.uint16(1)) | np.uint16(first)
            at, above = (t >> v) & np.uint16(1), (t >> v >> np.uint16(1)) & np.uint16(1)
            nodes.append((_packed(above), _packed(at ^ above)))
        top = _packed((random.t[7] >> np.uint16(15)) ^ ((c >> np.uint32(31)).astype(np.uint16) if first else 0))
        used = 0
        while len(nodes) > 1:
            x, y = [], []
            for at in range(0, len(nodes), 2):
                (less, equal), (_, equal_high) = nodes[at], nodes[at + 1]
                x += [equal_high] * (2 if at else 1)
                y += [less, equal] if at else [less]
            part = slice(used, used := used + len(x))
            left, right, both = random.left[part], random.right[part], random.both[part]
            opened = _xor(np.stack([np.array(x) ^ left, np.array(y) ^ right]), (yield _bytes(x, left, y, right)))
            products = iter(both ^ (opened[0] & right) ^ (opened[1] & left) ^ ((opened[0] & opened[1]) if first else 0))
            nodes = [
                (nodes[at + 1][0] ^ next(products), next(products) if at else nodes[at + 1][1])
                for at in range(0, len(nodes), 2)
            ]
        bit = top ^ nodes[0][0] ^ random.b
        e = np.unpackbits(_xor(bit, (yield bit.tobytes())), count=len(c)).astype(bool)
        d = c * random.b_word - random.br_word
        share = (c if first else np.uint32(0)) - random.r
        larger = high - np.where(e, share - d, d)
        words = np.concatenate([larger.reshape(pairs, rows), words[2 * pairs :]])
    return np.asarray(words[0] % np.uint32(32), np.uint8)


def _packed(bits: Array) -> Array:
    return np.packbits(bits.astype(np.uint8))


def _bytes(x: list[Array], left: Array, y: list[Array], right: Array) -> bytes:
    return (np.array(x) ^ left).tobytes() + (np.array(y) ^ right).tobytes()


def _xor(own: Array, others: list[bytes]) -> Array:
    for data in others:
        own = own ^ np.frombuffer(data, np.uint8).reshape(own.shape)
    return own


class Rows:
    """The rows of a block with its dummy rows, by the row key."""

    def __init__(self, key: bytes, objects: int, candidates: int, members: int) -> None:
        self.objects, self.key, self.shape = objects, key, (candidates, DUMMIES)
        order = stream(key, b"ce row order 1").take("<u8", objects + DUMMIES)
        self.order = np.argsort(order, kind="stable")
        self.place = np.argsort(self.order)
        source, clusters = stream(key, b"ce dummy scores 1"), candidates - 1
        cluster = (source.take("<u8", DUMMIES) % np.uint64(clusters)).astype(np.int64)
        best, distance = self._sizes(source, (DUMMIES,)), self._sizes(source, (clusters, DUMMIES))
        h, row = np.arange(clusters)[:, None], np.arange(DUMMIES)
        distance = np.where(h < cluster, np.maximum(distance, 1), np.where(h == cluster, 0, distance))
        labelled = np.where(row < 128, row % (members + 1), members)
        scores = 32 * np.maximum(-best - distance, -(2**20)) + clusters - h
        self.scores = np.vstack([scores, 32 - 32 * BIG * labelled]).astype(np.uint32)
        self.winners = np.where(labelled == 0, clusters, cluster)
        self.members = members

    @staticmethod
    def _sizes(source: Stream, shape: tuple[int, ...]) -> Array:
        word = source.take("<u4", shape).astype(np.int64)
        fewer = np.where(word < 2**31, word % 11, word % 21)
        return np.asarray(source.take("<u4", shape).astype(np.int64) & ((2**20 - 1) >> fewer))

    def _drawn(self, position: int) -> Array:
        return stream(self.key, b"ce dummy share 1", number(position)).take("<u4", self.shape)

    def arranged(self, words: Array, position: int) -> Array:
        """A member's words of all rows, in the order of the tournament."""
        share = self._drawn(position) if position else self.scores - sum(map(self._drawn, range(1, self.members)))
        return np.asarray(np.hstack([words, share])[:, self.order], np.uint32)

    def dummy(self, share: Array) -> Array:
        return np.asarray(share[self.place[self.objects :]])

    def real(self, share: Array) -> Array:
        return np.asarray(share[self.place[: self.objects]])


def score_words(x: Array, cells: Array, weights: Array | None) -> Array:
    """(K, objects) words of a member: x (objects, D_s) zeros and ones, cells (D_s, k), weights (k) at the first."""
    k = cells.shape[1]
    scores = x.astype(np.int64) @ cells
    nowhere = np.where(x.any(axis=1), -32 * BIG, 0)
    if weights is not None:
        scores, nowhere = scores + weights + (k - np.arange(k)), nowhere + 32
    return np.vstack([scores.T, nowhere]).astype(np.uint32)
