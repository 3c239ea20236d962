"""Random votes and clusterings for the tests of BC3E, and the state of a fit as the formulas of MATH.md take it."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from ce.labels import Column, LabelTable
from ce.models import BC3E
from support import reference

laws = settings(deadline=None, max_examples=4, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


def soft_around(rng: np.random.Generator, codes: np.ndarray, categories: int) -> np.ndarray:
    """Probabilities around hard labels; NaN where the label is missing."""
    p = 0.5 * rng.dirichlet(np.full(categories, 0.5), len(codes)) + 0.5 * np.eye(categories)[np.maximum(codes, 0)]
    p[codes < 0] = np.nan
    return p


def problem(seed: int, k: int, *, largest: int = 16, soft_votes: bool = False, soft_labels: bool = False) -> LabelTable:
    """Noisy clusterings and noisy votes of a planted partition into k classes.

    Votes and labels have gaps; some objects have votes only, some labels only, some nothing at all.
    """
    rng = np.random.default_rng(seed)
    n, m, voters = int(rng.integers(4, largest)), int(rng.integers(1, 6)), int(rng.integers(1, 5))
    truth = rng.integers(0, k, n)
    fate = rng.random(n)  # below 0.15 votes only, above 0.85 labels only, around 0.5 nothing
    fate[:2] = 0.3
    columns = []
    for j in range(m):
        categories = int(rng.integers(2, 5))
        codes = rng.integers(0, categories, k)[truth]
        codes = np.where(rng.random(n) < 0.3, rng.integers(0, categories, n), codes)
        codes[(rng.random(n) < rng.uniform(0.0, 0.5)) | (fate < 0.15) | (np.abs(fate - 0.5) < 0.03)] = -1
        if j == 0:
            codes[0] = max(codes[0], 0)
        name, names = f"{'zyxwv'[j]}{j}", tuple("pqrs"[:categories])
        if soft_labels and rng.random() < 0.5:
            columns.append(Column(name, "clustering", names, None, soft_around(rng, codes, categories)))
        else:
            columns.append(Column(name, "clustering", names, codes.astype(np.int32), None))
    for j in range(voters):
        codes = np.where(rng.random(n) < 0.3, rng.integers(0, k, n), truth)
        codes[(rng.random(n) < rng.uniform(0.0, 0.4)) | (fate > 0.85) | (np.abs(fate - 0.5) < 0.03)] = -1
        if j == 0:
            codes[0] = max(codes[0], 0)
        names = tuple(range(k))
        if soft_votes:
            columns.append(Column(f"vote{j}", "classifier", names, None, soft_around(rng, codes, k)))
        else:
            columns.append(Column(f"vote{j}", "classifier", names, codes.astype(np.int32), None))
    return LabelTable(np.array([f"o{i}" for i in range(n)]), tuple(columns))


def arrays(n: int = 60, k: int = 3, seed: int = 0, follow: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True classes, clusterings that follow them (or not), and votes that are right three times in four."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.arange(n) % k)
    source = truth if follow else rng.integers(0, k, n)
    clusterings = [np.where(rng.random(n) < 0.05, rng.integers(0, k, n), rng.permutation(k)[source]) for _ in range(5)]
    if not follow:
        clusterings = [rng.integers(0, k, n) for _ in range(5)]
    votes = [np.where(rng.random(n) < 0.25, rng.integers(0, k, n), truth) for _ in range(3)]
    return truth, np.stack(clusterings, axis=1), np.stack(votes, axis=1)


def state_of(model: BC3E, data: reference.BC3EData) -> reference.BC3EState:
    q = {name: array[data.rows] for name, array in model.posterior_.items()}
    return reference.BC3EState(
        q["mu"],
        q["eps"],
        q["s"],
        q["d"],
        q["r"],
        model.mu_,
        model.sigma2_,
        model.delta2_,
        [b.copy() for b in model.beta_],
    )


def start_of(start: str, table: LabelTable, k: int, seed: int) -> Any:
    if start != "given":
        return start
    rng = np.random.default_rng(seed)
    mu = rng.normal(0.0, 1.5, (table.n_objects, k))
    return {"mu": mu, "eps": mu + rng.normal(0.0, 0.5, mu.shape)}
