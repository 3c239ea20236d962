"""The argmax of shared scores: equal to the plain one, ties included, with messages that say nothing about scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.played_argmax import CONTEXT, argmax, played, seed_of

from ce.errors import InputError, MessageError
from ce.privacy import secure_argmax
from ce.privacy.argmax_dealer import corrections, level_corrections
from ce.privacy.secure_argmax import (
    MOST_MEMBERS,
    Member,
    argmax_rounds,
    corrections_size,
    level_comparisons,
    share_from,
    winners,
)

Words = NDArray[np.uint32]


def words_of(scores: list[NDArray[np.int64]]) -> list[Words]:
    """Each member's addends; the first adds K - 1 - index."""
    found = [(32 * part).astype(np.uint32) for part in scores]
    candidates = len(scores[0])
    found[0] = found[0] + np.arange(candidates - 1, -1, -1).astype(np.uint32)[:, None]
    return found


def drawn_scores(seed: int, members: int, candidates: int, rows: int, largest: int) -> list[NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    scores = [random.integers(-largest, largest + 1, size=(candidates, rows)) for _ in range(members)]
    total = np.sum(scores, axis=0)
    low, high = sorted(random.choice(candidates, size=2, replace=False))
    tied = random.random(rows) < 0.3
    scores[0][high, tied] += (total.max(axis=0) - total[high])[tied]
    scores[-1][low, tied] += (total.max(axis=0) - total[low])[tied]
    return scores


@given(st.integers(0, 10_000), st.integers(2, 10), st.integers(2, 32), st.integers(1, 20), st.sampled_from([1, 2**19]))
@settings(max_examples=20, deadline=None)
def test_winners_are_those_of_numpy(seed: int, members: int, candidates: int, rows: int, largest: int) -> None:
    scores = drawn_scores(seed, members, candidates, rows, largest)
    assert (argmax(words_of(scores)) == np.sum(scores, axis=0).argmax(axis=0)).all()


def test_differences_of_all_sizes_and_signs_are_compared() -> None:
    """x of up to 31 bits, also next to every power of two: each digit decides somewhere."""
    powers = [1 << bit for bit in range(31)]
    differences = sorted({s * (p + d) for p in powers for d in (-1, 0, 1) for s in (-1, 1) if 0 <= p + d < 2**31})
    words = [np.zeros((2, len(differences)), dtype=np.uint32) for _ in range(3)]
    words[1][0] = np.array(differences).astype(np.uint32)
    members, _ = played(words)
    larger = np.sum([member._words[0] for member in members], axis=0, dtype=np.uint32).astype(np.int32)
    assert (larger == np.maximum(differences, 0)).all()


def test_most_members() -> None:
    scores = drawn_scores(1, MOST_MEMBERS, 2, 3, 1000)
    assert (argmax(words_of(scores)) == np.sum(scores, axis=0).argmax(axis=0)).all()


def test_levels_in_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure_argmax, "STRETCH", 16)
    scores = drawn_scores(2, 3, 7, 21, 1000)
    assert (argmax(words_of(scores)) == np.sum(scores, axis=0).argmax(axis=0)).all()
    parts = list(level_corrections([seed_of(0), seed_of(1)], CONTEXT, 0, 40))
    assert [len(part) for part in parts] == [corrections_size(16), corrections_size(16), corrections_size(8)]
    assert sum(map(len, parts)) == corrections_size(40)


