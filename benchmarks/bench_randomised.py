"""What randomised labels cost: the consensus at a given epsilon of an object's row, all columns against sampled ones.

Run by `make bench`. Adjusted Rand index with the planted groups, mean over seeds. Four sites hold 4 columns of 5 labels
each; once every site holds the same objects (columns of its own), once each its own objects (the same columns).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

import numpy as np

import ce
from ce.labels import LabelTable
from ce.metrics import ari
from ce.policy import Policy

SITES, COLUMNS, K, N, WRONG = 4, 4, 5, 1000, 0.15
SEEDS = range(5)
EPSILONS = (2.0, 4.0, 8.0)


def probability(epsilon: float, k: int = K) -> float:
    """The probability of replacement at which a label of k categories has this epsilon."""
    return k / (k + math.expm1(epsilon))


def noisy_copies(truth: np.ndarray, columns: int, rng: np.random.Generator) -> np.ndarray:
    codes = np.stack([rng.permutation(K)[truth] for _ in range(columns)], axis=1)
    wrong = rng.random(codes.shape) < WRONG
    codes[wrong] = rng.integers(0, K, wrong.sum())
    return codes


def shared_objects(seed: int) -> tuple[dict[str, LabelTable], dict[str, int]]:
    """Every site holds all objects, and columns of its own."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, K, N)
    ids = [f"o{i}" for i in range(N)]
    tables = {
        f"s{s}": LabelTable.from_arrays(
            noisy_copies(truth, COLUMNS, rng), ids=ids, columns=[f"s{s}c{j}" for j in range(COLUMNS)]
        )
        for s in range(SITES)
    }
    return tables, dict(zip(ids, truth.tolist(), strict=True))


def own_objects(seed: int) -> tuple[dict[str, LabelTable], dict[str, int]]:
    """Every site holds its own objects, and all hold the same columns."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, K, N)
    codes, ids = noisy_copies(truth, COLUMNS, rng), np.array([f"o{i}" for i in range(N)])
    names = [f"c{j}" for j in range(COLUMNS)]
    parts = np.array_split(np.arange(N), SITES)
    tables = {
        f"s{s}": LabelTable.from_arrays(codes[part], ids=ids[part], columns=names) for s, part in enumerate(parts)
    }
    return tables, dict(zip(ids.tolist(), truth.tolist(), strict=True))


def quality(tables: Mapping[str, LabelTable], truth: Mapping[str, int], seed: int, policy: Policy) -> float:
    """ARI of the consensus with the truth; an object without a label counts as one more group."""
    job = ce.Job(clusters=K, seed=seed, sites=tuple(tables))
    found = ce.simulate(job, tables, privacy="plain", policy=policy).sites.values()
    labels = {id_: label for site in found for id_, label in zip(site.ids.tolist(), site.labels.tolist(), strict=True)}
    return ari([truth[id_] for id_ in labels], list(labels.values()))


def main() -> None:
    print(f"{SITES} sites, {COLUMNS} columns of {K} labels each, {N} objects; ARI with the planted groups")
    for name, make in (("objects that all sites hold", shared_objects), ("objects of one site each", own_objects)):
        worlds = [make(seed) for seed in SEEDS]

        def mean(policy: Policy, worlds: list[tuple[dict[str, LabelTable], dict[str, int]]] = worlds) -> float:
            return float(np.mean([quality(*world, seed, policy) for seed, world in zip(SEEDS, worlds, strict=True)]))

        print(f"{name}: as they are {mean(Policy.permissive()):.3f}")
        for epsilon in EPSILONS:
            line = f"  epsilon of a row {epsilon:g}:"
            for sampled in (1, 2, COLUMNS):
                p = probability(epsilon / sampled)
                rules = {"randomise": p, "randomise_columns": sampled % COLUMNS}
                policy = Policy(**{**vars(Policy.permissive()), **rules})
                line += f"  {sampled} column{'s' * (sampled > 1)} (p {p:.3f}) {mean(policy):.3f}"
            print(line)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
