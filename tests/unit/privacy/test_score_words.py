"""Words of scores: winners are the plain argmax of the scores; dummy rows show a dealer that spoils comparisons."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.played_argmax import CONTEXT, argmax, played, seed_of

from ce.errors import InputError
from ce.privacy.score_words import BIG, DUMMY_ROWS, PermutedRows, score_words
from ce.privacy.secure_argmax import drawn as drawn_randomness
from ce.privacy.secure_argmax import level_comparisons, winners

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


def dummy_words(candidates: int, members: int) -> NDArray[np.int32]:
    """(K, 256): the words of the dummy rows, all members together."""
    permuted = PermutedRows(KEY, 1, candidates, members)
    empty = np.zeros((candidates, 1), dtype=np.uint32)
    shares = [permuted.arranged(empty, at) for at in range(members)]
    total = np.sum(shares, axis=0, dtype=np.uint32).astype(np.int32)
    return np.array([permuted.dummy(of) for of in total])


@pytest.mark.parametrize(("candidates", "members"), [(2, 2), (3, 5), (8, 3), (32, 63)])
def test_dummy_rows_are_such_as_objects_have(candidates: int, members: int) -> None:
    """Scores within their range, any number of members with a label, and "no label anywhere" where there is none."""
    words = dummy_words(candidates, members)
    scores, nowhere = words[:-1] >> 5, words[-1]
    assert (words[:-1] % 32 == candidates - 1 - np.arange(candidates - 1)[:, None]).all()
    assert scores.max() <= 0
    assert scores.min() >= 1 - BIG
    assert set(nowhere.tolist()) == {32 - 32 * BIG * labelled for labelled in range(members + 1)}
    assert (nowhere == 32 - 32 * BIG * members).sum() > DUMMY_ROWS // 2
    assert ((words.argmax(axis=0) == candidates - 1) == (nowhere == 32)).all()
    # Against "no label anywhere" the best cluster is ahead by numbers of all sizes that there are.
    ahead = (words[:-1].max(axis=0) - nowhere)[nowhere < 32]
    assert ahead.min() > 0
    assert set((ahead >> 25).tolist()) >= set(range(1, members))
    assert (ahead >> 25).max() == members
    assert set(((ahead >> 24) & 1).tolist()) == {0, 1}


def test_dummy_rows_have_close_and_far_runners_up() -> None:
    """A dealer that shifts comparisons a little spoils only close ones; some dummy rows are that close."""
    scores = np.sort(dummy_words(8, 2)[:-1] >> 5, axis=0)
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


def wrong_after(
    permuted: PermutedRows, words: list[NDArray[np.uint32]], digit: int, above: range, levels: range
) -> tuple[float, bool]:
    """What a dealer does that knows all masks r, and turns the outcome of comparisons round whose opened number has, in
    one digit, the digit of r plus one of `above`: the part of wrong labels, and whether dummy rows show it."""
    members, candidates = len(words), len(words[0])
    comparisons = level_comparisons(permuted.total, candidates)
    most = 8 if digit == 7 else 16

    def tamper(level: int, data: bytes) -> bytes:
        if level not in levels:
            return data
        n = comparisons[level]
        mask = np.zeros(n, dtype=np.uint32)
        for at in range(members):
            mask += drawn_randomness(seed_of(at), CONTEXT, level, 0, n).mask
        value = ((mask >> np.uint32(4 * digit)) % most).astype(np.int64)
        flipped = np.zeros(n, dtype=np.int64)
        for shift in above:
            flipped |= np.where(value + shift < most, np.int64(1) << (value + shift), 0)
        found = np.frombuffer(data, np.uint8).copy()
        found[2 * n * digit : 2 * n * (digit + 1)].view("<u2")[:] ^= flipped.astype(np.uint16)
        return found.tobytes()

    found, _ = played([permuted.arranged(part, at) for at, part in enumerate(words)], tamper=tamper)
    opened = winners([member.share for member in found], candidates)
    total = np.sum(words, axis=0, dtype=np.uint32).astype(np.int32)
    wrong = float((permuted.real(opened) != total.argmax(axis=0)).mean())
    return wrong, not permuted.dummies_are_right(permuted.dummy(opened))


def labelled_words(seed: int, members: int, clusters: int, rows: int, missing: float) -> list[NDArray[np.uint32]]:
    """Words of members with labels that agree with a cluster more often than not, as objects have them."""
    random = np.random.default_rng(seed)
    columns = [3, 3, 3]
    unit = 2**20 // (10 * 3 * members + 30)
    words = []
    truth = random.integers(0, clusters, rows)
    for at in range(members):
        codes = np.column_stack([np.where(random.random(rows) < 0.7, truth % 3, random.integers(0, 3, rows))] * 3)
        codes[random.random(codes.shape) < missing] = -1
        beta = random.dirichlet(np.ones(3), (3, clusters)).transpose(0, 2, 1).reshape(9, clusters)
        cells = 32 * np.rint(unit * np.log(np.maximum(beta, 1e-4))).astype(np.int64)
        weights = 32 * np.rint(unit * np.log(np.full(clusters, 1 / clusters))).astype(np.int64)
        words.append(score_words(codes.astype(np.int32), columns, cells, weights if at == 0 else None))
    return words


@pytest.mark.parametrize("members", [2, 3, 5])
@pytest.mark.parametrize("clusters", [2, 7])
def test_a_dealer_that_spoils_comparisons_with_no_label_anywhere_is_found(members: int, clusters: int) -> None:
    """Between clusters differences are below 2^25, to "no label anywhere" about 2^25 for each member with a label."""
    permuted = PermutedRows(KEY, 200, clusters + 1, members)
    words = labelled_words(members, members, clusters, 200, 0.1)
    wrong, found = wrong_after(permuted, words, 6, range(3, 13), range(9))
    assert found
    assert wrong > 0.05


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_dealer_that_spoils_comparisons_by_their_digits_is_found() -> None:
    """Any digit, any value in it, any level: where one label in eight becomes wrong, dummy rows show it."""
    spoiled = 0
    for members, clusters, missing in ((2, 2, 0.0), (2, 4, 0.5), (3, 7, 0.1), (5, 3, 0.1), (12, 5, 0.1)):
        permuted = PermutedRows(KEY, 200, clusters + 1, members)
        words = labelled_words(clusters, members, clusters, 200, missing)
        for level in range(len(level_comparisons(1, clusters + 1))):
            for digit in range(8):
                for above in (*(range(at, at + 1) for at in range(16)), range(1, 3), range(3, 13), range(8, 16)):
                    wrong, found = wrong_after(permuted, words, digit, above, range(level, level + 1))
                    spoiled += wrong >= 0.125
                    assert found or wrong < 0.125, (members, clusters, level, digit, above, wrong)
    assert spoiled > 20
