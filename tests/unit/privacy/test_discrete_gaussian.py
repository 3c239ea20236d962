"""Draws have the probabilities of the discrete Gaussian, and depend on the stream alone."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from math import exp, sqrt
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ce.errors import InputError
from ce.privacy import discrete_gaussian
from ce.privacy.discrete_gaussian import DiscreteGaussian, thresholds
from ce.privacy.ring_words import Stream

KEY = bytes(range(32))


def chi_square(variance: Fraction, draws: NDArray[np.int64]) -> tuple[float, int]:
    """Of the values that are expected at least 20 times, the others in two tails; with the number of bins less 1."""
    reach = int(14 * sqrt(variance)) + 2
    values = np.arange(-reach, reach + 1)
    chances = np.array([exp(-(v**2) / (2 * float(variance))) for v in values])
    chances /= chances.sum()
    often = chances * len(draws) >= 20
    low, high = values[often][[0, -1]]
    expected = [chances[values < low].sum(), *chances[often], chances[values > high].sum()]
    counts = np.bincount(np.clip(draws, low - 1, high + 1) - (low - 1), minlength=len(expected))
    expected_counts = np.array(expected) * len(draws)
    return float(((counts - expected_counts) ** 2 / expected_counts).sum()), len(expected) - 1


def is_likely(found: tuple[float, int]) -> bool:
    """Within 5 standard deviations of a chi-square."""
    value, freedom = found
    return value < freedom + 5 * sqrt(2 * freedom)


@pytest.mark.parametrize("variance", [Fraction(1, 2), Fraction(9), Fraction(12345, 256)])
def test_draws_have_the_exact_probabilities(variance: Fraction) -> None:
    draws = DiscreteGaussian(variance).sample(Stream(KEY), 40_000)
    assert is_likely(chi_square(variance, draws))
    assert not is_likely(chi_square(variance, draws + 1))
    assert not is_likely(chi_square(variance * 8 / 7, draws))


@pytest.mark.slow
def test_many_draws_have_the_exact_probabilities() -> None:
    for variance in (Fraction(9), Fraction(1000, 3), Fraction(160_000)):
        assert is_likely(chi_square(variance, DiscreteGaussian(variance).sample(Stream(KEY), 4_000_000)))


@pytest.mark.slow
def test_moments_and_independence() -> None:
    count = 1_000_000
    for sd in (3, 30, 300):
        draws = DiscreteGaussian(Fraction(sd**2)).sample(Stream(KEY), count) / sd
        assert abs(draws.mean()) < 5 / sqrt(count)
        assert abs(draws.var() - 1) < 5 * sqrt(2 / count)
        assert abs((draws**3).mean()) < 5 * sqrt(15 / count)
        assert abs((draws**4).mean() - 3) < 5 * sqrt(96 / count)
        assert abs((draws[1:] * draws[:-1]).mean()) < 5 / sqrt(count)


@given(st.fractions(Fraction(1, 4), 40, max_denominator=300))
@settings(max_examples=15, deadline=None)
def test_thresholds_are_the_cumulative_probabilities(variance: Fraction) -> None:
    """Against every probability computed by itself, to 2^-120."""
    most, found = thresholds(variance)
    assert len(found) == 2 * most + 1
    assert found == sorted(found)
    assert found[-1] == 1 << 126
    with localcontext() as context:
        context.prec = 70
        parameter = 2 * Decimal(variance.numerator) / Decimal(variance.denominator)
        chances = [(-(Decimal(value) ** 2) / parameter).exp() for value in range(-most - 3, most + 4)]
        total, reached = sum(chances), sum(chances[:3])
        for threshold, chance in zip(found, chances[3:-3], strict=True):
            reached += chance
            assert abs(reached / total - Decimal(threshold) / (1 << 126)) < Decimal(2) ** -120


def test_large_tables_are_as_exact() -> None:
    variance = Fraction(2000**2)
    most, found = thresholds(variance)
    with localcontext() as context:
        context.prec = 70
        for value in (0, 1000, 20_000, most - 1):
            at, below = found[most + value], found[most + value - 1]
            chance = Decimal(at - below) / (1 << 126)
            at_0 = Decimal(found[most] - found[most - 1]) / (1 << 126)
            assert abs(chance - at_0 * (-Decimal(value**2) / (2 * 2000**2)).exp()) < Decimal(2) ** -120


class Chosen:
    """A stream whose words are given."""

    def __init__(self, words: list[tuple[int, int]]) -> None:
        self._words = np.array([[high << 1, low << 1] for high, low in words], dtype=np.uint64)

    def words(self, shape: tuple[int, ...], dtype: Any) -> NDArray[np.uint64]:
        assert self._words.shape == shape
        return self._words


def test_second_words_decide_where_first_words_are_equal() -> None:
    most, found = thresholds(Fraction(9))
    numbers = [found[most + value] + change for value in (-20, -3, 0, 5, 20) for change in (-1, 0, 1)]
    numbers += [0, (1 << 126) - 1]
    chosen = cast(Stream, Chosen([divmod(number, 1 << 63) for number in numbers]))
    exact = [next(at for at, threshold in enumerate(found) if number < threshold) - most for number in numbers]
    assert DiscreteGaussian(Fraction(9)).sample(chosen, len(numbers)).tolist() == exact
    assert exact[3:9] == [-3, -2, -2, 0, 1, 1]


def test_draws_follow_from_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    gaussian = DiscreteGaussian(Fraction(100))
    once = gaussian.sample(Stream(KEY), 100)
    assert (DiscreteGaussian(Fraction(100)).sample(Stream(KEY), 100) == once).all()
    assert (gaussian.sample(Stream(bytes(32)), 100) != once).any()
    monkeypatch.setattr(discrete_gaussian, "_STRETCH", 7)
    assert (gaussian.sample(Stream(KEY), 100) == once).all()
    stream = Stream(KEY)
    assert (np.concatenate([gaussian.sample(stream, 60), gaussian.sample(stream, 40)]) == once).all()
    assert gaussian.sample(Stream(KEY), 0).shape == (0,)


def test_variances_that_cannot_be_drawn_are_refused() -> None:
    for variance in (Fraction(0), Fraction(-1), Fraction(2**32 + 1)):
        with pytest.raises(InputError, match="variance of the noise"):
            DiscreteGaussian(variance)
