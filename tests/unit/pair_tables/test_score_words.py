"""Scores as whole numbers: within twenty bits, and the same winner as the numbers they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pair_ensembles import layout_of, planted

from ce.errors import InputError
from ce.pair_tables import cell_words, fit_pairs, log_scores, pair_tables, score_unit, weight_words


@settings(deadline=None, derandomize=True)
@given(labels=st.integers(1, 100_000))
def test_no_score_passes_twenty_bits(labels: int) -> None:
    unit = score_unit(labels)
    least = np.array([[0.0]])
    largest = -labels * int(cell_words(least, unit)[0, 0]) - int(weight_words(least[0], unit)[0])
    assert largest % 32 == 0
    assert 0 < largest // 32 <= 2**20


def test_words_are_logarithms_in_units() -> None:
    assert score_unit(20) == 4890
    beta = np.array([[1.0, 0.5], [1e-9, 1e-4]])
    assert cell_words(beta, 100).tolist() == [[0, 32 * -69], [32 * -921, 32 * -921]]
    assert weight_words(np.array([1.0, 0.0, 0.25]), 100).tolist() == [0, 32 * -3000, 32 * -139]
    assert cell_words(beta, 100).dtype == weight_words(beta[0], 100).dtype == np.int64


def test_words_and_numbers_have_the_same_winner() -> None:
    codes, _ = planted(500, 10, 5, 0.4, seed=4, missing=0.2)
    layout = layout_of(codes)
    fit = fit_pairs(pair_tables(codes, layout), layout, 5)
    unit = score_unit(layout.n_columns)
    words = np.tile(weight_words(fit.weights, unit), (500, 1))
    for j, at in enumerate(layout.offsets):
        seen = codes[:, j] >= 0
        words[seen] += cell_words(fit.beta, unit)[at + codes[seen, j]]
    scores = log_scores(codes, layout, fit.weights, fit.beta)
    best_two = np.sort(scores, axis=1)[:, -2:]
    clear = best_two[:, 1] - best_two[:, 0] > 11 / unit  # half a unit for each label, and for the weight
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(words.argmax(axis=1)[clear], scores.argmax(axis=1)[clear])


def test_too_many_labels_are_refused() -> None:
    with pytest.raises(InputError, match="at least one label"):
        score_unit(0)
    with pytest.raises(InputError, match="do not fit into 20 bits"):
        score_unit(200_000)
