"""ce.simulate under a site's rules: who may see what, and what is refused by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.simulations import (
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
from ce.errors import InputError, Refused
from ce.labels import LabelTable
from ce.models import BCE
from ce.policy import Policy
from ce.protocol import local_run
from ce.protocol.engine.starting_parameters import SeededStarts

# Who may see what.


@pytest.mark.promise("plain, masked and blind give the same bits.")
@pytest.mark.parametrize("model", ["bce", "mixture", "bc3e"])
@pytest.mark.parametrize("secrets", [None, SECRETS | {"west": b"w" * 32}], ids=["seeded", "secret"])
def test_every_mode_gives_the_same_bits(model: str, secrets: dict[str, bytes] | None) -> None:
    tables = three_sites()
    if model == "bc3e":
        job = ce.Job(model=model, restarts=2)
        tables["west"] = table(votes(labels()[1])[:, None], slice(5, 40), names=("v0",))
    else:
        job = ce.Job(clusters=3, model=model, restarts=2, max_iterations=12)
    plain, masked, blind = (
        ce.simulate(job, tables, privacy=mode, secrets=secrets) for mode in ("plain", "masked", "blind")
    )
    assert [result.privacy for result in (plain, masked, blind)] == ["plain", "masked", "blind"]
    assert_same_bits(plain, masked)
    assert_same_results(plain, blind)
    # Keys, decisions, and shares of blocks that not all sites hold, go back and forth besides.
    assert blind.exchanges > plain.exchanges
    assert blind.bytes_sent > plain.bytes_sent


@pytest.mark.promise("plain, masked and blind give the same bits.")
@pytest.mark.parametrize("model", ["bce", "mixture"])
def test_a_column_of_some_members_of_a_block_gives_the_same_bits_in_every_mode(model: str) -> None:
    """Who claims its cells only its holders know; what all members have in common is less."""
    cells, _ = labels()
    first = np.column_stack([np.where(np.arange(N_OBJECTS) < 20, cells[:, 0], -1), cells[:, 1]])
    second = np.column_stack([np.where(np.arange(N_OBJECTS) < 20, -1, cells[:, 0]), cells[:, 2]])
    tables = {
        "north": table(first, names=("c0", "c1")),
        "east": table(second, names=("c0", "c2")),
        "south": table(cells, columns=slice(3, 6)),
    }
    job = ce.Job(clusters=3, model=model, restarts=2, max_iterations=5)
    plain, masked, blind = (ce.simulate(job, tables, privacy=mode) for mode in ("plain", "masked", "blind"))
    assert_same_bits(plain, masked)
    assert_same_results(plain, blind)


@pytest.mark.parametrize(
    ("asked", "given", "mode"),
    [
        ("plain", None, "plain"),
        ("masked", None, "masked"),
        ("blind", None, "blind"),
        ("blind", "plain", "plain"),
        ("plain", "blind", "blind"),
    ],
)
def test_the_mode_is_the_jobs_unless_another_is_given(asked: str, given: str | None, mode: str) -> None:
    job = ce.Job(clusters=3, restarts=1, max_iterations=3, privacy=asked)
    assert ce.simulate(job, three_sites(), privacy=given).privacy == mode


def test_masked_is_the_mode_of_a_job_that_says_nothing() -> None:
    assert ce.simulate(JOB, three_sites()).privacy == "masked"


# A site's rules.


#: Rules that everything keeps, to be replaced one at a time.
LAX: dict[str, Any] = {
    "weakest_privacy": "plain",
    "min_sites": 1,
    "min_objects": 1,
    "min_foreign_columns": 0,
    "min_classifiers": 0,
    "shared_objects": "totals",
}


def two_sites() -> dict[str, LabelTable]:
    """Each has three columns and objects of its own; ten objects are known to both."""
    cells, _ = labels()
    return {"north": table(cells, slice(0, 30), slice(0, 3)), "south": table(cells, slice(20, None), slice(3, 6))}


def test_rules_that_are_kept_change_nothing() -> None:
    assert_same_bits(ce.simulate(JOB, two_sites()), ce.simulate(JOB, two_sites(), policy=LAX))
    cells = labels()[0] % 2  # so that each category has many labels at each site
    tables = {f"site{at}": table(cells, slice(at, None, 2)) for at in range(2)}
    assert ce.simulate(JOB, tables, policy=LAX | {"min_sites": 2, "min_objects": 6}).excluded == ()


@pytest.mark.promise("Rules of the policy refuse by name before a sum has left the site.")
@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ({"weakest_privacy": "blind"}, "weakest_privacy"),
        ({"min_sites": 3}, "min_sites"),
        ({"min_sites": 2, "min_objects": 29}, "min_sites"),  # of two sites one does not count
        ({"models": ["mixture"]}, "models"),
        ({"min_objects": 11, "below_minimum": "refuse"}, "min_objects"),
        ({"min_foreign_columns": 4, "below_minimum": "refuse"}, "min_foreign_columns"),
        ({}, "min_sites"),  # that of the defaults, which ask for three
    ],
)
def test_a_job_that_breaks_a_rule_is_refused_by_its_name(keys: dict[str, Any], rule: str) -> None:
    with pytest.raises(Refused) as caught:
        ce.simulate(JOB, two_sites(), policy=LAX | keys if keys else {})
    assert caught.value.rule == rule
    assert f"(rule: {rule})" in str(caught.value)


@pytest.mark.promise("Rules of the policy refuse by name before a sum has left the site.")
def test_weaker_modes_than_a_rule_asks_for_are_refused() -> None:
    for weakest, mode, fits in (
        ("masked", "plain", False),
        ("masked", "masked", True),
        ("masked", "blind", True),
        ("blind", "masked", False),
    ):
        policy = LAX | {"weakest_privacy": weakest}
        if fits:
            assert ce.simulate(JOB, two_sites(), privacy=mode, policy=policy).privacy == mode
        else:
            with pytest.raises(Refused, match=f'the job\'s sums are "{mode}"'):
                ce.simulate(JOB, two_sites(), privacy=mode, policy=policy)


@pytest.mark.promise("Objects and columns below a minimum are left out, listed, and scored at their own site.")
@pytest.mark.parametrize("privacy", ["masked", "blind"])
@pytest.mark.parametrize(
    "keys",
    [{"min_objects": 11}, {"min_foreign_columns": 4}, {"shared_objects": "exclude"}],
    ids=lambda keys: next(iter(keys)),
)
def test_objects_below_a_minimum_take_no_part_are_listed_and_get_their_labels_afterwards(
    keys: dict[str, Any], privacy: str
) -> None:
    tables, job = two_sites(), ce.Job(clusters=3, restarts=3)
    ((rule, _),) = keys.items()
    result = ce.simulate(job, tables, privacy=privacy, policy=LAX | keys, secrets=SECRETS)
    assert [(e.site, e.rule, e.objects, e.columns) for e in result.excluded] == [
        ("north", rule, 10, ()),
        ("south", rule, 10, ()),
    ]
    # The others see a job in which these never were.
    kept = {"north": np.arange(20), "south": np.arange(10, 28)}
    fewer = {site: tables[site].select(rows) for site, rows in kept.items()}
    without = ce.simulate(job, fewer, privacy=privacy, secrets=SECRETS)
    assert without.bound_path.tobytes() == result.bound_path.tobytes()
    for site, rows in kept.items():
        own = result.sites[site]
        assert own.ids.tolist() == tables[site].ids.tolist()
        assert own.memberships[rows].tobytes() == without.sites[site].memberships.tobytes()
        np.testing.assert_allclose(own.memberships.sum(axis=1), 1.0, rtol=1e-12)
        assert own.labels.tolist() == own.memberships.argmax(axis=1).tolist()
        # Each is labelled by its site alone, as an object of that site with the same labels was.
        cells = np.column_stack([column.codes for column in tables[site].columns])  # type: ignore[misc]
        left_out = np.setdiff1d(np.arange(len(cells)), rows)
        alike = [(at, other) for at in left_out for other in rows if (cells[at] == cells[other]).all()]
        assert alike
        for at, other in alike:
            np.testing.assert_allclose(own.memberships[at], own.memberships[other], atol=1e-3)


@pytest.mark.promise("Objects and columns below a minimum are left out, listed, and scored at their own site.")
def test_columns_below_a_minimum_take_no_part_and_are_listed_by_name() -> None:
    cells = labels()[0] % 2  # so that each category is at each site
    tables = {
        "north": table(cells, slice(0, 16)),
        "east": table(cells, slice(16, 32)),
        "south": table(cells, slice(32, None), slice(0, 5)),
    }
    result = ce.simulate(JOB, tables, policy=LAX | {"min_sites": 3})
    assert [(e.site, e.rule, e.objects, e.columns) for e in result.excluded] == [
        ("north", "min_sites", 0, ("c5",)),
        ("east", "min_sites", 0, ("c5",)),
    ]
    assert set(result.parameters["beta"]) == set(COLUMNS[:5])
    without = {site: own.select(columns=COLUMNS[:5]) for site, own in tables.items()}
    assert_same_bits(result, ce.simulate(JOB, without))


def test_a_site_of_which_nothing_is_left_refuses() -> None:
    with pytest.raises(Refused, match="all objects or all columns of this site") as caught:
        ce.simulate(JOB, three_sites(), policy=LAX | {"min_foreign_columns": 4})
    assert caught.value.rule == "min_foreign_columns"


# Objects that several sites hold.

ALONE_ONLY = {**LAX, "shared_objects": "exclude"}


@pytest.mark.promise("Objects that several sites hold take no part in totals, unless the sites that hold them opt in.")
def test_shared_objects_are_left_out_also_where_a_minimum_is_refused() -> None:
    result = ce.simulate(JOB, two_sites(), policy=ALONE_ONLY | {"below_minimum": "refuse"})
    assert [(e.site, e.rule, e.objects) for e in result.excluded] == [
        ("north", "shared_objects", 10),
        ("south", "shared_objects", 10),
    ]


@pytest.mark.parametrize("privacy", ["masked", "blind"])
def test_totals_of_shared_objects_are_opened_only_on_request(privacy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: set[str] = set()
    add_answer = local_run.add_answer

    def watched(home: Any, site: str, answer: Any) -> None:
        sent.update(answer.arrays)
        add_answer(home, site, answer)

    monkeypatch.setattr(local_run, "add_answer", watched)
    defaults = {key: value for key, value in LAX.items() if key != "shared_objects"}
    ce.simulate(JOB, two_sites(), privacy=privacy, policy=defaults)
    assert sent
    assert not [name for name in sent if name.startswith("block/")]
    ce.simulate(JOB, two_sites(), privacy=privacy, policy=LAX)
    assert [name for name in sent if name.startswith("block/")]


@pytest.mark.promise("Objects that several sites hold take no part in totals, unless the sites that hold them opt in.")
@pytest.mark.parametrize(("shared_objects", "proposes"), [("sealed", True), ("exclude", False)])
def test_a_job_of_which_every_object_is_shared_is_refused_and_says_what_to_do(
    shared_objects: str, proposes: bool
) -> None:
    """A sealed job is proposed only by a site that would let these objects take part in it."""
    with pytest.raises(Refused) as caught:
        ce.simulate(JOB, three_sites(), policy=ALONE_ONLY | {"shared_objects": shared_objects})
    assert caught.value.rule == "shared_objects"
    for words in ("other sites hold every object", 'shared_objects = "totals" in policy.toml', "docs/threat-model.md"):
        assert words in str(caught.value)
    assert ('use a sealed job (model = "pairs")' in str(caught.value)) == proposes


def test_too_few_objects_beside_the_shared_ones_are_refused_and_both_rules_are_named() -> None:
    for keys, rule in (
        ({"min_objects": 21}, "min_sites"),
        ({"min_objects": 19, "below_minimum": "refuse"}, "min_objects"),
    ):
        with pytest.raises(Refused) as caught:
            ce.simulate(JOB, two_sites(), policy=ALONE_ONLY | keys)
        assert caught.value.rule == rule
        assert "10 objects that other sites hold too were left out before, by the rule shared_objects" in str(
            caught.value
        )
        assert str(caught.value).endswith(f"(rule: {rule})")


def test_an_object_that_one_site_leaves_out_belongs_to_the_other() -> None:
    tables = two_sites()
    policies = {"north": Policy.of(ALONE_ONLY), "south": Policy.of(LAX)}
    steps = BCE(3, n_init=1, max_iter=5).steps()
    result = local_run.run(steps, tables, {site: SeededStarts(1) for site in tables}, policies=policies)
    assert {site: [(e.rule, e.objects) for e in out] for site, out in result.excluded.items()} == {
        "north": [("shared_objects", 10)]
    }
    assert not any(block.shared for block in result.topology.blocks)
    assert result.topology.sizes.objects == tables["south"].n_objects + 20
    assert [int(rows.sum()) for rows in result.participating.values()] == [20, tables["south"].n_objects]


@pytest.mark.promise("Objects and columns below a minimum are left out, listed, and scored at their own site.")
@pytest.mark.parametrize("privacy", ["masked", "blind"])
def test_a_site_shares_columns_with_one_set_of_sites_where_the_coordinator_sends_parameters(privacy: str) -> None:
    """North shares w with east and south, and y with two others. In blind the coordinator sends no parameters."""
    rng = np.random.default_rng(4)
    held = {"east": "w", "north": "wy", "south": "w", "upper": "y", "west": "y"}
    tables = {
        site: LabelTable.from_arrays(
            rng.integers(0, 2, (40, len(names) + 1)), ids=[f"{site}{i}" for i in range(40)], columns=[*names, site]
        )
        for site, names in held.items()
    }
    result = ce.simulate(ce.Job(clusters=2, restarts=1, max_iterations=3), tables, policy={}, privacy=privacy)
    found = [(e.site, e.rule, e.columns) for e in result.excluded]
    lost = [("north", "one set of holders", ("y",)), ("upper", "min_sites", ("y",)), ("west", "min_sites", ("y",))]
    assert found == (lost if privacy == "masked" else [])


def test_rules_may_stand_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        'weakest_privacy = "plain"\nmin_sites = 1\nmin_objects = 11\nmin_foreign_columns = 0\nmin_classifiers = 0\n'
        'shared_objects = "totals"\n'
    )
    asked = {"min_objects": 11}
    assert_same_bits(ce.simulate(JOB, two_sites(), policy=str(path)), ce.simulate(JOB, two_sites(), policy=LAX | asked))


def test_randomised_labels_are_the_same_every_time_and_not_the_true_ones() -> None:
    tables = two_sites()
    first, again, true = (
        ce.simulate(JOB, tables, policy=LAX | {"randomise": p}, secrets=SECRETS) for p in (0.3, 0.3, 0.0)
    )
    assert_same_bits(first, again)
    assert first.bound_path[0] != true.bound_path[0]
    assert_same_bits(true, ce.simulate(JOB, tables, secrets=SECRETS))


def test_a_simulation_says_the_epsilon_of_labels_and_rows_and_takes_the_categories_that_sites_declare() -> None:
    tables = two_sites()
    noisy = LAX | {"randomise": 0.5}
    used: dict[str, set[Any]] = {}
    for own in tables.values():
        for column in own.columns:
            used.setdefault(column.name, set()).update(column.categories)
    without = ce.simulate(JOB, tables, policy=noisy, secrets=SECRETS)
    assert_same_bits(without, ce.simulate(JOB, tables, policy=noisy, secrets=SECRETS, categories=used))
    for site, own in tables.items():
        expected = {column.name: math.log(1 + len(used[column.name])) for column in own.columns}
        assert without.epsilon[site] == pytest.approx(expected)
        assert without.epsilon_row[site] == pytest.approx(sum(expected.values()))
    one = ce.simulate(JOB, tables, policy=noisy | {"randomise_columns": 1}, secrets=SECRETS)
    assert {site: max(own.values()) for site, own in one.epsilon.items()} == one.epsilon_row
    some = dict(list(used.items())[1:])
    with pytest.raises(Refused, match="are not declared") as refused:
        ce.simulate(JOB, tables, policy=noisy, categories=some)
    assert refused.value.rule == "declared categories"
    name, categories = next(iter(used.items()))
    with pytest.raises(InputError, match="not among its declared categories"):
        ce.simulate(JOB, tables, categories={name: sorted(categories)[1:]})
    with pytest.raises(InputError, match="no table has the column 'other'"):
        ce.simulate(JOB, tables, categories={"other": [1]})
