"""Any topology equals one site: the first promise of the project.

Every parameter and every membership of a distributed run is compared with the run of the pooled labels on one site
from the same start. Sums are integers and every object is computed by itself, so equality is to the bit.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.problems import CLASSES, TOPOLOGIES, Problem, deal, problem
from support.runs import PROBLEMS, models

from ce.labels import Column, LabelTable
from ce.metrics import kappa_from_table
from ce.models import BCE, Mixture
from ce.protocol.engine.starting_parameters import SeededStarts
from ce.protocol.local_run import Run, run
from ce.steps.model import Model


def fit(model: Model, tables: dict[str, LabelTable], classes: tuple[str, ...] = ()) -> Run:
    return run(model, tables, {site: SeededStarts(3) for site in tables}, classes=classes)


def by_id(result: Run, tables: dict[str, LabelTable]) -> dict[str, np.ndarray]:
    """Memberships of every object, which all of its sites must agree on."""
    found: dict[str, np.ndarray] = {}
    for name, table in tables.items():
        for own, row in zip(table.ids, result.sites[name].memberships(), strict=True):
            assert own not in found or (found[own] == row).all()
            found[own] = row
    return found


def assert_same_bits(one: Run, pooled: LabelTable, many: Run, tables: dict[str, LabelTable]) -> None:
    expected = by_id(one, {"all": pooled})
    for own, row in by_id(many, tables).items():
        np.testing.assert_array_equal(row, expected[own])
    for name, value in one.outcome.globals.items():
        np.testing.assert_array_equal(many.outcome.globals[name], value, err_msg=name)
    assert many.outcome.winner == one.outcome.winner
    for start, path in one.outcome.paths.items():
        assert many.outcome.paths[start].bounds == path.bounds
    tables_of_one = one.beta()
    for name, table in many.beta().items():
        np.testing.assert_array_equal(table, tables_of_one[name], err_msg=name)
    assert_kappa_of_private_objects(one, pooled, many, tables)


def assert_kappa_of_private_objects(one: Run, pooled: LabelTable, many: Run, tables: dict[str, LabelTable]) -> None:
    """Kappa is counted over the objects that one site holds: all of them, or those of the pooled labels."""
    held = Counter(own for table in tables.values() for own in table.ids.tolist())
    alone = np.array([held[own] == 1 for own in pooled.ids.tolist()])
    if alone.all():
        assert many.outcome.kappa == one.outcome.kappa
        return
    site = one.sites["all"]
    if not site.model.uses_votes:
        assert many.outcome.kappa is None
        return
    k, beta = site.model.k, one.beta()
    scale = site.model.scales(site.sizes)["objects"]
    sums = np.zeros((pooled.n_objects, k), dtype=np.int64)
    for column in pooled.clusterings:
        says = beta[column.name] / beta[column.name].sum(axis=0)
        shares = np.eye(len(column.categories))[column.codes] if column.codes is not None else column.probabilities
        assert shares is not None
        rows = column.observed
        sums[rows] += np.rint(shares[rows] @ says.T * scale.unit).astype(np.int64)
    votes = pooled_votes(pooled, k)
    labels = sum(column.observed.astype(int) for column in pooled.clusterings)
    both = alone & (np.asarray(labels) > 0) & (votes.sum(axis=1) > 0)
    if not both.any():
        assert many.outcome.kappa is None
        return
    ranked = np.sort(sums[both], axis=1)
    if (ranked[:, -1] - ranked[:, -2] < 1e-9 * scale.unit).any():
        return  # a tie: either class is right
    counts = np.zeros((k, k))
    np.add.at(counts, (sums[both].argmax(axis=1), votes[both].argmax(axis=1)), 1)
    assert many.outcome.kappa == pytest.approx(kappa_from_table(counts), abs=1e-12)


def pooled_votes(table: LabelTable, k: int) -> NDArray[np.float64]:
    """(n, k) the sum of the votes on each object; classes of problems are letters in order."""
    votes = np.zeros((table.n_objects, k))
    for column in table.classifiers:
        places = [CLASSES.index(str(name)) for name in column.categories]
        if column.probabilities is not None:
            votes[:, places] += np.nan_to_num(column.probabilities)
        else:
            assert column.codes is not None
            for code, place in enumerate(places):
                votes[column.codes == code, place] += 1
    return votes


@pytest.mark.promise("A distributed run gives the same bits as one site with all labels, for any topology.")
@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("name", models(2))
@settings(max_examples=8, deadline=None, derandomize=True)
@given(example=PROBLEMS, sites=st.integers(1, 7), seed=st.integers(0, 2**32), lists_all=st.booleans())
def test_any_topology_equals_one_site_to_the_bit(
    name: str, topology: str, example: Problem, sites: int, seed: int, lists_all: bool
) -> None:
    model = models(example.k)[name]
    pooled = example.table
    owner = TOPOLOGIES[topology](pooled, sites, np.random.default_rng(seed))
    tables = deal(pooled, owner, lists_all=lists_all)
    # Objects and columns that no site lists do not exist for the sites; the pooled run must not know them either.
    listed = np.isin(pooled.ids, np.concatenate([table.ids for table in tables.values()]))
    columns = [c.name for c in pooled.columns if any(c.name in [d.name for d in t.columns] for t in tables.values())]
    pooled = pooled.select(listed, columns)
    if model.uses_votes and not pooled.classifiers:
        return
    tables = {site: table for site, table in tables.items() if model.uses_votes or table.clusterings}
    if not model.uses_votes:
        known = np.isin(pooled.ids, np.concatenate([table.ids for table in tables.values()]))
        pooled = pooled.select(known, [c.name for c in pooled.clusterings])
    one = fit(model, {"all": pooled}, example.classes)
    many = fit(models(example.k)[name], tables, example.classes)
    assert_same_bits(one, pooled, many, tables)


@pytest.mark.promise("A distributed run gives the same bits as one site with all labels, for any topology.")
@pytest.mark.parametrize("topology", ["rows", "columns", "rectangles"])
def test_five_starts_with_their_own_ends_pick_the_same_winner(topology: str) -> None:
    for seed in range(3):
        example = problem(seed, k=3, clusterings=6, missing=0.2, n=80)
        pooled = example.table
        tables = deal(pooled, TOPOLOGIES[topology](pooled, 4, np.random.default_rng(seed)), lists_all=True)
        model = BCE(3, n_init=5, anneal_iter=10, max_iter=80).steps()
        assert_same_bits(fit(model, {"all": pooled}), pooled, fit(model, tables), tables)


@pytest.mark.promise("The number of threads, the size of tiles and the order of rows, columns and sites change no bit.")
def test_the_order_of_sites_does_not_matter() -> None:
    example = problem(1, k=3, clusterings=5, missing=0.3, classifiers=2)
    tables = deal(example.table, TOPOLOGIES["ragged"](example.table, 5, np.random.default_rng(1)))
    turned = dict(reversed(tables.items()))
    for name, model in models(3).items():
        ours, theirs = (fit(model, t, example.classes) for t in (tables, turned))
        assert ours.outcome.paths == theirs.outcome.paths, name
        for site in tables:
            np.testing.assert_array_equal(ours.sites[site].memberships(), theirs.sites[site].memberships())


@pytest.mark.promise("A distributed run gives the same bits as one site with all labels, for any topology.")
def test_many_classes_and_blocks_of_one_object_keep_the_bits() -> None:
    """numpy sums eight numbers or more pairwise when they are contiguous, as they are for a single object."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 12, (40, 6))
    pooled = LabelTable.from_arrays(codes, ids=np.arange(40))
    owner = np.zeros((40, 6), dtype=np.intp)
    owner[0], owner[1, :3], owner[2, 3:] = 1, 2, 3
    tables = deal(pooled, owner, lists_all=True)
    for model in (BCE(11, n_init=2, anneal_iter=2, max_iter=16, tol=0).steps(), Mixture(11, max_iter=8, tol=0).steps()):
        assert_same_bits(fit(model, {"all": pooled}), pooled, fit(model, tables), tables)


