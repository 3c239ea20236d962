"""What randomised labels cost: the consensus at a given epsilon of an object's row, all columns against sampled ones.

Not a time: adjusted Rand index with the planted groups, mean over seeds. Four sites hold 4 columns of 5 labels each;
once every site holds the same objects (columns of its own), once each its own objects (the same columns).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from harness.labels import Codes, by_columns, by_rows, planted
from harness.measurement import Level, Measurement, Subject
from harness.options import Options

import ce
from ce.policy import Policy

SITES, COLUMNS, K, N, WRONG = tuple("abcd"), 4, 5, 1000, 0.15
EPSILONS = (2.0, 4.0, 8.0)
World = tuple[Mapping[str, ce.LabelTable], Codes]


def probability(epsilon: float, k: int = K) -> float:
    """The probability of replacement at which a label of k categories has this epsilon."""
    return k / (k + math.expm1(epsilon))


def shared_objects(seed: int) -> World:
    """Every site holds all objects, and columns of its own."""
    truth, codes = planted(N, COLUMNS * len(SITES), K, wrong=WRONG, seed=seed)
    return by_columns(codes, SITES), truth


def own_objects(seed: int) -> World:
    """Every site holds its own objects, and all hold the same columns."""
    truth, codes = planted(N, COLUMNS, K, wrong=WRONG, seed=seed)
    return by_rows(codes, SITES), truth


def quality(world: World, seed: int, policy: Policy) -> float:
    """ARI of the consensus with the truth; an object without a label counts as one more group."""
    tables, truth = world
    job = ce.Job(clusters=K, seed=seed, sites=tuple(tables))
    found = ce.simulate(job, tables, privacy="plain", policy=policy).sites.values()
    labels = {id_: label for site in found for id_, label in zip(site.ids.tolist(), site.labels.tolist(), strict=True)}
    return ce.metrics.ari([int(truth[int(id_[1:])]) for id_ in labels], list(labels.values()))


@contextmanager
def part(options: Options) -> Iterator[list[Measurement]]:
    seeds = range(options.turns(2, 5))
    policies = {"as they are": Policy.permissive()}
    for epsilon in EPSILONS:
        for sampled in (1, 2, COLUMNS):
            p = probability(epsilon / sampled)
            rules = {"randomise": p, "randomise_columns": sampled % COLUMNS}
            columns = f"{sampled} column{'s' * (sampled > 1)}"
            policies[f"epsilon {epsilon:g}, {columns}, p {p:.3f}"] = Policy(**{**vars(Policy.permissive()), **rules})
    measurements = []
    for name, make in (("objects that all sites hold", shared_objects), ("objects of one site each", own_objects)):
        worlds = [make(seed) for seed in seeds]

        def mean(policy: Policy, worlds: list[World] = worlds) -> float:
            return statistics.fmean(quality(world, seed, policy) for seed, world in zip(seeds, worlds, strict=True))

        measurements.append(
            Measurement(
                name=f"randomised labels, {name}",
                what=f"{len(SITES)} sites, {COLUMNS} columns of {K} labels each, {N:,} objects, {WRONG:.0%} wrong: ARI "
                f"with the planted groups, mean over {len(seeds)} seeds, by epsilon of a row and columns sampled.",
                unit="ARI",
                subjects=tuple(Subject(label, partial(mean, policy)) for label, policy in policies.items()),
                claims=(Level("ARI as they are", of="as they are"),),
                turns=1,
                warm_up=0,
            )
        )
    yield measurements
