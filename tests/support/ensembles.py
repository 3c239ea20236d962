"""Ensembles of clusterings to attack, and ways to split them between sites."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, load_wine
from sklearn.preprocessing import StandardScaler

from ce import LabelTable

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


def partly_shared(labels: Labels, common: Labels, sites: int, shared: int) -> Tables:
    """The first `shared` objects are held by all sites, the others by one site each. Each site has some of the columns
    of `labels` for all its objects; the columns of `common` are those of all sites, for objects held alone."""
    n = len(labels)
    owner = np.where(np.arange(n) < shared, -1, np.arange(n) % sites)
    tables = {}
    for s in range(sites):
        held = (owner == -1) | (owner == s)
        alone = np.where((owner == s)[:, None], common, -1)
        names = [*(f"site{s}_{j}" for j in range(labels[:, s::sites].shape[1])), "common_1", "common_2"]
        columns = np.hstack([labels[:, s::sites], alone])[held]
        tables[f"site{s}"] = LabelTable.from_arrays(columns, ids=np.asarray(ids(n))[held], columns=names)
    return tables
