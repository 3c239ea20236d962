"""Make the example labels: `python examples/make_examples.py` writes them next to this file, always the same.

Four organisations know customers that fall into five groups. 400 customers are known to all four; each organisation
has 150 more of its own. Each ran three clusterings of its own over all its customers, and the three clusterings of an
industry model over its own 150 (their names are shared, so they are one column over all sites). A clustering gives a
customer the label of its group, under the clustering's own numbering, except for one customer in four, who gets a
random label; about one cell in ten is missing. truth.csv has the groups: for scoring only, no site needs it.

votes/ is the same for BC3E: three classes, and each organisation adds a classifier (probabilities) to its clusterings.

Every total that the sites form has four contributors with 150 objects or more; a shared customer has at least six
cluster labels and three votes at other sites: enough for the default privacy rules.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SITES = ("north", "east", "south", "west")
GROUPS = 5
CLASSES = ("low", "middle", "high")
SHARED = 400
OWN = 150
WRONG = 0.25
MISSING = 0.10

Codes = NDArray[np.int64]


def clusterings(truth: Codes, groups: int, rng: np.random.Generator) -> list[Codes]:
    """Three noisy base clusterings with some more labels than groups; -1 is missing, in one of them at most."""
    missing = np.where(rng.random(len(truth)) < 3 * MISSING, rng.integers(0, 3, len(truth)), -1)
    made = []
    for j in range(3):
        n_labels = int(rng.integers(groups, groups + 4))
        labels = rng.permutation(n_labels)[:groups][truth]
        wrong = rng.random(len(truth)) < WRONG
        labels[wrong] = rng.integers(0, n_labels, wrong.sum())
        labels[missing == j] = -1
        made.append(labels)
    return made


def customers(rng: np.random.Generator) -> tuple[list[str], dict[str, Codes]]:
    """All ids, and which of them each site knows."""
    total = SHARED + OWN * len(SITES)
    ids = [f"K{number}" for number in rng.choice(np.arange(10000, 99999), total, replace=False)]
    known = {}
    for s, site in enumerate(SITES):
        own = np.arange(SHARED + s * OWN, SHARED + (s + 1) * OWN)
        known[site] = rng.permutation(np.concatenate([np.arange(SHARED), own]))
    return ids, known


def write(path: Path, header: list[str], rows: list[list[str]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def text(labels: Codes) -> list[str]:
    return ["" if label < 0 else str(label) for label in labels]


def make_clusterings(folder: Path) -> None:
    rng = np.random.default_rng(20)
    ids, known = customers(rng)
    truth = rng.integers(0, GROUPS, len(ids))
    industry = clusterings(truth, GROUPS, rng)
    for site in SITES:
        objects = known[site]
        columns = {f"{site}_{j + 1}": text(c) for j, c in enumerate(clusterings(truth[objects], GROUPS, rng))}
        for j, labels in enumerate(industry):
            columns[f"industry_{j + 1}"] = text(np.where(objects < SHARED, -1, labels[objects]))
        rows = [[ids[i], *(column[r] for column in columns.values())] for r, i in enumerate(objects)]
        write(folder / f"{site}.csv", ["id", *columns], rows)
    write(folder / "truth.csv", ["id", "group"], [[own, str(group)] for own, group in zip(ids, truth, strict=True)])


def make_votes(folder: Path) -> None:
    rng = np.random.default_rng(21)
    ids, known = customers(rng)
    k = len(CLASSES)
    truth = rng.integers(0, k, len(ids))
    for site in SITES:
        objects = known[site]
        columns = {f"{site}_{j + 1}": text(c) for j, c in enumerate(clusterings(truth[objects], k, rng))}
        # A weak classifier: the true class has the largest probability for about two customers in three.
        logits = rng.normal(size=(len(objects), k)) + 1.2 * np.eye(k)[truth[objects]]
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        silent = (rng.random(len(objects)) < MISSING) & (objects >= SHARED)
        for c, name in enumerate(CLASSES):
            votes = [f"{p:.4f}" for p in probabilities[:, c]]
            columns[f"clf:{site}={name}"] = ["" if s else v for s, v in zip(silent, votes, strict=True)]
        rows = [[ids[i], *(column[r] for column in columns.values())] for r, i in enumerate(objects)]
        write(folder / f"{site}.csv", ["id", *columns], rows)
    named = [[own, CLASSES[c]] for own, c in zip(ids, truth, strict=True)]
    write(folder / "truth.csv", ["id", "class"], named)


def main(folder: Path = Path(__file__).parent) -> None:
    make_clusterings(folder)
    make_votes(folder / "votes")


if __name__ == "__main__":
    main()
