"""ce.simulate: what a simulation has, what is left out, secrets, refusals."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from support.simulations import (
    CLASSES,
    COLUMNS,
    JOB,
    N_OBJECTS,
    SECRETS,
    assert_same_bits,
    assert_same_results,
    labels,
    table,
    three_sites,
    votes,
)

import ce
from ce.errors import ConfigError, InputError, Refused
from ce.labels import LabelTable
from ce.splits import split

# What a simulation has.


@pytest.mark.parametrize("model", ["bce", "mixture"])
def test_attributes(model: str) -> None:
    job = ce.Job(clusters=3, model=model, restarts=2)
    tables = three_sites()
    result = ce.simulate(job, tables)
    assert isinstance(result, ce.Simulation)
    assert result.job is job
    assert list(result.sites) == list(tables)
    for name, own in result.sites.items():
        n = tables[name].n_objects
        assert own.ids.tolist() == tables[name].ids.tolist()
        assert own.labels.shape == (n,)
        assert own.memberships.shape == (n, 3)
        np.testing.assert_allclose(own.memberships.sum(axis=1), 1.0, rtol=1e-12)
        assert own.labels.tolist() == own.memberships.argmax(axis=1).tolist()
    assert set(result.parameters) == {"alpha" if model == "bce" else "weights", "beta"}
    assert result.parameters["alpha" if model == "bce" else "weights"].shape == (3,)
    assert set(result.parameters["beta"]) == set(COLUMNS)
    for name, beta in result.parameters["beta"].items():
        categories = {
            c for t in tables.values() for column in t.columns if column.name == name for c in column.categories
        }
        assert beta.shape == (3, len(categories))
        np.testing.assert_allclose(beta.sum(axis=1), 1.0, rtol=1e-12)
    assert result.lower_bound == result.bound_path[-1]
    assert 0 < result.iterations <= 300
    assert result.converged
    assert result.exchanges > result.iterations
    assert result.bytes_sent > 0
    assert (result.layout, result.privacy, result.excluded) == ("arbitrary", "masked", ())
    assert (result.classes, result.kappa) == ((), None)


@pytest.mark.parametrize("name", ["north", "east", "south"])
def test_rows_are_in_the_order_of_the_sites_table(name: str) -> None:
    tables = three_sites()
    before = ce.simulate(JOB, tables).sites[name]
    order = np.random.default_rng(3).permutation(tables[name].n_objects)
    tables[name] = tables[name].select(order)
    after = ce.simulate(JOB, tables).sites[name]
    assert after.ids.tolist() == before.ids[order].tolist() == tables[name].ids.tolist()
    assert after.labels.tolist() == before.labels[order].tolist()
    assert after.memberships.tobytes() == before.memberships[order].tobytes()


def test_an_object_has_the_same_row_wherever_it_is_known() -> None:
    result = ce.simulate(JOB, three_sites())
    north, east = result.sites["north"], result.sites["east"]
    where = [north.ids.tolist().index(own) for own in east.ids]
    assert east.memberships.tobytes() == north.memberships[where].tobytes()


@pytest.mark.parametrize(
    ("layout", "parts"),
    [
        ("one", {"a": (slice(None), slice(None))}),
        ("row", {"a": (slice(0, 20), slice(None)), "b": (slice(20, None), slice(None))}),
        ("column", {"a": (slice(None), slice(0, 2)), "b": (slice(None), slice(2, None))}),
        ("arbitrary", {"a": (slice(0, 30), slice(0, 2)), "b": (slice(20, None), slice(2, None))}),
        ("arbitrary", {"a": (slice(0, 20), slice(0, 4)), "b": (slice(20, None), slice(2, None))}),
        ("arbitrary", {"a": (slice(0, 20), slice(0, 3)), "b": (slice(20, None), slice(3, None))}),
    ],
)
def test_layouts_have_the_papers_names(layout: str, parts: dict[str, tuple[slice, slice]]) -> None:
    cells, _ = labels()
    result = ce.simulate(
        ce.Job(clusters=3, restarts=1, max_iterations=12), {name: table(cells, *part) for name, part in parts.items()}
    )
    assert result.layout == layout


@pytest.mark.promise("A distributed run gives the same bits as one site with all labels, for any topology.")
@pytest.mark.parametrize("how", ["rows:3", "columns:3", "blocks:4"])
def test_several_sites_are_one_to_the_bit(how: str) -> None:
    """With passes over the columns that one site holds alone (`local_loops`), where there are no others."""
    cells, _ = labels()
    pooled = table(cells)
    loops = 10 if how.startswith("columns") else 1
    job = ce.Job(clusters=3, seed=6, restarts=2, local_loops=loops)
    whole = ce.simulate(job, {"all": pooled})
    parted = ce.simulate(job, split(pooled, how, seed=2))
    position = {own: i for i, own in enumerate(whole.sites["all"].ids)}
    for own in parted.sites.values():
        where = [position[name] for name in own.ids]
        assert own.memberships.tobytes() == whole.sites["all"].memberships[where].tobytes()
    assert parted.bound_path.tobytes() == whole.bound_path.tobytes()
    model = ce.models.BCE(3, n_init=2, random_state=6, local_loops=loops, halving=loops > 1).fit(pooled)
    assert whole.sites["all"].memberships.tobytes() == model.memberships_.tobytes()


@pytest.mark.parametrize("model", ["bce", "mixture", "bc3e"])
def test_the_order_of_the_sites_means_nothing(model: str) -> None:
    cells, truth = labels()
    tables = three_sites()
    job = ce.Job(clusters=3, model=model, restarts=2, max_iterations=12) if model != "bc3e" else ce.Job(model=model)
    if model == "bc3e":
        tables["west"] = table(votes(truth)[:, None], slice(5, 40), names=("v0",))
        assert len(cells) == len(truth)
    results = [
        ce.simulate(job, dict(order)) for order in itertools.islice(itertools.permutations(tables.items()), 0, 24, 5)
    ]
    assert len(results) > 1
    for other in results[1:]:
        assert_same_bits(results[0], other)


@pytest.mark.promise("The bound never decreases, and is the one of the papers.")
@pytest.mark.parametrize(
    ("model", "key", "iterations"),
    # bce: 50 iterations at a fixed alpha, 10 Newton steps, then joint ones.
    [("bce", "clusters", 90), ("mixture", "clusters", 40), ("bc3e", "classes", 25)],
)
def test_the_bound_never_decreases(model: str, key: str, iterations: int) -> None:
    cells, truth = labels(seed=4)
    heard = np.searchsorted(CLASSES, votes(truth))
    tables = {
        "north": table(np.column_stack([cells, heard]), slice(0, 30), [0, 1, 6], (*COLUMNS, "v0")),
        "south": table(cells, slice(20, None), slice(2, None)),
    }
    result = ce.simulate(ce.Job(model=model, **{key: 3}, restarts=2, max_iterations=iterations, tolerance=0), tables)
    assert result.iterations == iterations
    assert not result.converged
    steps = np.diff(result.bound_path)
    assert (steps >= -1e-9 * np.abs(result.bound_path[1:])).all()
    assert result.bound_path[-1] > result.bound_path[0]


def test_bytes_grow_with_the_objects_that_are_shared() -> None:
    cells, _ = labels()
    job = ce.Job(clusters=3, restarts=2, max_iterations=5, tolerance=0)
    sent = []
    for overlap in (0, 1, 8, 24):
        half = N_OBJECTS // 2
        tables = {
            "a": table(cells, slice(0, half + overlap), slice(0, 3)),
            "b": table(cells, slice(half, None), slice(3, 6)),
        }
        sent.append(ce.simulate(job, tables).bytes_sent)
    assert sent == sorted(set(sent))


def test_the_seed_decides() -> None:
    tables = three_sites()
    first, again, other = (
        ce.simulate(ce.Job(clusters=3, seed=s, restarts=1, max_iterations=12), tables) for s in (1, 1, 2)
    )
    assert_same_bits(first, again)
    assert first.bound_path[0] != other.bound_path[0]


def test_progress_is_told() -> None:
    told: list[Any] = []
    result = ce.simulate(JOB, three_sites(), on_progress=told.append)
    assert [where.iteration for where in told] == sorted(where.iteration for where in told)
    assert all(0 <= where.running <= 2 and where.has_bound for where in told)
    assert told[-1].bound >= result.lower_bound


# What is left out.


def test_objects_without_a_label_are_left_out_and_counted() -> None:
    cells, _ = labels()
    north, south = cells[:24].copy(), cells[24:].copy()
    north[[2, 5, 6]] = -1
    south[7] = -1
    north_table = LabelTable.from_arrays(north, ids=[f"o{i}" for i in range(24)], columns=COLUMNS)
    south_table = LabelTable.from_arrays(south, ids=[f"o{i}" for i in range(24, 48)], columns=COLUMNS)
    result = ce.simulate(JOB, {"north": north_table, "south": south_table})
    assert [(e.site, e.rule, e.objects, e.columns) for e in result.excluded] == [
        ("north", "objects without a label", 3, ()),
        ("south", "objects without a label", 1, ()),
    ]
    own = result.sites["north"]
    assert np.flatnonzero(own.labels == -1).tolist() == [2, 5, 6]
    prior = result.parameters["alpha"] / result.parameters["alpha"].sum()
    for i in (2, 5, 6):
        np.testing.assert_allclose(own.memberships[i], prior, rtol=1e-12)
    # They change nothing for the others.
    kept = [i for i in range(24) if i not in (2, 5, 6)]
    without = {"north": north_table.select(kept), "south": south_table.select([i for i in range(24) if i != 7])}
    fewer = ce.simulate(JOB, without)
    assert fewer.excluded == ()
    np.testing.assert_allclose(fewer.sites["north"].memberships, own.memberships[kept], rtol=1e-9)


def test_an_object_with_a_label_anywhere_is_in_everywhere() -> None:
    cells, _ = labels()
    north, east = cells[:, :3].copy(), cells[:, 3:].copy()
    north[3] = east[4] = north[5] = east[5] = -1
    ids = [f"o{i}" for i in range(N_OBJECTS)]
    result = ce.simulate(
        JOB,
        {
            "north": LabelTable.from_arrays(north, ids=ids, columns=COLUMNS[:3]),
            "east": LabelTable.from_arrays(east, ids=ids, columns=COLUMNS[3:]),
        },
    )
    assert [(e.site, e.objects) for e in result.excluded] == [("north", 1), ("east", 1)]
    assert np.flatnonzero(result.sites["north"].labels < 0).tolist() == [5]
    assert np.flatnonzero(result.sites["east"].labels < 0).tolist() == [5]


def test_classifiers_are_left_out_of_bce_by_name() -> None:
    cells, truth = labels()
    mixed = np.column_stack([cells.astype(str), votes(truth, 1), votes(truth, 2)])
    names = (*COLUMNS, "v0", "v1")
    tables = {
        "north": table(mixed, slice(0, 24), names=names),
        "south": table(mixed, slice(24, None), slice(0, 6), names=names),
    }
    result = ce.simulate(JOB, tables)
    assert [(e.site, e.rule, e.objects, e.columns) for e in result.excluded] == [
        ("north", "classifiers in a model without classes", 0, ("v0", "v1"))
    ]
    assert set(result.parameters["beta"]) == set(COLUMNS)
    clusterings = {name: t.select(columns=COLUMNS) for name, t in tables.items()}
    assert_same_bits(result, ce.simulate(JOB, clusterings))


def test_a_classifier_that_is_left_out_may_have_the_name_of_a_clustering() -> None:
    cells, _ = labels()
    heard = np.column_stack([cells[:, 3:], cells[:, 0]])
    own = [f"o{i}" for i in range(N_OBJECTS)]
    tables = {
        "north": table(cells, columns=slice(0, 3)),
        "east": LabelTable.from_arrays(heard, ids=own, columns=["c3", "c4", "c5", "c0"], classifiers=["c0"]),
    }
    result = ce.simulate(JOB, tables)
    tables["east"] = tables["east"].select(columns=["c3", "c4", "c5"])
    assert_same_bits(result, ce.simulate(JOB, tables))


def test_a_site_with_classifiers_only_has_nothing_to_say_in_bce() -> None:
    cells, truth = labels()
    tables = {
        "north": table(cells, slice(0, 30)),
        "panel": table(votes(truth)[:, None], slice(20, None), names=("v0",)),
    }
    result = ce.simulate(JOB, tables)
    assert [(e.site, e.rule, e.objects, e.columns) for e in result.excluded] == [
        ("panel", "objects without a label", 18, ()),
        ("panel", "classifiers in a model without classes", 0, ("v0",)),
    ]
    assert (result.sites["panel"].labels == -1).tolist() == [False] * 10 + [True] * 18


def test_what_is_excluded_never_names_an_object() -> None:
    cells, _ = labels()
    cells[0] = -1
    shown = repr(ce.simulate(ce.Job(clusters=2), {"here": table(cells)}).excluded)
    assert "o0" not in shown


# Secrets.


def test_secrets_replace_the_seed() -> None:
    """Another seed is another definition, and so has other starts; who knows the seed alone knows none of them."""
    tables = three_sites()
    job = ce.Job(clusters=3, restarts=1, max_iterations=12, seed=1)
    seeded = ce.simulate(job, tables)
    secret = ce.simulate(job, tables, secrets=SECRETS)
    assert_same_bits(secret, ce.simulate(job, tables, secrets=dict(SECRETS)))
    assert secret.bound_path[0] != seeded.bound_path[0]
    other = ce.simulate(ce.Job(clusters=3, restarts=1, max_iterations=12, seed=2), tables, secrets=SECRETS)
    assert secret.bound_path[0] != other.bound_path[0]


def test_secrets_do_not_depend_on_the_order_of_the_sites() -> None:
    tables = three_sites()
    job = JOB
    first = ce.simulate(job, tables, secrets=SECRETS)
    backwards = dict(reversed(tables.items()))
    assert_same_bits(first, ce.simulate(job, backwards, secrets=SECRETS))
    assert_same_bits(first, ce.simulate(job, tables, secrets=dict(reversed(SECRETS.items())) | {"nobody": b"x" * 32}))


@pytest.mark.parametrize("site", ["north", "east"])
def test_every_secret_and_the_definition_of_the_job_matter(site: str) -> None:
    cells, _ = labels()
    tables = {"north": table(cells, columns=slice(0, 3)), "east": table(cells, columns=slice(3, 6))}
    secrets = {name: SECRETS[name] for name in tables}
    job = ce.Job(name="monday", clusters=3, restarts=1, max_iterations=12)
    first = ce.simulate(job, tables, secrets=secrets).bound_path[0]
    assert ce.simulate(job, tables, secrets=secrets | {site: b"x" * 32}).bound_path[0] != first
    other = ce.Job(name="monday", clusters=3, restarts=1, max_iterations=12, smoothing=0.02)
    assert ce.simulate(other, tables, secrets=secrets).bound_path[0] != first


def test_the_same_definition_has_the_same_bits_under_every_name_and_in_every_mode() -> None:
    """So the same job again shows nothing new, whatever it is called."""
    keys: dict[str, Any] = {"clusters": 3, "restarts": 2, "max_iterations": 12}
    monday = ce.simulate(ce.Job(name="monday", **keys), three_sites(), secrets=SECRETS)
    tuesday = ce.Job(name="tuesday", privacy="blind", deadlines=ce.job.Deadlines(round_s=1.0), **keys)
    assert_same_results(monday, ce.simulate(tuesday, three_sites(), secrets=SECRETS))


def test_a_shared_column_starts_from_the_first_sites_secret() -> None:
    cells, _ = labels()
    tables = {"north": table(cells, slice(0, 24)), "south": table(cells, slice(24, None))}
    secrets = {name: SECRETS[name] for name in tables}
    job = ce.Job(clusters=3, restarts=1, max_iterations=12)
    first = ce.simulate(job, tables, secrets=secrets)
    assert_same_bits(first, ce.simulate(job, tables, secrets=secrets | {"south": b"x" * 32}))
    assert ce.simulate(job, tables, secrets=secrets | {"north": b"x" * 32}).bound_path[0] != first.bound_path[0]


def test_a_missing_secret_is_an_error_that_names_the_site() -> None:
    with pytest.raises(InputError, match=r"no secret for east, south$"):
        ce.simulate(JOB, three_sites(), secrets={"north": b"hidden"})


# Refusals.


@pytest.mark.parametrize("sites", [("north", "east"), ("north", "east", "south", "west"), ("north", "east", "South")])
def test_the_jobs_sites_are_the_tables_sites(sites: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=r"the job is for north, east.* the tables are of north, east, south"):
        ce.simulate(ce.Job(clusters=3, sites=sites), three_sites())
    result = ce.simulate(
        ce.Job(clusters=3, sites=("south", "north", "east"), restarts=1, max_iterations=12), three_sites()
    )
    assert list(result.sites) == ["north", "east", "south"]


def test_no_site_is_an_error() -> None:
    with pytest.raises(InputError, match="no site"):
        ce.simulate(JOB, {})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"privacy": "none"}, "privacy is one of plain, masked, blind"),
        ({"transport": "pigeon"}, "transport is one of inprocess, grpc"),
        ({"transport": ""}, "transport is one of inprocess, grpc"),
        ({"policy": {"min_site": 1}}, "unknown key min_site; did you mean min_sites?"),
        ({"policy": {"min_sites": 0}}, "min_sites is a whole number of at least 1"),
        ({"policy": "no such file"}, "no such file: cannot be read"),
    ],
)
def test_an_option_that_means_nothing_is_a_configuration_error(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        ce.simulate(JOB, three_sites(), **options)


def test_a_cell_belongs_to_one_site() -> None:
    cells, _ = labels()
    tables = {"north": table(cells, slice(0, 30)), "east": table(cells, slice(25, None), slice(2, 3))}
    with pytest.raises(Refused) as caught:
        ce.simulate(JOB, tables)
    sentence = str(caught.value)
    assert caught.value.rule == "overlapping cells"
    assert all(part in sentence for part in ("'c2'", "north", "east", "5"))
    assert not any(own in sentence for own in tables["east"].ids)


def test_no_label_that_the_model_uses() -> None:
    _, truth = labels()
    panel = {"panel": table(votes(truth)[:, None], names=("v0",))}
    with pytest.raises(InputError, match="no object has a label that this model uses"):
        ce.simulate(JOB, panel)


# Small corners.


def test_a_site_with_a_single_object() -> None:
    cells, _ = labels()
    alone = {"a": table(cells, slice(0, 1)), "b": table(cells, slice(1, None))}
    job = dataclasses.replace(JOB, local_loops=1)
    result = ce.simulate(job, alone)
    whole = ce.simulate(job, {"all": table(cells)}).sites["all"]
    assert result.layout == "row"
    assert result.sites["a"].memberships.tobytes() == whole.memberships[:1].tobytes()
    shared = {"a": table(cells, slice(0, 1), slice(0, 3)), "b": table(cells, slice(None), slice(3, 6))}
    result = ce.simulate(JOB, shared)
    assert result.sites["a"].memberships.tobytes() == result.sites["b"].memberships[:1].tobytes()


def test_one_object_shared_by_all_sites() -> None:
    cells, _ = labels()
    tables = {
        "a": table(cells, [0, *range(1, 16)], slice(0, 2)),
        "b": table(cells, [*range(16, 30), 0], slice(2, 4)),
        "c": table(cells, [30, 0, *range(31, 48)], slice(4, 6)),
    }
    result = ce.simulate(JOB, tables)
    assert result.layout == "arbitrary"
    rows = [own.memberships[own.ids.tolist().index("o0")].tobytes() for own in result.sites.values()]
    assert len(set(rows)) == 1


def test_one_object_is_all_there_is() -> None:
    tables = {
        "a": LabelTable.from_arrays([[1, 2]], columns=["x", "y"]),
        "b": LabelTable.from_arrays([[3]], columns=["z"]),
    }
    result = ce.simulate(ce.Job(clusters=2), tables)
    assert result.layout == "column"
    assert result.sites["a"].memberships.tobytes() == result.sites["b"].memberships.tobytes()
    assert result.sites["a"].labels.tolist() == [0]


@pytest.mark.parametrize("model", ["bce", "mixture"])
def test_a_column_with_one_category_says_nothing(model: str) -> None:
    cells, _ = labels()
    flat = np.column_stack([cells, np.full(N_OBJECTS, 7)])
    names = (*COLUMNS, "flat")
    tables = {"a": table(flat, slice(0, 30), names=names), "b": table(flat, slice(30, None), names=names)}
    result = ce.simulate(ce.Job(clusters=3, model=model), tables)
    assert result.parameters["beta"]["flat"].tolist() == [[1.0], [1.0], [1.0]]
    assert np.isfinite(result.bound_path).all()


def test_more_clusters_than_objects() -> None:
    cells, _ = labels()
    result = ce.simulate(
        ce.Job(clusters=9, restarts=1, max_iterations=12),
        {"a": table(cells, slice(0, 2)), "b": table(cells, slice(2, 4))},
    )
    assert result.sites["a"].memberships.shape == (2, 9)
    assert np.isfinite(result.lower_bound)


def test_one_cluster() -> None:
    result = ce.simulate(ce.Job(clusters=1, restarts=1, max_iterations=12), three_sites())
    assert all((own.memberships == 1.0).all() and (own.labels == 0).all() for own in result.sites.values())


def test_a_site_of_sites_that_share_nothing() -> None:
    """Neither objects nor columns: nothing ties the sites together but alpha, and the job still runs."""
    cells, _ = labels()
    tables = {"a": table(cells, slice(0, 24), slice(0, 3)), "b": table(cells, slice(24, None), slice(3, 6))}
    result = ce.simulate(JOB, tables)
    assert result.layout == "arbitrary"
    assert np.isfinite(result.lower_bound)


def test_tables_are_not_changed() -> None:
    tables = three_sites()
    before = {name: [column.codes.copy() for column in t.columns] for name, t in tables.items()}
    ce.simulate(ce.Job(clusters=3, restarts=1, max_iterations=12), tables)
    for name, columns in before.items():
        for codes, column in zip(columns, tables[name].columns, strict=True):
            assert codes.tobytes() == column.codes.tobytes()
