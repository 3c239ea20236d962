"""How many clusters stand out of the residuals of pair tables."""

from __future__ import annotations

import numpy as np
import pytest
from support.pair_ensembles import Codes, chain, layout_of, planted

from ce.pair_tables import Residuals, clusters_above_edge, pair_tables


def counted(codes: Codes) -> int:
    layout = layout_of(codes)
    return clusters_above_edge(Residuals.of(pair_tables(codes, layout), layout))


def independent(seed: int) -> Codes:
    """Columns that have nothing to do with each other, of 2 to 11 categories of any sizes."""
    rng = np.random.default_rng(seed)
    n = int(rng.choice([300, 1_000, 3_000]))
    sizes = rng.integers(2, 12, int(rng.integers(5, 25)))
    codes = np.stack([rng.choice(k, n, p=rng.dirichlet(np.full(k, 3.0))) for k in sizes], axis=1)
    codes[rng.random(codes.shape) < rng.choice([0.0, 0.3])] = -1
    return codes


def test_clusters_are_counted() -> None:
    assert [counted(independent(seed)) for seed in range(4)] == [1] * 4
    assert [counted(planted(1_000, 12, k, 0.4, seed=k)[0]) for k in (2, 4, 7)] == [2, 4, 7]


@pytest.mark.parametrize("windows", [3, 5])
def test_columns_that_are_never_seen_together_repeat_no_cluster(windows: int) -> None:
    codes, _ = chain(2_000, 5, 0.2, seed=windows, windows=windows)
    layout = layout_of(codes)
    residuals = Residuals.of(pair_tables(codes, layout), layout)
    assert (residuals.eigenvalues > residuals.edge).sum() > 4  # what a count over all columns would say
    assert clusters_above_edge(residuals) == 5


@pytest.mark.slow
def test_independent_columns_are_one_cluster() -> None:
    found = [counted(independent(seed)) for seed in range(1_000, 1_200)]
    assert sum(k == 1 for k in found) >= 0.95 * len(found), found


@pytest.mark.slow
@pytest.mark.parametrize("k", [3, 5, 7, 10])
def test_planted_clusters_are_counted(k: int) -> None:
    for wrong in (0.2, 0.4, 0.5):
        for missing in (0.0, 0.3):
            found = [
                counted(planted(2_000, 20, k, wrong, seed, missing=missing, uneven=seed % 2 == 1)[0])
                for seed in range(10)
            ]
            assert found == [k] * 10, (wrong, missing)


@pytest.mark.slow
@pytest.mark.parametrize("k", [3, 5, 7, 10])
def test_planted_clusters_of_chains_are_counted(k: int) -> None:
    assert [
        counted(chain(3_000, k, 0.2, seed, windows=windows)[0]) for seed in range(3) for windows in (2, 3, 4, 6)
    ] == [k] * 12
