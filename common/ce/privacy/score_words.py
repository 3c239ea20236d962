"""The words that the members of a block put into the secure argmax: scores of their labels, and dummy rows.

A score is 32 times a whole number; the first member also adds the weights of the clusters and K - 1 - index, so that
ties go to the lowest index. The last candidate is "no label anywhere": it wins exactly where no member has a label.
The members put 256 dummy rows among the rows, all permuted, under a key that they share and the dealer has not: a
dealer that spoils comparisons spoils dummy rows too, and their winners are opened, and compared, before the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ce.cancellation import check_cancelled
from ce.errors import InputError
from ce.privacy.derivation import number
from ce.privacy.ring_words import Stream, stream_of
from ce.privacy.secure_argmax import MOST_CANDIDATES, MOST_MEMBERS, WINNER_MODULUS, Words

Value = TypeVar("Value", bound=np.generic)

#: Above every sum of scores of an object's labels: a member with a label takes so much from "no label anywhere".
BIG = 2**20 + 1
DUMMY_ROWS = 256
#: Rows whose scores are added up at a time.
_STRETCH = 2**14
#: Bits of the largest score, without its sign: BIG is above it.
_SCORE_BITS = 20
#: Of scores and distances of dummy rows one half have any number of bits, the other one of the highest so many, as most
#: objects have.
_HIGH_BITS = 11


def score_words(
    codes: NDArray[np.int32],
    columns: Sequence[int],
    cells: NDArray[np.int64],
    weights: NDArray[np.int64] | None,
) -> Words:
    """(k + 1, n) words of one member: for each of n objects the scores of k clusters, then "no label anywhere".

    codes    (n, m): labels of this member's columns, -1 missing
    columns  number of categories of each of these columns
    cells    (sum of columns, k): the words of the categories, multiples of 32
    weights  (k,): the words of the clusters, multiples of 32, at the block's first member; None at all others
    """
    width, clusters = cells.shape
    if codes.ndim != 2 or codes.shape[1] != len(columns) or width != sum(columns):
        raise InputError(f"scores: expected words of {sum(columns)} categories of {len(columns)} columns, got {width}")
    if not 1 <= clusters < MOST_CANDIDATES:
        raise InputError(f"clusters: expected 1 to {MOST_CANDIDATES - 1}, got {clusters}")
    if codes.size and (codes.min() < -1 or (codes >= np.asarray(columns)).any()):
        raise InputError("codes: expected -1 or a category of the column, got another number")
    offsets = np.cumsum([0, *columns[:-1]])
    padded = np.vstack((cells, np.zeros((1, clusters), dtype=np.int64)))  # a missing label adds the last row: zeros
    start = np.zeros(clusters + 1, dtype=np.int64)
    if weights is not None:
        if weights.shape != (clusters,):
            raise InputError(f"weights: expected {clusters}, got an array of shape {weights.shape}")
        start[:-1] = weights + np.arange(clusters, 0, -1)
        start[-1] = WINNER_MODULUS
    words = np.empty((clusters + 1, len(codes)), dtype=np.uint32)
    for begin in range(0, len(codes), _STRETCH):
        check_cancelled()
        part = codes[begin : begin + _STRETCH]
        labelled = part >= 0
        sums = np.zeros((len(part), clusters + 1), dtype=np.int64) + start
        for column in range(part.shape[1]):
            sums[:, :-1] += padded[np.where(labelled[:, column], part[:, column] + offsets[column], width)]
        sums[:, -1] -= WINNER_MODULUS * BIG * labelled.any(axis=1)
        words[:, begin : begin + len(part)] = sums.T.astype(np.uint32)
    return words


class PermutedRows:
    """Where the rows of a block, and its dummy rows, stand in the argmax; the same at all members.

    key      32 fresh bytes in every attempt, drawn by the block's first member for the members alone
    rows     objects of the block
    """

    def __init__(self, key: bytes, rows: int, candidates: int, members: int) -> None:
        if not (2 <= candidates <= MOST_CANDIDATES and 2 <= members <= MOST_MEMBERS):
            raise InputError(
                f"dummy rows: expected 2 to {MOST_CANDIDATES} candidates and 2 to {MOST_MEMBERS} members, "
                f"got {candidates} and {members}"
            )
        self.rows, self.total = rows, rows + DUMMY_ROWS
        self._key, self._candidates, self._members = key, candidates, members
        # Sorting random words of 64 bits is a uniform permutation but for equal words.
        self._order = np.argsort(stream_of(key, b"ce row order 1").words(self.total, np.uint64), kind="stable")
        self._place = np.argsort(self._order)
        self._winners, self._scores = self._drawn_scores()

    def arranged(self, words: Words, position: int) -> Words:
        """(K, total): a member's words with its shares of the dummy rows, in the order of the argmax."""
        if words.shape != (self._candidates, self.rows):
            raise InputError(f"words: expected shape {(self._candidates, self.rows)}, got {words.shape}")
        if not 0 <= position < self._members:
            raise InputError(f"position: expected below {self._members}, got {position}")
        return np.hstack((words, self._share(position)))[:, self._order]

    def real(self, values: NDArray[Value]) -> NDArray[Value]:
        """Of one value per row of the argmax: those of the block's objects, in the block's order."""
        return values[self._place[: self.rows]]

    def dummy(self, values: NDArray[Value]) -> NDArray[Value]:
        """Of one value per row of the argmax: those of the dummy rows."""
        return values[self._place[self.rows :]]

    def dummies_are_right(self, winners: NDArray[np.int32]) -> bool:
        """Whether the winners that were opened for the dummy rows are those that the key says."""
        return np.array_equal(winners, self._winners)

    def _share(self, position: int) -> Words:
        """Uniform words at all members but the first, which makes up for them: every member's part counts."""
        if position:
            return self._drawn_share(position)
        share = self._scores.copy()
        for other in range(1, self._members):
            share -= self._drawn_share(other)
        return share

    def _drawn_share(self, position: int) -> Words:
        stream = stream_of(self._key, b"ce dummy share 1", number(position))
        share: Words = stream.words((self._candidates, DUMMY_ROWS), np.uint32)
        return share

    def _drawn_scores(self) -> tuple[NDArray[np.int32], Words]:
        """Winners, and words of all candidates, as objects have them.

        A dealer can spoil comparisons whose difference has some digits and leave all others alone: so differences of
        dummy rows have all sizes that differences of objects have, ties among them. In half of the rows all members
        have a label, as of most objects; in the others 0, 1, ... of them. With 0 "no label anywhere" wins.
        """
        stream = stream_of(self._key, b"ce dummy scores 1")
        clusters = self._candidates - 1
        shape = (clusters, DUMMY_ROWS)
        index = np.arange(clusters)[:, None]
        best_cluster = (stream.words(DUMMY_ROWS, np.uint64) % np.uint64(clusters)).astype(np.int32)
        best = -_of_all_sizes(stream, (DUMMY_ROWS,))
        distance = _of_all_sizes(stream, shape)
        distance = np.where(index < best_cluster, np.maximum(distance, 1), distance)  # a tie would go to the lower one
        distance[best_cluster, np.arange(DUMMY_ROWS)] = 0
        scores = np.maximum(best - distance, 1 - BIG)
        rows = np.arange(DUMMY_ROWS)
        labelled = np.where(rows < DUMMY_ROWS // 2, rows % (self._members + 1), self._members)
        nowhere = WINNER_MODULUS * (1 - BIG * labelled)
        words = np.vstack((WINNER_MODULUS * scores + (clusters - index), nowhere))
        winners = np.where(labelled == 0, clusters, best_cluster).astype(np.int32)
        return winners, words.astype(np.uint32)


def _of_all_sizes(stream: Stream, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Random numbers below 2^n: in one half n is 0 to _SCORE_BITS, in the other one of the highest _HIGH_BITS."""
    drawn = stream.words(shape, np.uint32)
    fewer = np.where(drawn >> np.uint32(31), drawn % np.uint32(_SCORE_BITS + 1), drawn % np.uint32(_HIGH_BITS))
    mask = np.uint32(2**_SCORE_BITS - 1) >> fewer.astype(np.uint32)
    found: NDArray[np.int64] = (stream.words(shape, np.uint32) & mask).astype(np.int64)
    return found
