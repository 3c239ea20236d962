"""Labels to audit where no label files are given: always the same ones, similar to those of the examples folder.

Four organisations have customers that fall into four groups. 240 customers are known to all four, and each organisation
has 60 more that no other knows. Each made three clusterings of all its customers. Two clusterings of an industry model,
which all organisations have, cover only the 60 customers that an organisation has alone. A clustering gives a customer
the label of its group, numbered in its own way; one customer in four gets a random label, and one label in twenty is
missing.
"""

from __future__ import annotations

import numpy as np

from ce.audit.partitions import Groups
from ce.job import Job
from ce.labels import LabelTable

SITES = ("east", "north", "south", "west")
GROUPS = 4
SHARED, PRIVATE = 240, 60
WRONG, MISSING = 0.25, 0.05


def example_tables(seed: int = 20) -> dict[str, LabelTable]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, GROUPS, SHARED + PRIVATE * len(SITES))
    ids = np.array([f"K{number}" for number in rng.choice(np.arange(10000, 99999), len(truth), replace=False)])
    industry = [_clustering(truth, rng) for _ in range(2)]
    tables = {}
    for s, site in enumerate(SITES):
        private = np.arange(SHARED + s * PRIVATE, SHARED + (s + 1) * PRIVATE)
        objects = rng.permutation(np.concatenate([np.arange(SHARED), private]))
        columns = {f"{site}_{j + 1}": _clustering(truth[objects], rng) for j in range(3)}
        for j, labels in enumerate(industry):
            columns[f"industry_{j + 1}"] = np.where(objects < SHARED, -1, labels[objects])
        labels = np.stack(list(columns.values()), axis=1)
        tables[site] = LabelTable.from_arrays(labels, ids=ids[objects], columns=list(columns))
    return tables


def example_job(**keys: object) -> Job:
    return Job(**{"name": "example", "clusters": GROUPS, "sites": SITES, **keys})  # type: ignore[arg-type]


def _clustering(truth: Groups, rng: np.random.Generator) -> Groups:
    labels = int(rng.integers(GROUPS, GROUPS + 3))
    codes: Groups = rng.permutation(labels)[:GROUPS][truth].astype(np.intp)
    wrong = rng.random(len(truth)) < WRONG
    codes[wrong] = rng.integers(0, labels, wrong.sum())
    codes[rng.random(len(truth)) < MISSING] = -1
    return codes
