"""Ensembles to attack, and ways to split them between sites."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, load_wine
from sklearn.preprocessing import StandardScaler

from ce import Job, LabelTable
from ce.audit.adversary_views import CoordinatorView, CuriousSiteView
from ce.audit.recording import Recording, record, secrets_of
from ce.audit.scoring import Truth

Labels = NDArray[np.int64]
Tables = dict[str, LabelTable]


def k_means_ensemble(data: NDArray[np.float64], groups: list[int], seed: int) -> Labels:
    """One k-means per column, each on half of the features."""
    rng = np.random.default_rng(seed)
    columns = []
    for at, k in enumerate(groups):
        features = rng.choice(data.shape[1], max(2, data.shape[1] // 2), replace=False)
        columns.append(KMeans(k, n_init=1, random_state=at).fit_predict(data[:, features]))
    return np.stack(columns, axis=1).astype(np.int64)


def wine(groups: list[int]) -> Labels:
    return k_means_ensemble(StandardScaler().fit_transform(load_wine().data), groups, 1)


def digits(groups: list[int]) -> Labels:
    data = load_digits().data
    return k_means_ensemble(data[np.random.default_rng(0).choice(len(data), 220, replace=False)], groups, 2)


def noisy(seed: int, n: int, columns: int, k: int, labels: int, wrong: float, missing: float = 0.0) -> Labels:
    """Columns that follow k groups, except that they give some objects a random label, and others none."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, k, n)
    found = []
    for _ in range(columns):
        codes = (rng.permutation(max(labels, k))[truth]) % labels
        random = rng.random(n) < wrong
        codes[random] = rng.integers(0, labels, random.sum())
        codes[rng.random(n) < missing] = -1
        found.append(codes)
    return np.stack(found, axis=1)


def ids(n: int) -> list[str]:
    return [f"object {i}" for i in range(n)]


def by_columns(labels: Labels, sites: int) -> Tables:
    """Each site holds some of the columns, and all of the objects."""
    names = [f"c{j}" for j in range(labels.shape[1])]
    return {
        f"site{s}": LabelTable.from_arrays(labels[:, s::sites], ids=ids(len(labels)), columns=names[s::sites])
        for s in range(sites)
    }


def by_rows(labels: Labels, sizes: list[int]) -> Tables:
    """Each site holds some of the objects, and all of the columns; the last site holds the rest."""
    names = [f"c{j}" for j in range(labels.shape[1])]
    ends = [*np.cumsum(sizes), len(labels)]
    tables, begin = {}, 0
    for s, end in enumerate(ends):
        some = np.asarray(ids(len(labels)))[begin:end]
        tables[f"site{s}"] = LabelTable.from_arrays(labels[begin:end], ids=some, columns=names)
        begin = end
    return tables


def by_cells(labels: Labels, sites: int) -> Tables:
    """Every site lists every object and every column; each label is held by one site."""
    owner = np.random.default_rng(0).integers(0, sites, labels.shape)
    names = [f"c{j}" for j in range(labels.shape[1])]
    return {
        f"site{s}": LabelTable.from_arrays(np.where(owner == s, labels, -1), ids=ids(len(labels)), columns=names)
        for s in range(sites)
    }


class Staged:
    """A recorded job, and what attacks on it are given."""

    def __init__(self, tables: Tables, mode: str, **keys: object) -> None:
        self.tables = tables
        self.job = Job(**{"clusters": 3, "max_iterations": 6, **keys})  # type: ignore[arg-type]
        self.secrets = secrets_of(self.job, tables)
        self.recording = self.record(mode)
        self.truth = Truth(self.recording, tables)
        self.questions = self.truth.questions()
        self.view = CoordinatorView.of(self.recording, self.job.seed)

    def record(self, mode: str) -> Recording:
        return record(self.job, self.tables, mode, self.secrets)

    def site(self, name: str, block: int = 0) -> CuriousSiteView:
        plain = self.recording if self.recording.mode == "plain" else self.record("plain")
        return CuriousSiteView.of(self.recording, plain, name, self.tables[name], block)

    def foreign(self, name: str) -> list:  # type: ignore[type-arg]
        return [question for question in self.questions if question.holder != name]

    def scores(self, guesses: dict) -> list[float]:  # type: ignore[type-arg]
        """One per question that was answered."""
        return [self.truth.score(question, guess) for question, guess in guesses.items()]


@pytest.fixture(scope="session", name="staged")
def _staged() -> Callable[..., Staged]:
    """Records a job once for all tests that need the same one."""
    recorded: dict[tuple[object, ...], Staged] = {}

    def stage(tables: Tables, mode: str, **keys: object) -> Staged:
        key = (id(tables), mode, *sorted(keys.items()))
        if key not in recorded:
            recorded[key] = Staged(tables, mode, **keys)
        return recorded[key]

    return stage


@pytest.fixture(scope="session", name="ensembles")
def _ensembles() -> dict[str, Tables]:
    """Name -> the sites' label tables, made once for all tests."""
    single = noisy(1, 300, 5, 3, 3, 0.3)
    return {
        "five single columns": by_columns(single, 5),
        "wine, five single columns": by_columns(wine([3] * 5), 5),
        "three columns each": by_columns(noisy(6, 200, 9, 3, 4, 0.3), 3),
        "two sites": by_columns(noisy(2, 200, 2, 3, 4, 0.3), 2),
        "cells": by_cells(noisy(3, 150, 5, 3, 4, 0.3, 0.1), 3),
        "rows": by_rows(noisy(4, 400, 5, 3, 4, 0.3, 0.1), [100, 100, 100]),
        # Layouts that satisfy the default rules: at least three sites in every total, at least four foreign columns in
        # every block, and more labels than one exchange of five starts has dimensions.
        "wine, four sites": by_columns(wine([3, 4, 5] * 4), 4),
        "digits": by_columns(digits([10] * 8), 4),
        "noisy, four sites": by_columns(noisy(7, 220, 12, 3, 4, 0.25, 0.05), 4),
        "noisy, five sites": by_columns(noisy(8, 220, 10, 4, 6, 0.4), 5),
        "wine in rows, four sites": by_rows(wine([3, 4, 5, 6, 3]), [45, 45, 45]),
        "noisy in rows, five sites": by_rows(noisy(9, 500, 6, 4, 5, 0.3, 0.1), [100] * 4),
        "many objects": by_columns(noisy(10, 1000, 5, 3, 4, 0.3), 5),
        "many objects, twelve columns": by_columns(noisy(1, 1000, 12, 3, 4, 0.25), 4),
        "small rows": by_rows(noisy(5, 303, 8, 3, 5, 0.4), [1, 2, 100, 100]),
    }
