"""The partition that stands for many draws."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ce.samplers.point_estimate import (
    contingency,
    least_binder_loss,
    pairs_apart,
    renumbered,
)

laws = settings(deadline=None, max_examples=60, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


def draws_of(seed: int, count: int, n: int, k: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, k, n).astype(np.int16) for _ in range(count)]


@laws
@given(seed=seeds, n=st.integers(1, 15), k=st.integers(1, 5))
def test_pairs_are_counted_as_if_one_by_one(seed: int, n: int, k: int) -> None:
    one, other = draws_of(seed, 2, n, k)
    apart = sum((one[a] == one[b]) != (other[a] == other[b]) for a, b in combinations(range(n), 2))
    assert pairs_apart(one, other, k) == apart == pairs_apart(other, one, k)
    assert pairs_apart(one, np.random.default_rng(seed).permutation(k).astype(np.int16)[one], k) == 0


@laws
@given(seed=seeds, count=st.integers(1, 8), n=st.integers(1, 12))
def test_no_draw_differs_less_from_the_others(seed: int, count: int, n: int) -> None:
    draws = draws_of(seed, count, n, 3)
    losses = [sum(pairs_apart(draw, other, 3) for other in draws) for draw in draws]
    assert least_binder_loss(draws, 3) is draws[losses.index(min(losses))]


@laws
@given(seed=seeds, k=st.integers(1, 6))
def test_clusters_of_other_numbers_are_found_again(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    one = np.concatenate([np.arange(k), rng.integers(0, k, 50)]).astype(np.int16)
    numbers = rng.permutation(k).astype(np.int16)
    order = renumbered(contingency(one, numbers[one], k).astype(np.float64))
    np.testing.assert_array_equal(order, numbers)
