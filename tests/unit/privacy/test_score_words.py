"""Words of scores: winners are the plain argmax of the scores; dummy rows show a dealer that spoils comparisons."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.played_argmax import argmax, played

from ce.errors import InputError
from ce.privacy.score_words import BIG, DUMMY_ROWS, PermutedRows, score_words
from ce.privacy.secure_argmax import winners

KEY = bytes(range(32))


def one_hot_sum(codes: NDArray[np.int32], columns: list[int], cells: NDArray[np.int64]) -> NDArray[np.int64]:
    total = np.zeros((len(codes), cells.shape[1]), dtype=np.int64)
    offset = 0
    for at, categories in enumerate(columns):
        for row, code in enumerate(codes[:, at]):
            if code >= 0:
                total[row] += cells[offset + code]
        offset += categories
    return total


def drawn(
    seed: int, members: int, clusters: int, rows: int, largest: int
) -> tuple[list[NDArray[np.int32]], list[list[int]], list[NDArray[np.int64]], NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    columns = [random.integers(1, 4, size=random.integers(1, 4)).tolist() for _ in range(members)]
    codes = [
        np.column_stack([random.integers(-1, categories, size=rows) for categories in of]).astype(np.int32)
        for of in columns
    ]
    for part in codes:
        part[random.random(rows) < 0.5] = -1
    cells = [-32 * random.integers(0, largest + 1, size=(sum(of), clusters)) for of in columns]
    weights = -32 * random.integers(0, largest + 1, size=clusters)
    return codes, columns, cells, weights


@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(1, 31), st.sampled_from([0, 2, 2**16]))
@settings(max_examples=15, deadline=None)
def test_winners_are_the_best_clusters_or_no_label(seed: int, members: int, clusters: int, largest: int) -> None:
    codes, columns, cells, weights = drawn(seed, members, clusters, 12, largest)
    words = [score_words(codes[at], columns[at], cells[at], weights if at == 0 else None) for at in range(members)]
    total = weights + sum(one_hot_sum(*of) for of in zip(codes, columns, cells, strict=True))
    expected = total.argmax(axis=1)
    expected[~np.any([(part >= 0).any(axis=1) for part in codes], axis=0)] = clusters
    assert (argmax(words) == expected).all()


def test_the_worst_score_is_above_no_label_even_with_most_members() -> None:
    """63 members with a label take 63 BIG from "no label anywhere": the difference to a cluster fits in 31 bits."""
    cells = np.full((1, 1), -32 * ((BIG - 1) // 63))
    codes = np.zeros((1, 1), dtype=np.int32)
    words = [score_words(codes, [1], cells, np.array([-32]) if at == 0 else None) for at in range(63)]
    assert argmax(words) == [0]
    lowest = score_words(codes, [1], np.array([[-32 * (BIG - 1)]]), np.array([0]))
    none = score_words(np.full((1, 1), -1, dtype=np.int32), [1], np.array([[0]]), None)
    assert argmax([lowest, none]) == [0]
    nobody = score_words(np.full((1, 1), -1, dtype=np.int32), [1], np.array([[0]]), np.array([0]))
    assert argmax([nobody, none]) == [1]


def test_rows_in_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    codes, columns, cells, weights = drawn(3, 2, 4, 50, 100)
    whole = score_words(codes[0], columns[0], cells[0], weights)
    monkeypatch.setattr("ce.privacy.score_words._STRETCH", 7)
    assert (score_words(codes[0], columns[0], cells[0], weights) == whole).all()


def test_words_that_do_not_fit_are_refused() -> None:
    codes, cells = np.zeros((2, 1), dtype=np.int32), np.zeros((2, 3), dtype=np.int64)
    assert score_words(codes, [2], cells, None).shape == (4, 2)
    for bad in (
        (codes, [3], cells, None),
        (codes, [1, 1], cells, None),
        (codes + 2, [2], cells, None),
        (codes - 2, [2], cells, None),
        (codes, [2], np.zeros((2, 32), dtype=np.int64), None),
        (codes, [2], cells, np.zeros(2, dtype=np.int64)),
    ):
        with pytest.raises(InputError):
            score_words(*bad)
    rows = PermutedRows(KEY, 2, 4, 2)
    for words, position in ((np.zeros((3, 2), np.uint32), 0), (np.zeros((4, 2), np.uint32), 2)):
        with pytest.raises(InputError):
            rows.arranged(words, position)
    with pytest.raises(InputError):
        PermutedRows(KEY, 2, 33, 2)


@given(st.binary(min_size=32, max_size=32), st.integers(1, 30), st.integers(2, 32), st.integers(2, 10))
@settings(max_examples=15, deadline=None)
def test_dummy_winners_are_as_drawn_and_rows_return_to_their_places(
    key: bytes, rows: int, candidates: int, members: int
) -> None:
    permuted = PermutedRows(key, rows, candidates, members)
    random = np.random.default_rng(rows)
    words = [random.integers(0, 2**20, size=(candidates, rows), dtype=np.uint32) for _ in range(members)]
    arranged = [permuted.arranged(part, at) for at, part in enumerate(words)]
    for part, of in zip(words, arranged, strict=True):
        assert of.shape == (candidates, rows + DUMMY_ROWS) == (candidates, permuted.total)
        assert all((permuted.real(of[at]) == part[at]).all() for at in range(candidates))
    total = np.sum(arranged, axis=0, dtype=np.uint32).astype(np.int32)
    best = candidates - 1 - total.max(axis=0) % 32
    assert permuted.dummies_are_right(permuted.dummy(best))
    assert (permuted.dummy(total.argmax(axis=0)) == permuted.dummy(best)).all()
    wrong = permuted.dummy(best).copy()
    wrong[-1] = (wrong[-1] + 1) % candidates
    assert not permuted.dummies_are_right(wrong)


def test_every_member_and_every_candidate_counts_in_dummy_rows() -> None:
    permuted = PermutedRows(KEY, 1, 8, 3)
    empty = np.zeros((8, 1), dtype=np.uint32)
    shares = [permuted.arranged(empty, at) for at in range(3)]
    total = np.sum(shares, axis=0, dtype=np.uint32).astype(np.int32)
    winning = permuted.dummy(total.argmax(axis=0))
    assert set(winning) == set(range(8))
    for left_out in range(3):
        rest = np.sum([share for at, share in enumerate(shares) if at != left_out], axis=0, dtype=np.uint32)
        agree = permuted.dummy(rest.astype(np.int32).argmax(axis=0)) == winning
        assert agree.mean() < 0.4  # by chance: 1 of 8
    other = PermutedRows(bytes(32), 1, 8, 3)
    assert not other.dummies_are_right(winning.astype(np.int32))


def test_dummy_rows_have_close_and_far_runners_up() -> None:
    """A dealer that shifts comparisons a little spoils only close ones; some dummy rows are that close."""
    permuted = PermutedRows(KEY, 1, 8, 2)
    empty = np.zeros((8, 1), dtype=np.uint32)
    total = np.sum([permuted.arranged(empty, at) for at in range(2)], axis=0, dtype=np.uint32).astype(np.int32)
    scores = np.sort(np.array([permuted.dummy(of >> 5) for of in total]), axis=0)
    distances = (scores[-1:] - scores[:-1]).ravel()
    assert (distances == 0).sum() > 10
    assert all(((distances >= 1 << bit) & (distances < 2 << bit)).sum() > 10 for bit in range(20))


def test_a_dealer_that_spoils_comparisons_is_found() -> None:
    rows = 300
    words = [np.zeros((5, rows), dtype=np.uint32) for _ in range(2)]
    permuted = PermutedRows(KEY, rows, 5, 2)
    arranged = [permuted.arranged(part, at) for at, part in enumerate(words)]

    def opened(spoiled: float) -> list[NDArray[np.uint8]]:
        def tamper(level: int, data: bytes) -> bytes:
            """Flip bit 31 of the mask in some comparisons: their outcome turns around."""
            comparisons = (2, 1, 1)[level] * permuted.total
            found = np.frombuffer(data, np.uint8).copy()
            last = found[14 * comparisons : 16 * comparisons].view("<u2")
            last[np.random.default_rng(level).random(comparisons) < spoiled] ^= np.uint16(1 << 15)
            return found.tobytes()

        members, _ = played(arranged, tamper=tamper)
        return [permuted.dummy(member.share) for member in members]

    assert permuted.dummies_are_right(winners(opened(0), 5))
    assert not permuted.dummies_are_right(winners(opened(0.02), 5))