@pytest.mark.slow
def test_many_rows() -> None:
    for members, candidates, seed in ((2, 3, 0), (3, 8, 1), (5, 21, 2), (10, 32, 3)):
        scores = drawn_scores(seed, members, candidates, 100_000, 2**19 // members)
        assert (argmax(words_of(scores), seed) == np.sum(scores, axis=0).argmax(axis=0)).all()


def test_sizes_follow_from_rows_and_candidates() -> None:
    assert level_comparisons(10, 7) == (30, 20, 10)
    assert level_comparisons(10, 2) == (10,)
    for candidates in range(2, 33):
        rounds = argmax_rounds(1, candidates)
        assert len(rounds) == 5 * (candidates - 1).bit_length()
        assert sum(level_comparisons(4, candidates)) == 4 * (candidates - 1)
    assert [of.size for of in argmax_rounds(9, 2)] == [36, 28, 12, 4, 2]
    assert [of.step for of in argmax_rounds(9, 2)] == ["difference", "and_1", "and_2", "and_3", "choice"]
    for rows, candidates in ((0, 2), (1, 1), (1, 33)):
        with pytest.raises(InputError):
            argmax_rounds(rows, candidates)


@given(st.integers(0, 4), st.integers(0, 40))
@settings(max_examples=20, deadline=None)
def test_messages_of_wrong_lengths_are_refused(rounds: int, size: int) -> None:
    words = words_of(drawn_scores(1, 2, 2, 5, 10))
    members = [Member(at, 2, seed_of(at), CONTEXT, part) for at, part in enumerate(words)]
    data = b"".join(level_corrections([seed_of(0), seed_of(1)], CONTEXT, 0, 5))
    members[1].correct(0, data)
    for _ in range(rounds):
        messages = [member.outgoing() for member in members]
        members[0].incoming([messages[1]])
        members[1].incoming([messages[0]])
    expected = members[0].rounds[rounds].size
    member = members[0]
    if size != expected:
        with pytest.raises(MessageError, match=f"expected {expected} bytes, got {size}"):
            member.incoming([bytes(size)])
        assert member.round == rounds
    for others in ([], [bytes(expected)] * 2):
        with pytest.raises(MessageError, match="messages of 1 other members"):
            member.incoming(others)


def test_corrections_are_for_the_last_member_once_and_in_time() -> None:
    words = words_of(drawn_scores(1, 2, 4, 5, 10))
    first, last = (Member(at, 2, seed_of(at), CONTEXT, part) for at, part in enumerate(words))
    data = {level: b"".join(parts) for level, parts in corrections([seed_of(0), seed_of(1)], CONTEXT, 5, 4)}
    assert first.needs_corrections is None
    assert last.needs_corrections == 0
    with pytest.raises(MessageError, match="corrections of level 0 before"):
        last.incoming([first.outgoing()])
    with pytest.raises(MessageError, match="bytes"):
        last.correct(0, data[0][:-1])
    for member, level in ((first, 0), (last, 2), (last, -1)):
        with pytest.raises(MessageError, match="once for each level"):
            member.correct(level, data[0])
    last.correct(1, data[1])
    last.correct(0, data[0])
    assert last.needs_corrections is None
    last.incoming([first.outgoing()])
    with pytest.raises(MessageError, match="once for each level"):
        last.correct(0, data[0])
    with pytest.raises(MessageError, match="after 10 rounds, got after 1"):
        _ = last.share


def test_nothing_after_the_last_round() -> None:
    members, _ = played(words_of(drawn_scores(1, 2, 2, 5, 10)))
    for act in (members[0].outgoing, lambda: members[0].incoming([b""]), lambda: members[1].correct(0, b"")):
        with pytest.raises(MessageError):
            act()


def test_shares_of_winners_are_checked() -> None:
    with pytest.raises(MessageError, match="got 2 bytes"):
        share_from(b"\x00\x01", 3)
    with pytest.raises(MessageError, match="below 32"):
        share_from(b"\x20", 1)
    with pytest.raises(MessageError, match="3 candidates"):
        winners([np.array([2], np.uint8), np.array([1], np.uint8)], 3)
    with pytest.raises(MessageError, match="2 rows"):
        winners([np.zeros(2, np.uint8), np.zeros(3, np.uint8)], 3)


def test_members_are_counted() -> None:
    words = np.zeros((2, 1), dtype=np.uint32)
    for position, members in ((0, 1), (2, 2), (-1, 2), (0, 64)):
        with pytest.raises(InputError):
            Member(position, members, bytes(32), CONTEXT, words)


@pytest.mark.slow
def test_recordings_are_uniform_whatever_the_scores() -> None:
    """All that is sent, each message and what the messages of a round open to: every bit is set half of the time, for
    scores that are all alike. The shares of the winners are uniform at every member."""
    rows, attempts = 4096, 16
    scores = [np.zeros((4, rows), dtype=np.int64) for _ in range(3)]
    scores[1][2] = 7
    ones: dict[tuple[int, int], NDArray[np.float64]] = {}
    shares = np.zeros((3, 32))
    for attempt in range(attempts):
        members, sent = played(words_of(scores), attempt)
        for at, messages in enumerate(sent):
            arrays = [np.frombuffer(message, np.uint8) for message in messages]
            xor = members[0].rounds[at].step != "difference"
            words = [array if xor else array.view("<u4") for array in arrays]
            opened = np.bitwise_xor.reduce(words) if xor else np.sum(words, axis=0, dtype=np.uint32)
            for who, array in enumerate([*arrays, opened.view(np.uint8)]):
                bits = np.unpackbits(array).reshape(-1, 32).mean(axis=0)
                ones[at, who] = ones.get((at, who), 0) + bits / attempts
        for who, member in enumerate(members):
            shares[who] += np.bincount(member.share, minlength=32)
    for (at, _), found in ones.items():
        count = 8 * members[0].rounds[at].size / 32 * attempts
        assert (np.abs(found - 0.5) < 6 * 0.5 / np.sqrt(count)).all()
    expected = rows * attempts / 32
    chi_square = ((shares - expected) ** 2 / expected).sum(axis=1)
    assert (chi_square < 31 + 6 * np.sqrt(2 * 31)).all()


@pytest.mark.slow
def test_messages_do_not_depend_on_scores() -> None:
    """Opened words of rows of two kinds have the same distribution in every bit: 6 standard deviations."""
    rows = 2**15
    scores = [np.zeros((2, rows), dtype=np.int64) for _ in range(2)]
    scores[0][0, ::2] = 12345
    _, sent = played(words_of(scores), 99)
    for messages in sent[:1]:
        words = np.frombuffer(messages[0], "<u4") + np.frombuffer(messages[1], "<u4")
        for bit in range(32):
            of = (words >> np.uint32(bit)) & 1
            assert abs(of[::2].mean() - of[1::2].mean()) < 6 / np.sqrt(rows)
    for messages in sent[1:]:
        opened = np.frombuffer(messages[0], np.uint8) ^ np.frombuffer(messages[1], np.uint8)
        bits = np.unpackbits(opened).reshape(-1, rows)
        assert (np.abs(bits[:, ::2].mean(axis=1) - bits[:, 1::2].mean(axis=1)) < 6 / np.sqrt(rows)).all()
