"""R-hat and the effective number of draws, on chains whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ce.samplers.diagnostics import effective_draws, split_r_hat


def test_independent_draws_agree_and_all_count() -> None:
    draws = np.random.default_rng(0).standard_normal((4, 1000))
    assert split_r_hat(draws) == pytest.approx(1.0, abs=0.01)
    assert effective_draws(draws) > 0.85 * draws.size


def test_chains_in_different_places_do_not_agree() -> None:
    draws = np.random.default_rng(1).standard_normal((4, 200))
    draws[0] += 5.0
    assert split_r_hat(draws) > 1.5
    assert effective_draws(draws) < 20


def test_a_chain_that_still_moves_does_not_agree_with_itself() -> None:
    draws = np.random.default_rng(2).standard_normal((3, 400)) + np.linspace(0.0, 8.0, 400)
    assert split_r_hat(draws) > 1.5


@pytest.mark.parametrize("correlation", [0.5, 0.9])
def test_of_correlated_draws_fewer_count(correlation: float) -> None:
    rng, n = np.random.default_rng(3), 4000
    draws = np.zeros((4, n))
    for at in range(1, n):
        draws[:, at] = correlation * draws[:, at - 1] + rng.standard_normal(4)
    expected = draws.size * (1 - correlation) / (1 + correlation)
    assert effective_draws(draws) == pytest.approx(expected, rel=0.25)


def test_few_draws_and_constant_ones() -> None:
    assert math.isnan(split_r_hat(np.zeros((4, 3))))
    assert math.isnan(effective_draws(np.zeros((4, 3))))
    assert split_r_hat(np.ones((2, 10))) == 1.0
    assert effective_draws(np.ones((2, 10))) == 20
    assert split_r_hat(np.array([[0.0] * 10, [1.0] * 10])) == math.inf
    for value in np.random.default_rng(4).uniform(-1e4, 1e4, 50):  # whose mean is rounded
        assert split_r_hat(np.full((5, 30), value)) == 1.0
        assert effective_draws(np.full((5, 30), value)) == 150
