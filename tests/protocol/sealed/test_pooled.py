"""Without noise a sealed job over any topology gives the tables and the labels of the pooled data, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.problems import TOPOLOGIES, deal, problem
from support.sealed_jobs import (
    SealedWorld,
    Tables,
    few_sites,
    hard,
    labels_of,
    opened,
    play_out,
    pooled_cells,
    pooled_labels,
    sealed_job,
    seeded,
)

import ce
from ce.errors import InputError
from ce.labels import Column, LabelTable
from ce.protocol.sealed_run import run_sealed
from ce.transport.in_process import InProcess
from ce.transport.loopback import Loopback


def assert_pooled(tables: Tables, clusters: int) -> None:
    world = SealedWorld(sealed_job(clusters), tables)
    parties = world.attempt()
    play_out(parties)
    terms = parties.coordinator.terms
    expected = pooled_cells(tables, terms)
    for site in parties.sites.values():
        assert np.array_equal(opened(site), expected)
    model = next(iter(parties.sites.values())).model
    assert model is not None
    assert model.n_clusters == clusters
    assert labels_of(world, parties) == pooled_labels(tables, terms, model)


SPREAD = {
    "seed": st.integers(0, 10**6),
    "topology": st.sampled_from(sorted(TOPOLOGIES)),
    "sites": st.integers(2, 10),
    "clusters": st.sampled_from([2, 3, 5, 8, 13]),
    "missing": st.sampled_from([0.0, 0.3]),
    "lists_all": st.booleans(),
    "twin": st.booleans(),
}


def assert_spread(
    seed: int, topology: str, sites: int, clusters: int, missing: float, lists_all: bool, twin: bool
) -> None:
    table = hard(problem(seed, k=4, clusterings=5, missing=missing).table)
    rng = np.random.default_rng(seed)
    tables = deal(table, TOPOLOGIES[topology](table, sites, rng), lists_all=lists_all)
    if twin:  # another site has labels of the same cells, not all of them the same
        other = next(iter(tables.values()))
        tables["twin"] = LabelTable(other.ids, tuple(_changed(column, rng) for column in other.columns))
    assert_pooled(tables, clusters)


@given(**SPREAD)
@settings(max_examples=6, deadline=None, derandomize=True)
@pytest.mark.promise("Without noise, a sealed job gives the pooled tables and the pooled labels, in every topology.")
def test_any_topology_gives_the_pooled_tables_and_labels(**spread: Any) -> None:
    assert_spread(**spread)


@given(**SPREAD)
@settings(max_examples=300, deadline=None, derandomize=True)
@pytest.mark.slow
def test_300_topologies_give_the_pooled_tables_and_labels(**spread: Any) -> None:
    assert_spread(**spread)


def _changed(column: Column, rng: np.random.Generator) -> Column:
    assert column.codes is not None
    codes = np.where(rng.random(len(column.codes)) < 0.2, -1, column.codes).astype(np.int32)
    return Column(column.name, column.kind, column.categories, codes, None)


def test_31_clusters() -> None:
    assert_pooled(few_sites(60, sites=2, columns=3), 31)


def test_words_of_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ce.protocol.sealed.terms.ring_bits", lambda largest, sd: 32)
    assert_pooled(few_sites(), 2)


def test_a_site_without_clusterings_and_a_column_without_categories_take_part() -> None:
    tables = few_sites()
    n = tables["a"].n_objects
    nothing = Column("nothing", "clustering", (), np.full(n, -1, dtype=np.int32), None)
    votes = Column("votes", "classifier", ("x", "y"), np.zeros(n, dtype=np.int32), None)
    tables["a"] = LabelTable(tables["a"].ids, (*tables["a"].columns, nothing))
    tables["c"] = LabelTable(tables["c"].ids, (votes,))
    assert_pooled(tables, 2)


def test_one_site_alone_needs_no_other() -> None:
    assert_pooled({"a": few_sites()["a"]}, 2)


def test_both_transports_give_the_same_bits() -> None:
    tables = few_sites()
    found = {}
    for transport in (InProcess, Loopback):
        drawn = {site: seeded("bits", site) for site in tables}
        found[transport] = run_sealed(
            sealed_job(2, 4.0), tables, job_key=b"k" * 32, transport_to=transport, entropy=drawn
        )
    one, other = found.values()
    for name, site in one.sites.items():
        twin = other.sites[name]
        assert site.result is not None
        assert twin.result is not None
        assert np.array_equal(opened(site), opened(twin))
        assert np.array_equal(site.result.labels, twin.result.labels)
        assert np.array_equal(site.result.memberships, twin.result.memberships, equal_nan=True)
    assert one.exchanges == other.exchanges


def test_a_simulation_follows_from_its_seed_and_secrets_give_fresh_noise() -> None:
    tables = few_sites()
    job = sealed_job(2, 1.0)
    one, same = (ce.simulate(job, tables) for _ in range(2))
    for name, site in one.sites.items():
        assert np.array_equal(site.labels, same.sites[name].labels)
        assert np.isnan(site.memberships[:24]).all()  # shared objects
        assert np.allclose(site.memberships[24:].sum(axis=1), 1)  # held alone
    assert one.lower_bound == same.lower_bound
    assert one.n_clusters == 2
    assert all(0.9 < spent <= 1.0 for spent in one.epsilon_spent.values())
    assert "larger epsilon" in one.noise_warning
    secrets = {site: site.encode() * 8 for site in tables}
    first, second = (ce.simulate(job, tables, secrets=secrets) for _ in range(2))
    assert first.lower_bound != second.lower_bound


def test_soft_labels_and_single_columns_are_refused() -> None:
    soft = LabelTable.from_arrays(np.array([[0, 1], [1, 0]]), ids=["a", "b"])
    probabilities = Column("p", "clustering", (0, 1), None, np.array([[0.5, 0.5], [0.1, 0.9]]))
    with pytest.raises(InputError, match="hard labels"):
        ce.simulate(sealed_job(1), {"x": LabelTable(soft.ids, (*soft.columns, probabilities)), "y": soft})
    with pytest.raises(InputError, match="two clusterings"):
        ce.simulate(
            sealed_job(1),
            {"x": soft.select(columns=[soft.columns[0].name]), "y": soft.select(columns=[soft.columns[0].name])},
        )
