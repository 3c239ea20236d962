"""A site scores with the model that the pair tables give, and with no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
from support.pair_ensembles import chain, layout_of, planted, with_noise

from ce.pair_tables import (
    SEALED_TOLERANCE,
    PairFit,
    TableLayout,
    check_fit,
    fit_pairs,
    pair_tables,
)
from ce.pair_tables.fit import Objective
from ce.pair_tables.layout import Reals

K, SEED = 4, 11


class Opened:
    """The opened tables of a job, and the coordinator's fit of them."""

    def __init__(self, sd: float, asked: Any = K, seed: int = 0) -> None:
        self.codes, _ = planted(600, 8, K, 0.3, seed)
        self.layout: TableLayout = layout_of(self.codes)
        exact = pair_tables(self.codes, self.layout)
        self.sd, self.asked = sd, asked
        self.tables = with_noise(exact, self.layout, sd, seed) if sd else exact
        self.fit: PairFit = fit_pairs(self.tables, self.layout, asked, sd=sd, seed=SEED, tolerance=SEALED_TOLERANCE)

    def check(self, weights: Any = None, beta: Any = None, asked: Any = None) -> str | None:
        return check_fit(
            self.tables,
            self.layout,
            self.sd,
            SEED,
            self.fit.weights if weights is None else weights,
            self.fit.beta if beta is None else beta,
            self.asked if asked is None else asked,
        )

    def winner_of_column(self, column: int, others: float) -> np.ndarray:
        """beta with which the winner of an object is its label in one column; `others`: the part of the honest beta
        that the other columns keep."""
        beta = self.layout.normalised(np.full_like(self.fit.beta, 1.0))
        beta = others * self.fit.beta + (1.0 - others) * beta
        beta[self.layout.column_of == column] = 0.01 + 0.96 * np.eye(K)
        return self.layout.normalised(beta)


@pytest.mark.parametrize("asked", [K, "auto"])
@pytest.mark.parametrize("sd", [0.0, 15.0])
def test_the_fit_of_the_tables_is_accepted(sd: float, asked: Any) -> None:
    opened = Opened(sd, asked)
    assert opened.check() is None
    assert opened.fit.n_clusters == K


@pytest.mark.promise("A site of a sealed job scores only with the model that the opened tables give.")
@pytest.mark.parametrize("sd", [0.0, 15.0])
def test_crafted_models_are_refused(sd: float) -> None:
    opened = Opened(sd)
    for others in (0.0, 0.5, 0.9, 1.0):
        assert opened.check(beta=opened.winner_of_column(2, others)) is not None
    one_cell = opened.fit.beta.copy()
    one_cell[0] += 0.05
    assert opened.check(beta=opened.layout.normalised(one_cell)) is not None
    for weights in (np.array([0.3, 0.2, 0.25, 0.25]), np.array([0.97, 0.01, 0.01, 0.01])):
        assert opened.check(weights=weights) is not None
    assert opened.check(weights=opened.fit.weights[::-1].copy()) is not None
    other = Opened(sd, seed=5)
    assert opened.check(other.fit.weights, other.fit.beta) is not None


def test_a_model_whose_first_steps_are_missing_is_refused() -> None:
    opened = Opened(0.0)
    early = fit_pairs(opened.tables, opened.layout, K, seed=SEED, max_iterations=2)
    assert opened.check(early.weights, early.beta) is not None


