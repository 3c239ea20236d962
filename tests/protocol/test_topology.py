"""Who holds what, and what is refused before any round runs."""

from __future__ import annotations

import numpy as np
import pytest

from ce.errors import Refused
from ce.job import Job
from ce.labels import Column, LabelTable
from ce.models import BCE
from ce.protocol.engine.starting_parameters import SecretStarts, SeededStarts
from ce.protocol.local_run import Run, run
from ce.protocol.messages.steps import AskedArrays, Step, expected_arrays
from ce.protocol.topology.enrolment import enrol
from ce.protocol.topology.topology import Topology, align
from ce.simulation import simulate

SECRET = "object-that-nobody-may-see"


def table(ids: list[str], **columns: list[int] | list[str]) -> LabelTable:
    values = np.array([list(row) for row in zip(*columns.values(), strict=True)], dtype=object)
    return LabelTable.from_arrays(values, ids=ids, columns=list(columns))


def topology(**tables: LabelTable) -> Topology:
    return align({site: enrol(t, votes=True) for site, t in tables.items()})[0]


def test_blocks_are_the_objects_of_the_same_holders() -> None:
    found = topology(
        north=table(["1", "2", "3", "4"], a=[0, 1, 0, 1]),
        south=table(["3", "4", "5"], b=[0, 1, 0]),
        west=table(["4", "6"], c=[0, 1]),
    )
    assert {(b.members, b.size) for b in found.blocks} == {
        (("north",), 2),
        (("north", "south"), 1),
        (("north", "south", "west"), 1),
        (("south",), 1),
        (("west",), 1),
    }
    assert found.sizes.objects == 6
    assert found.layout == "arbitrary"


def test_members_share_the_order_of_a_block() -> None:
    tables = {
        "north": table(["9", "2", "5"], a=[0, 1, 0]),
        "south": table(["5", "9", "2"], b=[0, 1, 0]),
    }
    _, rows = align({site: enrol(t, votes=True) for site, t in tables.items()})
    orders = [[str(tables[site].ids[r]) for r in rows[site][0]] for site in tables]
    assert orders[0] == orders[1]


@pytest.mark.parametrize(
    ("tables", "layout"),
    [
        ({"north": table(["1", "2"], a=[0, 1])}, "one"),
        ({"north": table(["1"], a=[0]), "south": table(["2"], a=[1])}, "row"),
        ({"north": table(["1", "2"], a=[0, 1]), "south": table(["2", "1"], b=[1, 0])}, "column"),
        ({"north": table(["1", "2"], a=[0, 1]), "south": table(["2", "3"], b=[1, 0])}, "arbitrary"),
        ({"north": table(["1"], a=[0]), "south": table(["2"], b=[1])}, "arbitrary"),
    ],
)
def test_the_layout_follows_from_what_sites_hold(tables: dict[str, LabelTable], layout: str) -> None:
    assert topology(**tables).layout == layout


def test_categories_of_a_shared_column_are_the_union() -> None:
    found = topology(north=table(["1", "2"], a=[3, 1]), south=table(["4", "5"], a=[2, 3]))
    assert found.columns[0].categories == (1, 2, 3)


def fit(**tables: LabelTable) -> Run:
    return run(BCE(2, n_init=1, max_iter=2).steps(), tables, {site: SeededStarts(0) for site in tables})


def test_a_cell_at_two_sites_is_refused_by_rule_without_naming_the_object() -> None:
    with pytest.raises(Refused) as caught:
        fit(
            north=table(["1", SECRET, "3"], a=[0, 1, 0]),
            south=table([SECRET, "3", "8"], a=[1, -1, 0]),
        )
    assert caught.value.rule == "overlapping cells"
    for part in ("'a'", "north", "south", "south: 1;"):
        assert part in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.promise("A distributed run gives the same bits as one site with all labels, for any topology.")
def test_a_shared_column_may_be_completed_by_another_site() -> None:
    shared = fit(
        north=table(["1", "2", "3"], a=[0, 1, -1], b=[0, 0, 1]),
        south=table(["3", "8"], a=[1, 0]),
    )
    pooled = fit(here=table(["1", "2", "3", "8"], a=[0, 1, 1, 0], b=[0, 0, 1, -1])).sites["here"].memberships()
    np.testing.assert_array_equal(shared.sites["north"].memberships(), pooled[:3])
    np.testing.assert_array_equal(shared.sites["south"].memberships(), pooled[2:])


@pytest.mark.parametrize(
    ("theirs", "what"),
    [
        (LabelTable.from_arrays([["x"], ["y"]], ids=["7", "8"], columns=["a"]), "categories"),
        (LabelTable.from_arrays([[1], [0]], ids=["7", "8"], columns=["a"], classifiers=["a"]), "kind"),
        (
            LabelTable(
                np.array(["7", "8"]), (Column("a", "clustering", (0, 1), None, np.array([[0.5, 0.5], [1.0, 0.0]])),)
            ),
            "labels",
        ),
    ],
)
def test_clashing_columns_are_refused_by_name(theirs: LabelTable, what: str) -> None:
    with pytest.raises(Refused, match=f"'a' differs in its {what}.*north.*south") as caught:
        topology(north=table(["1", "2"], a=[0, 1]), south=theirs)
    assert caught.value.rule == "clashing column"


@pytest.mark.promise("No label, object id or secret is in a frame, a log, a store, a checkpoint or an error.")
def test_nothing_that_is_printed_shows_an_id_a_label_or_a_key() -> None:
    """What ends up in a log by accident: the repr of everything that holds labels or keys."""
    labels = LabelTable.from_arrays([["LABEL1"], ["LABEL2"]], ids=[SECRET, "2"], columns=["a"])
    claim = enrol(labels, votes=True)
    shape = topology(north=labels)
    result = simulate(Job(clusters=2, restarts=1, max_iterations=1), {"north": labels})
    secret = SecretStarts.of(b"KEY1" * 8, b"KEY2" * 8, b"job")
    printed = repr([labels, claim, shape, SeededStarts.of(0, [labels]), secret, result])
    for hidden in (SECRET, "LABEL1", "LABEL2", "KEY1", repr(secret.site_key)[2:-1], repr(secret.job_key)[2:-1]):
        assert hidden not in printed


def test_what_a_round_asks_for_follows_every_change() -> None:
    """It is made anew only when something has changed: whatever the round before was, it must not be that of before."""
    found = topology(
        east=table(["o1", "o2", "o3"], age=[0, 1, 1]),
        north=table(["o1", "o2", "o4"], rank=[0, 1, 0]),
        south=table(["o1", "o5", "o6"], age=[1, 1, 0]),
    )
    view = found.whole()
    model, other = (BCE(k, max_iter=2).steps() for k in (2, 3))
    scales = model.scales(view.sizes)
    steps: tuple[Step, ...] = ("open", "counts", "sums", "finish")
    rounds = [
        (step, which, scales, starts, iteration)
        for step in steps
        for which in (model, other)
        for starts in (1, 2)
        for iteration in (1, model.hold_iter + 1, 1000)
    ]
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(len(rounds)), 3)).tolist()
    for site in (None, "east", "south"):
        asked = AskedArrays(view, site)
        for at in order:
            expected = expected_arrays(rounds[at][0], view, *rounds[at][1:])
            if site is not None:
                expected = {name: own for name, own in expected.items() if site in name.contributors(view)}
            assert asked.of(*rounds[at]) == expected
            assert asked.of(*rounds[at]) is asked.of(*rounds[at])