@pytest.mark.promise("The number of threads, the size of tiles and the order of rows, columns and sites change no bit.")
def test_the_order_of_categories_does_not_matter() -> None:
    """Sites may know a shared column's categories in another order than their values' (as tokens, say)."""
    example = problem(6, k=3, clusterings=6, missing=0.2, classifiers=2)
    rng = np.random.default_rng(2)
    columns = []
    for column in example.table.columns:
        order = rng.permutation(len(column.categories))
        if column.kind == "classifier":
            columns.append(column)
            continue
        moved = tuple(column.categories[r] for r in order)
        if column.codes is None:
            assert column.probabilities is not None
            columns.append(Column(column.name, column.kind, moved, None, column.probabilities[:, order]))
        else:
            place = np.append(np.argsort(order), -1).astype(np.int32)
            columns.append(Column(column.name, column.kind, moved, place[column.codes], None))
    turned = LabelTable(example.table.ids, tuple(columns))
    for name, model in models(3).items():
        with pytest.MonkeyPatch.context() as patch:
            one = fit(model, {"all": example.table}, example.classes)
            patch.setattr("ce.protocol.topology.topology._union", lambda claims: next(iter(claims)).categories)
            other = fit(model, {"all": turned}, example.classes)
        assert one.outcome.paths == other.outcome.paths, name
        for a, b in zip(one.sites.values(), other.sites.values(), strict=True):
            np.testing.assert_array_equal(a.memberships(), b.memberships())


