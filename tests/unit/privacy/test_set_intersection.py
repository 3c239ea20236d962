"""Two parties find which items they have in common: exactly these, in any order, and below both cutoffs of samples."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ce.errors import MessageError
from ce.privacy import set_intersection
from ce.privacy.set_intersection import (
    MOST_ITEMS,
    MOST_POINTS,
    NO_CUTOFF,
    POINT_SIZE,
    SAMPLE,
    BlindedItems,
    Comparison,
    list_length,
)

KEY, PAIR = b"job key", b"pair key"


@cache
def party(name: str) -> BlindedItems:
    """Its secret number is the same in all examples, so that known items cost nothing."""
    return BlindedItems(KEY)


def items(numbers: list[int]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(n.to_bytes(16, "big") for n in numbers), np.uint8).reshape(-1, 16)


def compared(mine: list[int], theirs: list[int], lengths: tuple[int, int]) -> tuple[Comparison, Comparison]:
    return tuple(  # type: ignore[return-value]
        Comparison(party(name), PAIR, items(numbers), length)
        for name, numbers, length in zip("ab", (mine, theirs), lengths, strict=True)
    )


def found(a: Comparison, b: Comparison, lengths: tuple[int, int]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    a.answer(b.cutoff, b.points, lengths[1])
    return a.common(b.answer(a.cutoff, a.points, lengths[0]))


sets = st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True)


@pytest.mark.promise("A site finds out if the coordinator says something wrong about which sites hold its objects.")
@settings(max_examples=60, deadline=None)
@given(sets, sets)
def test_what_is_found_is_the_intersection(mine: list[int], theirs: list[int]) -> None:
    lengths = len(mine), len(theirs)
    positions, common = found(*compared(mine, theirs, lengths), lengths)
    assert sorted(positions.tolist()) == list(range(len(mine)))
    assert {mine[at] for at in positions[common]} == set(mine) & set(theirs)


@settings(max_examples=60, deadline=None)
@given(sets, sets, st.data())
def test_of_samples_it_is_the_intersection_below_both_cutoffs(
    mine: list[int], theirs: list[int], data: st.DataObject
) -> None:
    lengths = data.draw(st.integers(1, len(mine))), data.draw(st.integers(1, len(theirs)))
    a, b = compared(mine, theirs, lengths)
    positions, common = found(a, b, lengths)
    tags = dict(zip(mine, set_intersection._tags(PAIR, items(mine)).tolist(), strict=True))
    below = {n for n in mine if tags[n] <= min(a.cutoff, b.cutoff)}
    assert {mine[at] for at in positions} == below
    assert {mine[at] for at in positions[common]} == below & set(theirs)
    assert (a.cutoff == NO_CUTOFF) == (lengths[0] == len(mine))
    assert len(a.points) == lengths[0] * POINT_SIZE


def test_the_order_of_a_list_tells_nothing_and_nobody_else_can_compare_it() -> None:
    first, again = (Comparison(party("a"), PAIR, items(numbers), 5) for numbers in ([1, 2, 3, 4, 5], [5, 3, 1, 2, 4]))
    assert first.points == again.points
    points = [first.points[at : at + POINT_SIZE] for at in range(0, len(first.points), POINT_SIZE)]
    assert points == sorted(points)
    # Who has the key of the hash and guesses all items, but not the secret number.
    guessed = BlindedItems(KEY).blind(item.tobytes() for item in items([1, 2, 3, 4, 5]))
    assert not set(guessed) & set(points)


def test_a_sample_is_another_one_for_another_pair() -> None:
    numbers = list(range(200))
    one, other = (Comparison(party("a"), key, items(numbers), 50) for key in (PAIR, b"another pair"))
    assert one.points != other.points


def test_items_that_come_again_cost_nothing() -> None:
    computed = []
    blinded = BlindedItems(KEY, lambda: computed.append(1))
    blinded.blind(item.tobytes() for item in items(list(range(300))))
    assert computed == [1]
    blinded.blind(item.tobytes() for item in items(list(range(299))))
    assert computed == [1]


def off_curve() -> bytes:
    x = 0
    while True:
        try:
            set_intersection._decoded(x.to_bytes(POINT_SIZE, "big"))
        except MessageError:
            return x.to_bytes(POINT_SIZE, "big")
        x += 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda points: points[:-1], "expected 3 points of 32 bytes, got 95 bytes"),
        (lambda points: points[POINT_SIZE:], "expected 3 points of 32 bytes, got 64 bytes"),
        (lambda points: points + points[:POINT_SIZE], "expected 3 points of 32 bytes, got 128 bytes"),
        (lambda points: points[:POINT_SIZE] * 3, "two points are equal"),
        (lambda points: points[POINT_SIZE:] + off_curve(), "a point is not on the curve"),
        (lambda points: points[POINT_SIZE:] + b"\xff" * POINT_SIZE, "a point is not on the curve"),
    ],
)
def test_a_list_that_cannot_be_is_refused(change, says: str) -> None:  # type: ignore[no-untyped-def]
    a, b = compared([1, 2, 3], [2, 3, 4], (3, 3))
    with pytest.raises(MessageError, match=says):
        a.answer(b.cutoff, change(b.points), 3)
    if "curve" not in says:  # an answer is only compared
        with pytest.raises(MessageError, match=says):
            a.common(change(b.answer(a.cutoff, a.points, 3)))


def test_how_many_items_are_compared() -> None:
    assert [list_length(n, 3) for n in (0, 1, MOST_ITEMS, MOST_ITEMS + 1, 10**7)] == [0, 1, MOST_ITEMS, SAMPLE, SAMPLE]
    for peers in (1, 10, 11, 50, 199):
        assert max(list_length(n, peers) for n in (900, 5000, 20_000, 10**6)) * peers <= MOST_POINTS
