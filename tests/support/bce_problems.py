"""Random label tables and ensembles for the tests of BCE, and the bound of a fit by the formulas of MATH.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from ce.labels import Column, LabelTable
from ce.models import BCE
from ce.ring import Reals
from ce.steps import dirichlet
from support import reference

laws = settings(deadline=None, max_examples=6, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


def one_soft(rng: np.random.Generator, codes: np.ndarray, categories: int) -> np.ndarray:
    """Probabilities around hard labels; NaN where the label is missing."""
    soft = rng.dirichlet(np.full(categories, 0.4), len(codes))
    soft = 0.5 * soft + 0.5 * np.eye(categories)[np.maximum(codes, 0)]
    soft[codes < 0] = np.nan
    return soft


def problem(
    seed: int, *, soft: bool = False, largest: int = 30, missing: float | None = None, unused: bool = True
) -> LabelTable:
    """A planted partition seen through 1 to 8 noisy columns, with 0 to 60 % of the labels missing.

    Column names are not in alphabetical order, some rows are equal, some categories are never used.
    """
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(2, largest)), int(rng.integers(1, 9))
    truth = rng.integers(0, int(rng.integers(2, 5)), n)
    noise, gaps = rng.uniform(0.0, 0.8), rng.uniform(0.0, 0.6) if missing is None else missing
    columns = []
    for j in range(m):
        categories = int(rng.integers(2, 6))
        codes = rng.integers(0, categories, 5)[truth]
        codes = np.where(rng.random(n) < noise, rng.integers(0, categories, n), codes)
        codes = np.where(rng.random(n) < gaps, -1, codes).astype(np.int32)
        if j == 0:
            codes[0] = max(codes[0], 0)
        if not unused:
            present = np.unique(codes[codes >= 0])
            codes = np.where(codes >= 0, np.searchsorted(present, codes), -1).astype(np.int32)
            categories = max(len(present), 1)
        names = tuple(range(10, 10 + categories)) if j % 2 else tuple("uvwxyz"[:categories])
        name = f"{'zyxwvuts'[j]}{j}"
        if soft and rng.random() < 0.6:
            columns.append(Column(name, "clustering", names, None, one_soft(rng, codes, categories)))
        else:
            columns.append(Column(name, "clustering", names, codes, None))
    return LabelTable(np.array([f"o{i}" for i in range(n)]), tuple(columns))


def clear_ensemble(n: int = 60, m: int = 6, k: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A partition and m nearly perfect copies of it, each with its own names."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.arange(n) % k)
    columns = []
    for _ in range(m):
        copied = rng.permutation(k)[truth]
        wrong = rng.random(n) < 0.05
        columns.append(np.where(wrong, rng.integers(0, k, n), copied))
    return truth, np.stack(columns, axis=1)


def drawn_tables(rng: np.random.Generator, table: LabelTable, k: int) -> list[np.ndarray]:
    return [rng.dirichlet(np.ones(len(column.categories)), k) for column in table.clusterings]


def bound_of_fit(model: BCE, table: LabelTable) -> float:
    cells = reference.cells_of(table)
    phi = reference.bce_phi(cells, model.gamma_, model.beta_)
    return reference.bce_bound(cells, phi, model.gamma_, model.alpha_, model.beta_, model.smoothing)


def start_of(init: str, table: LabelTable, k: int, seed: int) -> Any:
    if not init.startswith("given"):
        return init
    rng = np.random.default_rng(seed)
    start: dict[str, Any] = {"beta": drawn_tables(rng, table, k), "alpha": rng.uniform(0.02, 5.0, k)}
    if "gamma" in init:
        start["gamma"] = rng.uniform(0.1, 5.0, (table.n_objects, k))
    return start


def absurd_trials(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    original = dirichlet.joint_step

    def joint_step(alpha: Reals, *sums: Reals) -> tuple[Reals, Reals]:
        _, fallback = original(alpha, *sums)
        return np.full_like(fallback, value), fallback

    monkeypatch.setattr(dirichlet, "joint_step", joint_step)


def quick(k: int, seed: int, **extra: Any) -> BCE:
    return BCE(k, **{"n_init": 3, "anneal_iter": 5, "max_iter": 25, "random_state": seed, **extra})