def test_one_site_and_more_use_one_exchange_per_iteration() -> None:
    """DESIGN section 2: two exchanges only for two-phase models where a shared block has cells of a shared column."""
    example = problem(2, k=3, clusterings=6, missing=0.0, n=60)
    rng = np.random.default_rng(0)
    wanted: dict[tuple[str, str], int] = {}
    for topology in ("rows", "columns", "ragged"):
        tables = deal(example.table, TOPOLOGIES[topology](example.table, 3, rng))
        for name, model in (("bce", models(3)["bce newton"]), ("mixture", models(3)["mixture"])):
            wanted[name, topology] = fit(model, tables).outcome.exchanges
    # One to open, one to tell the counts, one per iteration, one for the bound of what is returned.
    assert [wanted["bce", t] for t in ("rows", "columns", "ragged")] == [9, 9, 9]
    assert [wanted["mixture", t] for t in ("rows", "columns", "ragged")] == [9, 9, 15]


@pytest.mark.promise("Nothing but masked sums leaves a site in masked, and nothing but random words in blind.")
def test_what_leaves_a_site_is_what_the_layout_needs() -> None:
    """A private block's objects and a lone holder's column never appear in an answer."""
    example = problem(3, k=2, clusterings=4, missing=0.0, n=40)
    table = example.table
    owner = np.zeros((40, 4), dtype=np.intp)
    owner[20:, :2] = 1  # objects 20+ are shared by both sites, columns 2 and 3 belong to site 0 alone
    owner[20:30, :2] = 0
    tables = deal(table, owner)
    seen: list[dict[str, Any]] = []
    result = _recorded(models(2)["bce newton"], tables, seen)
    blocks = {b.index for b in result.topology.blocks if b.shared}
    columns = {c.index for c in result.topology.columns if c.shared}
    assert blocks
    assert columns
    for arrays in seen:
        for name, array in arrays.items():
            kind, index = name.split("/")[:2]
            assert kind == "global" or int(index) in (blocks if kind == "block" else columns)
            if kind == "block":
                assert array.shape[-1] == result.topology.blocks[int(index)].size


def _recorded(model: Model, tables: dict[str, LabelTable], seen: list[dict[str, Any]]) -> Run:
    from ce.protocol import local_run
    from ce.protocol.engine.aggregator import Aggregator, add_answer
    from ce.protocol.messages.task import Answer

    def add(home: Aggregator, site: str, answer: Answer) -> None:
        seen.append(dict(answer.arrays))
        add_answer(home, site, answer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_run, "add_answer", add)
        return fit(model, tables)


@pytest.mark.promise("The bound never decreases, and is the one of the papers.")
def test_local_loops_keep_the_bound_rising_and_save_exchanges() -> None:
    example = problem(5, k=4, clusterings=8, missing=0.1, n=200)
    tables = deal(example.table, TOPOLOGIES["columns"](example.table, 4, np.random.default_rng(0)))
    exchanges = {}
    for loops in (1, 10):
        model = BCE(4, n_init=1, learn_alpha=False, alpha=1.0, local_loops=loops, max_iter=300, tol=1e-8).steps()
        result = fit(model, tables)
        path = np.array(result.outcome.paths[0].bounds)
        assert (np.diff(path) >= -1e-9 * abs(path[-1])).all()
        exchanges[loops] = result.outcome.exchanges
    assert exchanges[10] < exchanges[1]
