"""Pairs finds what is there: planted ensembles as well as BCE, chains better, and under noise."""

from __future__ import annotations

import numpy as np
import pytest
from support.pair_ensembles import chain, layout_of, planted, sd_of_epsilon_1, with_noise

from ce.metrics import ari
from ce.models import BCE, Mixture, Pairs
from ce.pair_tables import fit_pairs, log_scores, pair_tables


@pytest.mark.promise("Pairs finds planted clusters as well as BCE.")
def test_planted_clusters_are_found() -> None:
    """One ensemble of one condition; `make test-slow` has all."""
    labels, truth = planted(1_000, 20, 7, 0.4, seed=0)
    assert ari(truth, Pairs(7, random_state=0).fit_predict(labels)) >= 0.99


@pytest.mark.promise("Pairs finds planted clusters as well as BCE.")
@pytest.mark.slow
@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("wrong", [0.2, 0.4, 0.5])
def test_planted_clusters_are_found_as_well_as_by_bce(wrong: float, missing: float) -> None:
    pairs, bce = [], []
    for k in (3, 5, 7, 10):
        for uneven in (False, True):
            for seed in range(2):
                labels, truth = planted(1_000, 20, k, wrong, seed, missing=missing, uneven=uneven)
                pairs.append(ari(truth, Pairs(k, random_state=seed).fit_predict(labels)))
                bce.append(ari(truth, BCE(k, random_state=seed).fit_predict(labels)))
    assert np.mean(pairs) >= np.mean(bce) - 0.01, (pairs, bce)


@pytest.mark.slow
@pytest.mark.parametrize("windows", [2, 3, 4, 6])
def test_chains_of_columns_with_nine_labels_an_object_are_followed(windows: int) -> None:
    for seed in range(3):
        for k in (3, 5, 7):
            labels, truth = chain(3_000, k, 0.2, seed, windows=windows)
            assert ari(truth, Pairs(k, random_state=seed).fit_predict(labels)) >= 0.98


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [BCE, Mixture])
def test_a_start_from_pair_tables_is_as_good_as_pairs_in_chains(estimator: type[BCE] | type[Mixture]) -> None:
    for seed in range(3):
        labels, truth = chain(2_000, 7, 0.2, seed, windows=4)
        assert ari(truth, estimator(7, init="pairs", random_state=seed).fit_predict(labels)) >= 0.98


@pytest.mark.slow
def test_twenty_clusters_are_found_where_half_of_the_labels_are_wrong() -> None:
    for seed in range(10):
        labels, truth = planted(3_000, 20, 20, 0.5, seed)
        assert ari(truth, Pairs(20, random_state=seed).fit_predict(labels)) >= 0.99


@pytest.mark.promise("Noise of epsilon 1 leaves the clusters of a thousand objects where they are.")
@pytest.mark.slow
def test_noise_of_epsilon_1_leaves_the_clusters_where_they_are() -> None:
    """Tables of columns that have nothing to do with each other show that the tables, not the scores, find them."""
    found, floor = [], []
    sd = sd_of_epsilon_1()
    for seed in range(20):
        labels, truth = planted(1_000, 20, 7, 0.4, seed)
        layout = layout_of(labels)
        rng = np.random.default_rng(seed)
        shuffled = np.stack([rng.permutation(column) for column in labels.T], axis=1)
        for codes, scores in ((labels, found), (shuffled, floor)):
            tables = with_noise(pair_tables(codes, layout), layout, sd, seed + 1_000)
            fit = fit_pairs(tables, layout, 7, sd=sd, seed=seed)
            scores.append(ari(truth, log_scores(labels, layout, fit.weights, fit.beta).argmax(axis=1)))
    assert np.mean(found) >= 0.97, found
    assert np.mean(floor) <= 0.25, floor
