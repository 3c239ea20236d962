"""Labels to audit when there are none at hand: always the same, and like those of the examples folder.

Four organisations know customers that fall into four groups. 240 customers are known to all four; each has 60 more of
its own. Each ran three clusterings of its own over all its customers, and two clusterings of an industry model, which
all share, over its own 60. A clustering gives a customer the label of its group, under a numbering of its own, except
for one customer in four, who gets a random label; one cell in twenty is missing.
"""

from __future__ import annotations

import numpy as np

from ce.audit.partitions import Groups
from ce.job import Job
from ce.labels import LabelTable

SITES = ("east", "north", "south", "west")
GROUPS = 4
SHARED, OWN = 240, 60
WRONG, MISSING = 0.25, 0.05


def example_tables(seed: int = 20) -> dict[str, LabelTable]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, GROUPS, SHARED + OWN * len(SITES))
    ids = np.array([f"K{number}" for number in rng.choice(np.arange(10000, 99999), len(truth), replace=False)])
    industry = [_clustering(truth, rng) for _ in range(2)]
    tables = {}
    for s, site in enumerate(SITES):
        own = np.arange(SHARED + s * OWN, SHARED + (s + 1) * OWN)
        objects = rng.permutation(np.concatenate([np.arange(SHARED), own]))
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