def test_another_number_of_clusters_is_refused() -> None:
    opened = Opened(0.0)
    three = fit_pairs(opened.tables, opened.layout, 3, seed=SEED, tolerance=SEALED_TOLERANCE)
    assert opened.check(three.weights, three.beta) == "the model has not the number of clusters that the job asks for"
    assert (
        opened.check(three.weights, three.beta, "auto")
        == "the model has another number of clusters than the pair tables give"
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda fit: (fit.weights, fit.beta[:-1]), "shape"),
        (lambda fit: (fit.weights[:, None], fit.beta), "number of clusters"),
        (lambda fit: (fit.weights, fit.beta * np.nan), "finite"),
        (lambda fit: (fit.weights * np.inf, fit.beta), "finite"),
        (lambda fit: (fit.weights, -fit.beta), "positive"),
        (lambda fit: (fit.weights - [0.9, -0.9, 0, 0], fit.beta), "positive"),
        (lambda fit: (fit.weights, fit.beta * 1.001), "sum to 1"),
        (lambda fit: (fit.weights * 0.99, fit.beta), "sum to 1"),
        (lambda fit: (fit.weights.astype(np.float32), fit.beta), "64-bit"),
        (lambda fit: (fit.weights, fit.beta.tolist()), "64-bit"),
    ],
)
def test_arrays_that_are_no_model_are_refused(change: Any, problem: str) -> None:
    opened = Opened(0.0)
    sentence = opened.check(*change(opened.fit))
    assert sentence is not None
    assert problem in sentence
    assert not any(sign.isdigit() for sign in sentence.replace("64-bit", "").replace("sum to 1", ""))


def elsewhere(patch: pytest.MonkeyPatch, number: int) -> None:
    """Another machine: products and eigenvectors are rounded otherwise, and eigenvectors have other signs. The tables
    are the same, for they are whole numbers."""
    rng = np.random.default_rng(number)
    step, eigh = Objective.step, scipy.linalg.eigh

    def other_step(self: Objective, weights: Reals, beta: Reals) -> tuple[float, Reals, Reals]:
        value, weights, beta = step(self, weights, beta)
        weights = weights * (1.0 + rng.uniform(-1e-15, 1e-15, weights.shape))
        beta = beta * (1.0 + rng.uniform(-1e-15, 1e-15, beta.shape))
        return value * (1.0 + rng.uniform(-1e-15, 1e-15)), weights, beta

    def other_eigh(matrix: Reals, **keys: Any) -> tuple[Reals, Reals]:
        values, vectors = eigh(matrix, **keys)
        largest = np.abs(values).max()
        vectors = vectors * rng.choice([-1.0, 1.0], len(values)) + rng.uniform(-1e-14, 1e-14, vectors.shape)
        return values + largest * rng.uniform(-1e-14, 1e-14, len(values)), vectors

    patch.setattr(Objective, "step", other_step)
    patch.setattr(scipy.linalg, "eigh", other_eigh)


def refused_elsewhere(numbers: range) -> list[tuple[Any, ...]]:
    """Jobs, also such that ask for more clusters than there are, whose honest model another machine refuses."""
    refused = []
    for number in numbers:
        rng = np.random.default_rng(number)
        k = 2 + number % 30
        n, m = int(rng.choice([300, 1_000, 3_000])), int(rng.integers(5, 16))
        real = int(rng.integers(2, min(k, 12) + 1))
        if number % 5 == 0:
            codes, _ = chain(n, min(real, 8), 0.2, number, windows=3)
        else:
            codes, _ = planted(n, m, real, rng.uniform(0.1, 0.6), number, missing=float(rng.choice([0, 0.3])))
        layout = layout_of(codes)
        tables = pair_tables(codes, layout)
        sd = float(rng.choice([0.0, 5.0, 30.0]))
        tables = with_noise(tables, layout, sd, number) if sd else tables
        fit = fit_pairs(tables, layout, k, sd=sd, seed=number, tolerance=SEALED_TOLERANCE)
        with pytest.MonkeyPatch.context() as patch:
            elsewhere(patch, number)
            problem = check_fit(tables, layout, sd, number, fit.weights, fit.beta, k)
        if problem is not None:
            refused.append((number, k, real, sd, problem))
    return refused


def test_honest_models_are_accepted_by_other_machines() -> None:
    """A few; `make test-slow` has hundreds."""
    assert not refused_elsewhere(range(1, 5))


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_honest_models_are_accepted_by_other_machines_for_any_number_of_clusters() -> None:
    assert not refused_elsewhere(range(300))
