"""The formulas of `ce.sealed_capacity` against jobs that run: exchanges exactly, bytes to a few percent."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ce
from ce.capacity import LABEL, OBJECT, Size
from ce.errors import ConfigError
from ce.job import Job
from ce.labels import LabelTable
from ce.privacy import argmax_dealer
from ce.privacy.secure_argmax import Member
from ce.protocol.attempt import Attempt
from ce.protocol.engine.aggregator import add_answer
from ce.protocol.local_alignment import align_tables
from ce.protocol.sealed_run import run_sealed, sealed_parties
from ce.protocol.topology.vocabularies import Wishes
from ce.sealed_capacity import (
    SealedShape,
    coordinator_memory,
    exchanges,
    levels,
    rounds_traffic,
    site_memory,
    site_traffic,
    tournament_memory,
)

#: Sites, objects, of these shared, columns, of these shared, categories, clusters.
SIZES = {
    "column": Size(3, 100, 100, 3, 0, 4, 3, model="pairs", privacy="sealed"),
    "row": Size(3, 60, 0, 6, 6, 12, 2, model="pairs", privacy="sealed"),
    "arbitrary": Size(4, 300, 200, 4, 1, 6, 5, model="pairs", privacy="sealed"),
}


def tables_of(size: Size) -> dict[str, LabelTable]:
    rng = np.random.default_rng(3)
    tables = {}
    for at in range(size.sites):
        ids = [f"shared{i}" for i in range(size.shared)] + [f"own{at}-{i}" for i in range(size.private)]
        names = [f"both{j}" for j in range(size.shared_columns)]
        names += [f"own{at}-{j}" for j in range(size.columns - size.shared_columns)]
        cells = rng.integers(0, size.categories, (size.objects, size.columns))
        cells[: size.categories] = np.arange(size.categories)[:, None]  # every category occurs
        tables[f"s{at:06}"] = LabelTable.from_arrays(cells, ids=ids, columns=names)
    return tables


@pytest.mark.parametrize("layout", SIZES)
def test_exchanges_and_bytes_of_all_rounds(layout: str) -> None:
    size = SIZES[layout]
    tables = tables_of(size)
    result = ce.simulate(Job(model="pairs", clusters=size.clusters, sites=tuple(tables)), tables)
    shape = SealedShape.even(size)
    assert result.exchanges == exchanges(shape)
    assert 0.99 < rounds_traffic(shape) / result.bytes_sent < 1.04


def test_sites_that_are_alike_are_as_sites_that_were_aligned() -> None:
    size = SIZES["arbitrary"]
    tables = tables_of(size)
    job = Job(model="pairs", clusters=size.clusters, sites=tuple(tables))
    run = run_sealed(job, tables, job_key=b"k" * 32)
    assert SealedShape.of(run.coordinator.terms, run.topology.blocks, size.clusters) == SealedShape.even(size)


def test_what_one_site_sends_another_is_sent() -> None:
    """Beside what the dealer sends and the model, whatever a site is sent another site has sent."""
    shape = SealedShape.even(SIZES["column"])
    for site in shape.sites:
        assert site_traffic(shape, site).down > site_traffic(shape, site).up


@pytest.mark.parametrize(("clusters", "expected"), [(1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (8, 4), (31, 5)])
def test_levels_of_the_tournament(clusters: int, expected: int) -> None:
    assert levels(clusters) == expected


def test_a_model_has_the_modes_that_its_jobs_have() -> None:
    with pytest.raises(ConfigError, match='model pairs has no jobs with privacy = "masked"'):
        Size(3, 10, 0, 2, 0, 2, 2, model="pairs")
    with pytest.raises(ConfigError, match='model bce has no jobs with privacy = "sealed"'):
        Size(3, 10, 0, 2, 0, 2, 2, privacy="sealed")


@pytest.mark.parametrize(("rows", "clusters", "members"), [(3_000, 31, 2), (4_000, 7, 4)])
def test_memory_of_the_tournament(rows: int, clusters: int, members: int) -> None:
    """The first level at the last member, which holds most: its peak is what the formula says, to a tenth."""
    seeds, context = [bytes([s]) * 32 for s in range(members)], b"c" * 32
    corrections = b"".join(next(parts for _, parts in argmax_dealer.corrections(seeds, context, rows, clusters + 1)))

    def level() -> None:
        words = np.zeros((clusters + 1, rows), dtype=np.uint32)
        member = Member(members - 1, members, seeds[-1], context, words)
        member.correct(0, corrections)
        member.incoming([member.outgoing()] * (members - 1))

    _, peak = traced(level)
    expected = tournament_memory([(members, rows)], clusters) * rows / (rows + 256)
    assert 0.9 < (peak + len(corrections)) / expected < 1


@pytest.mark.slow
@pytest.mark.parametrize("clusters", [0, 31])
def test_memory_of_rounds(clusters: int) -> None:
    """What coordinator and sites take, measured in each round: at most what the formulas say, and not much less."""
    size = replace(SIZES["column"], objects=40_000, shared=40_000, categories=10)
    size = replace(size, clusters=clusters or size.clusters)
    tables = tables_of(size)
    job = Job(model="pairs", clusters=size.clusters, sites=tuple(tables))
    aligned = align_tables(False, tables, dict.fromkeys(tables, Wishes()), None)
    parties = sealed_parties(job, Attempt("job", job.definition(), 1, tuple(tables)), aligned, tables)
    coordinator, at_coordinator, at_sites = parties.coordinator, 0, 0
    while coordinator.open_round is not None:
        answers = {}
        for site, task in coordinator.tasks().items():
            brought = sum(array.nbytes for array in task.arrays.values())
            answers[site], peak = traced(lambda site=site, task=task: parties.sites[site].answer(task))
            at_sites = max(at_sites, brought + peak)
        for site, answer in answers.items():
            add_answer(coordinator, site, answer)
        passed_on = sum(array.nbytes for answer in answers.values() for array in answer.arrays.values())
        _, peak = traced(coordinator.advance)
        at_coordinator = max(at_coordinator, passed_on + peak)
    shape = SealedShape.even(size)
    assert 0.5 < at_coordinator / coordinator_memory(shape) < 1
    labels = size.objects * (size.columns * LABEL + OBJECT)
    assert 0.5 < at_sites / (site_memory(shape, shape.sites[-1], size.objects, size.columns) - labels) < 1


def traced(call: Callable[[], Any]) -> tuple[Any, int]:
    """A result, and the most bytes that were allocated on the way."""
    tracemalloc.start()
    try:
        result = call()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
