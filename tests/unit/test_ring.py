"""Sums as integers: exact, free of order, never wrapping, and never silent about what does not fit."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ce.errors import CeError, JobFailed, RingOverflow
from ce.ring import LARGEST_BITS, LARGEST_SHORT_BITS, Scale, decode, encode, narrowed, weighted_total, word_type

laws = settings(deadline=None, max_examples=60, derandomize=True)

LARGEST_WORD = 2**63 - 1

terms_counts = st.integers(1, 10**12)
limits = st.floats(1e-6, 1e9)
scales = st.builds(Scale.for_sum, terms_counts, limits)


def reals_within(scale: Scale, data: st.DataObject, size: int) -> np.ndarray:
    inside = st.floats(-scale.limit, scale.limit, allow_subnormal=False)
    return data.draw(hnp.arrays(np.float64, size, elements=inside))


@laws
@given(scale=scales, size=st.integers(0, 30), data=st.data())
def test_a_round_trip_is_within_half_a_unit(scale: Scale, size: int, data: st.DataObject) -> None:
    values = reals_within(scale, data, size)
    back = decode(encode(values, scale, "x"), scale)
    assert back.dtype == np.float64
    for value, returned in zip(values.tolist(), back.tolist(), strict=True):
        assert abs(Fraction(value) - Fraction(returned)) * 2 <= 1 / Fraction(scale.unit)


@laws
@given(scale=scales)
def test_the_limit_itself_and_zero_can_be_encoded(scale: Scale) -> None:
    ends = np.array([scale.limit, -scale.limit, 0.0, -0.0])
    words = encode(ends, scale, "x")
    assert words.dtype == np.int64
    assert words[0] == -words[1]
    assert words[2] == words[3] == 0
    assert encode(np.zeros((3, 0, 2)), scale, "x").shape == (3, 0, 2)


@pytest.mark.promise("The number of threads, the size of tiles and the order of rows, columns and sites change no bit.")
@laws
@given(scale=scales, size=st.integers(1, 40), data=st.data())
def test_sums_of_words_are_exact_and_free_of_order(scale: Scale, size: int, data: st.DataObject) -> None:
    words = encode(reals_within(scale, data, size), scale, "x")
    order = np.array(data.draw(st.permutations(range(size))))
    cut = data.draw(st.integers(0, size))
    modulus = 2**64
    exact = sum(words.tolist()) % modulus
    whole = words[None]  # of arrays: numpy warns when a scalar wraps, and to wrap is right
    for total in (
        weighted_total(whole, None),
        weighted_total(whole[:, order], None),
        weighted_total(whole[:, :cut], None) + weighted_total(whole[:, cut:], None),
    ):
        assert int(total[0]) % modulus == exact


@laws
@given(terms=terms_counts, limit=limits)
def test_for_sum_never_lets_its_terms_leave_the_ring(terms: int, limit: float) -> None:
    scale = Scale.for_sum(terms, limit)
    largest = int(encode(np.array([limit]), scale, "x")[0])
    smallest = int(encode(np.array([-limit]), scale, "x")[0])
    assert terms * largest <= LARGEST_WORD
    assert terms * smallest >= -LARGEST_WORD - 1


@laws
@given(terms=terms_counts, limit=limits)
def test_for_sum_is_the_finest_such_scale(terms: int, limit: float) -> None:
    scale = Scale.for_sum(terms, limit)
    total = max(Fraction(terms) * Fraction(limit), Fraction(1))
    assert total * Fraction(2) ** scale.bits <= Fraction(2) ** LARGEST_BITS * (1 + Fraction(1, 2**50))
    assert total * Fraction(2) ** (scale.bits + 1) > Fraction(2) ** LARGEST_BITS * (1 - Fraction(1, 2**50))


@laws
@given(scale=scales, factor=st.integers(1, 1000))
def test_a_term_that_stands_for_several_has_their_limit_and_the_same_fixed_point(scale: Scale, factor: int) -> None:
    wider = scale.times(factor)
    assert wider.bits == scale.bits
    assert wider.limit == scale.limit * factor
    assert wider.unit == scale.unit == math.ldexp(1.0, scale.bits)


@pytest.mark.promise("No label, object id or secret is in a frame, a log, a store, a checkpoint or an error.")
@laws
@given(
    scale=scales,
    bad=st.sampled_from(["above", "below", "nan", "inf", "-inf"]),
    shape=hnp.array_shapes(min_dims=1, max_dims=3, max_side=4),
    data=st.data(),
)
def test_a_term_that_does_not_fit_is_refused_by_name_and_never_shown(
    scale: Scale, bad: str, shape: tuple[int, ...], data: st.DataObject
) -> None:
    value = {
        "above": scale.limit * 1.0123456789,
        "below": -scale.limit * 1.0123456789,
        "nan": math.nan,
        "inf": math.inf,
        "-inf": -math.inf,
    }[bad]
    values = np.zeros(shape)
    values.flat[data.draw(st.integers(0, values.size - 1))] = value
    with pytest.raises(RingOverflow, match="secret sums") as caught:
        encode(values, scale, "secret sums")
    assert isinstance(caught.value, JobFailed)
    assert isinstance(caught.value, CeError)
    if math.isfinite(value):
        assert repr(abs(value)) not in str(caught.value)
        assert f"{abs(value):g}" not in str(caught.value)


# 32-bit words.


@laws
@given(terms=st.integers(1, 10**5), limit=limits, data=st.data())
def test_a_scale_of_short_words_never_lets_its_terms_leave_32_bits(
    terms: int, limit: float, data: st.DataObject
) -> None:
    scale = Scale.for_sum(terms, limit, "single")
    if scale.word_bits == 64:
        assert scale == Scale.for_sum(terms, limit)
        assert terms * limit > 2**10
        return
    assert scale.bits >= 20
    assert terms * (math.floor(limit * scale.unit) + 1) < 2**31
    words = encode(reals_within(scale, data, min(terms, 30)), scale, "x")
    with np.errstate(over="ignore"):
        short = narrowed(words, 32, "x")
        assert (short.dtype, int(short.sum(dtype=np.int32))) == (np.int32, int(words.sum()))


def test_arrays_without_20_fraction_bits_keep_64_bit_words() -> None:
    assert Scale.for_sum(2**10, 1.0, "single") == Scale(20, 1.0, 32)
    assert Scale.for_sum(2**10 + 1, 1.0, "single") == Scale.for_sum(2**10 + 1, 1.0) == Scale(LARGEST_BITS - 11, 1.0)
    assert Scale.for_sum(1, 1.0, "single") == Scale(LARGEST_SHORT_BITS, 1.0, 32)
    assert Scale.for_sum(3, 1.0, "single").times(5).word_bits == 32
    assert (word_type(32), word_type(64)) == (np.int32, np.int64)


@pytest.mark.parametrize("word", [2**31, -(2**31), 2**40])
def test_a_sum_that_is_too_large_for_its_words_is_refused_by_name(word: int) -> None:
    assert narrowed(np.array([0, 2**31 - 1, 1 - 2**31]), 32, "x").tolist() == [0, 2**31 - 1, 1 - 2**31]
    assert narrowed(np.array([word]), 64, "x").tolist() == [word]
    with pytest.raises(RingOverflow, match=r"^block/0/sums: a sum does not fit in 32-bit words"):
        narrowed(np.array([0, word]), 32, "block/0/sums")


def test_just_beyond_the_limit_is_beyond_it() -> None:
    scale = Scale.for_sum(10, 1.0)
    encode(np.array([1.0, -1.0]), scale, "x")
    for value in (np.nextafter(1.0, 2.0), -np.nextafter(1.0, 2.0)):
        with pytest.raises(RingOverflow):
            encode(np.array([value]), scale, "x")


def test_counting_keeps_whole_numbers_exactly() -> None:
    scale = Scale.counting()
    numbers = np.array([0.0, 1.0, -1.0, 2.0**53, -(2.0**53), 2.0**62])
    words = encode(numbers, scale, "x")
    assert words.tolist() == [int(number) for number in numbers]
    np.testing.assert_array_equal(decode(words, scale), numbers)


@laws
@given(
    words=hnp.arrays(
        np.int64,
        hnp.array_shapes(min_dims=1, max_dims=3, max_side=6),
        elements=st.integers(-(2**63), 2**63 - 1),
    ),
    data=st.data(),
)
def test_a_weighted_total_equals_the_total_of_repeated_rows(words: np.ndarray, data: st.DataObject) -> None:
    weights = data.draw(hnp.arrays(np.int64, words.shape[-1], elements=st.integers(0, 9)))
    repeated = np.repeat(words, weights, axis=-1)
    np.testing.assert_array_equal(weighted_total(words, weights), weighted_total(repeated, None))
    np.testing.assert_array_equal(weighted_total(words, np.ones_like(weights)), weighted_total(words, None))


@pytest.mark.promise("Masks cancel exactly, and no keystream is used twice.")
@laws
@given(scale=scales, size=st.integers(1, 20), data=st.data())
def test_masks_cancel_exactly(scale: Scale, size: int, data: st.DataObject) -> None:
    words = encode(reals_within(scale, data, size), scale, "x")
    mask = data.draw(hnp.arrays(np.int64, size, elements=st.integers(-(2**63), 2**63 - 1)))
    np.testing.assert_array_equal((words + mask) - mask, words)
