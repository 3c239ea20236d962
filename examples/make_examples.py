"""Make the example labels: `python examples/make_examples.py` writes them next to this file, always the same.

Four organisations know 3,000 customers that fall into five groups. 1,200 customers are known to all four; each
organisation has 450 more of its own. Each ran four clusterings of its own over all its customers, and the clustering of
an industry model over its own 450 (its name is shared, so it is one column over all sites). A clustering has five or
six labels. It gives a customer the label of its group, under the clustering's own numbering, except for one customer in
five, who gets a random label; about one cell in ten is missing. truth.csv has the groups: for scoring only, no site
needs it.

votes/ is the same for BC3E: three classes, and each organisation adds a classifier (probabilities) to its clusterings.

The default privacy rules hold: every total that the sites form has four contributors with 350 objects or more; a shared
customer has at least nine cluster labels and three votes at other sites. In a sealed job the noise of the default
epsilon, 2, hardly changes the result: 3,000 customers are enough for tables of 36 cells. The shared column makes that
harder, not easier: noise grows with the number of sites that could hold a label of the same cell.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SITES = ("north", "east", "south", "west")
GROUPS = 5
CLASSES = ("low", "middle", "high")
SHARED = 1200
OWN = 450
CLUSTERINGS = 4
WRONG = 0.20
MISSING = 0.10

Codes = NDArray[np.int64]


def clusterings(truth: Codes, groups: int, count: int, rng: np.random.Generator) -> list[Codes]:
    """Noisy base clusterings with as many labels as groups, or one more; -1 is missing, in one of them at most."""
    missing = np.where(rng.random(len(truth)) < count * MISSING, rng.integers(0, count, len(truth)), -1)
    made = []
    for j in range(count):
        n_labels = int(rng.integers(groups, groups + 2))
        labels = rng.permutation(n_labels)[:groups][truth]
        wrong = rng.random(len(truth)) < WRONG
        labels[wrong] = rng.integers(0, n_labels, wrong.sum())
        labels[missing == j] = -1
        made.append(labels)
    return made


def customers(rng: np.random.Generator, shared: int, own: int) -> tuple[list[str], dict[str, Codes]]:
    """All ids, and which of them each site knows: the first `shared` ones all, then `own` more."""
    total = shared + own * len(SITES)
    ids = [f"K{number}" for number in rng.choice(np.arange(10000, 99999), total, replace=False)]
    known = {}
    for s, site in enumerate(SITES):
        alone = np.arange(shared + s * own, shared + (s + 1) * own)
        known[site] = rng.permutation(np.concatenate([np.arange(shared), alone]))
    return ids, known


def write(path: Path, header: list[str], rows: list[list[str]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def text(labels: Codes) -> list[str]:
    return ["" if label < 0 else str(label) for label in labels]


def make_clusterings(folder: Path, shared: int = SHARED, own: int = OWN) -> None:
    rng = np.random.default_rng(22)
    ids, known = customers(rng, shared, own)
    truth = rng.integers(0, GROUPS, len(ids))
    (industry,) = clusterings(truth, GROUPS, 1, rng)
    for site in SITES:
        objects = known[site]
        made = clusterings(truth[objects], GROUPS, CLUSTERINGS, rng)
        columns = {f"{site}_{j + 1}": text(labels) for j, labels in enumerate(made)}
        columns["industry"] = text(np.where(objects < shared, -1, industry[objects]))
        rows = [[ids[i], *(column[r] for column in columns.values())] for r, i in enumerate(objects)]
        write(folder / f"{site}.csv", ["id", *columns], rows)
    write(folder / "truth.csv", ["id", "group"], [[name, str(group)] for name, group in zip(ids, truth, strict=True)])


def make_votes(folder: Path) -> None:
    rng = np.random.default_rng(21)
    ids, known = customers(rng, SHARED, OWN)
    k = len(CLASSES)
    truth = rng.integers(0, k, len(ids))
    for site in SITES:
        objects = known[site]
        made = clusterings(truth[objects], k, CLUSTERINGS, rng)
        columns = {f"{site}_{j + 1}": text(labels) for j, labels in enumerate(made)}
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
