"""A site's minimums in sealed jobs: what the tables and the winners would tell, and what is left out or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ce.errors import Refused
from ce.labels import LabelTable
from ce.policy import Policy
from ce.protocol.messages.array_names import EVERYTHING
from ce.protocol.minimums import Findings, SiteMinimums
from ce.protocol.topology.enrolment import enrol, with_private_objects
from ce.protocol.topology.topology import align
from ce.protocol.topology.vocabularies import Wishes, agree

SITES = ("east", "north", "south")


def table(site: str, objects: range, columns: int = 4, categories: int = 3) -> LabelTable:
    """Columns of its own, and objects that go by their numbers at every site."""
    rng = np.random.default_rng([len(site), columns])
    cells = rng.integers(0, categories, (len(objects), columns))
    cells[:categories] = np.arange(categories)[:, None]
    return LabelTable.from_arrays(
        cells, ids=[f"object {i}" for i in objects], columns=[f"{site}_{i}" for i in range(columns)]
    )


def check(
    tables: dict[str, LabelTable], site: str = "north", *, exact: bool = False, mode: str = "sealed", **rules: Any
) -> tuple[SiteMinimums, Findings]:
    policy = Policy(**rules)
    wishes = {name: Wishes.of(policy.min_sites, policy.min_objects) for name in tables}
    enrolments = {name: enrol(found, False) for name, found in tables.items()}
    topology, rows = align(enrolments, agree(tables, wishes, None))
    alone = {block.members[0]: block.size for block in topology.blocks if not block.shared}
    summaries = {name: enrolment.summary(wishes=wishes[name]) for name, enrolment in enrolments.items()}
    private = with_private_objects(summaries, {name: alone.get(name, 0) for name in tables})
    minimums = SiteMinimums(policy, mode, site, tables[site], exact=exact)
    return minimums, minimums.check(topology.view(site), private, rows[site])


def overlapping(columns: int = 4) -> dict[str, LabelTable]:
    """Blocks of one, two and three sites."""
    return {
        "east": table("east", range(60)),
        "north": table("north", range(30, 120), columns),
        "south": table("south", range(50, 150)),
    }


@pytest.mark.promise("Objects that several sites hold take no part in totals, unless the sites that hold them opt in.")
def test_shared_objects_take_part_in_sealed_jobs_by_default_and_in_no_total() -> None:
    tables = overlapping() | {"north": table("north", range(30, 200))}
    assert check(tables)[1].clean
    assert check(tables, shared_objects="totals")[1].clean
    minimums, findings = check(tables, mode="masked")
    minimums.leave_out(findings)
    assert [(one.rule, one.objects) for one in minimums.excluded] == [("shared_objects", 120)]


def test_a_site_that_excludes_them_leaves_them_out_of_sealed_jobs_too() -> None:
    tables = overlapping() | {"north": table("north", range(30, 200))}
    minimums, findings = check(tables, shared_objects="exclude")
    minimums.leave_out(findings)
    assert [(one.rule, one.objects) for one in minimums.excluded] == [("shared_objects", 120)]
    minimums, findings = check(overlapping(), shared_objects="exclude")
    with pytest.raises(Refused) as refused:
        minimums.leave_out(findings)
    assert refused.value.rule == "shared_objects"
    assert "sealed" not in str(refused.value)


def test_blocks_of_two_sites_take_part_and_small_blocks_too() -> None:
    """No total of a block is opened: tables are over all objects of all sites, with noise of all of them."""
    tables = overlapping() | {"north": table("north", range(58, 100))}  # two objects of all three sites
    assert check(tables)[1].clean


@pytest.mark.parametrize(("columns", "clean"), [(3, False), (4, True)])
def test_a_winner_that_two_sites_see_is_decided_by_enough_columns_of_this_one(columns: int, clean: bool) -> None:
    """The other site knows its own score and all parameters: what it learns is about this site's labels alone."""
    minimums, findings = check(overlapping(columns))
    assert findings.clean == clean
    if not clean:
        minimums.leave_out(findings)
        assert [(one.rule, one.required, one.found) for one in minimums.excluded] == [("min_foreign_columns", 4, 3)]
        # Of a block of three each other member sees columns of two sites.
        assert minimums.table.n_objects == 90 - 20 - 60
    # The columns of the other side protect the other side, which checks them itself.
    assert check({**overlapping(4), "south": table("south", range(50, 150), 1)})[1].clean


def test_columns_that_a_member_holds_too_hide_nothing_from_it() -> None:
    tables = overlapping()
    shared = {f"north_{i}": f"south_{i}" for i in range(2)}
    columns = [f"south_{i}" for i in range(4)]
    renamed = [name if name not in shared.values() else dict(zip(shared.values(), shared, strict=True))[name]
               for name in columns]  # fmt: skip
    south = table("south", range(50, 150))
    tables["south"] = LabelTable.from_arrays(
        np.column_stack([column.codes for column in south.columns]), ids=south.ids, columns=renamed
    )
    _, findings = check(tables, min_sites=2, min_objects=1)
    assert {check.rule for _, check in findings.broken} == {"min_foreign_columns"}
    assert {check.found for _, check in findings.broken} == {2}


def test_too_few_sites_with_enough_objects_refuse_the_whole_job() -> None:
    tables = overlapping() | {"east": table("east", range(19))}
    minimums, findings = check(tables)
    assert [(scope, check.rule, check.found) for scope, check in findings.broken] == [(EVERYTHING, "min_sites", 2)]
    with pytest.raises(Refused, match=r"2 sites with enough objects would be in the tables; .* requires 3"):
        minimums.leave_out(findings)


@pytest.mark.parametrize(("sites", "clean"), [(63, True), (64, False)])
def test_a_block_has_at_most_63_members(sites: int, clean: bool) -> None:
    tables = {f"site{at:02}": table(f"site{at:02}", range(25), 1, 2) for at in range(sites)}
    tables["site00"] = table("site00", range(50), 1, 2)
    minimums, findings = check(tables, "site00")
    assert findings.clean == clean
    if not clean:
        minimums.leave_out(findings)
        assert [(one.rule, one.objects) for one in minimums.excluded] == [("members of a block", 25)]


@pytest.mark.parametrize(
    ("tables", "broken"),
    [
        # 4 columns of 3 categories: 8 beside that of all ones, times 20.
        ({site: table(site, range(160)) for site in SITES}, set()),
        ({site: table(site, range(159)) for site in SITES}, {("everything", 160, 159)}),
        # South's labels and those of the objects that both hold.
        (
            {site: table(site, range(200)) for site in SITES} | {"south": table("south", range(41, 400))},
            {("block", 160, 159)},
        ),
    ],
    ids=["enough", "too few objects", "too few common objects"],
)
def test_exact_tables_have_few_categories_for_their_objects(
    tables: dict[str, LabelTable], broken: set[tuple[str, int, int]]
) -> None:
    minimums, findings = check(tables, exact=True, allow_exact=True)
    found = {("everything" if scope == EVERYTHING else "block", one.required, one.found)
             for scope, one in findings.broken if one.rule == "exact tables"}  # fmt: skip
    assert broken <= found
    assert bool(broken) == bool(found)
    assert check(tables)[1].clean
    if ("everything", 160, 159) in found:
        with pytest.raises(Refused, match="rule: exact tables"):
            minimums.leave_out(findings)
    elif found:
        minimums.leave_out(findings)
        assert {one.rule for one in minimums.excluded} == {"exact tables"}
        assert minimums.table.n_objects == 41


def test_a_site_that_refuses_what_is_below_refuses_the_job() -> None:
    minimums, findings = check(overlapping(3), below_minimum="refuse")
    with pytest.raises(Refused, match="3 clusterings would decide an object's label beside those of a site that sees"):
        minimums.leave_out(findings)


def test_rare_categories_of_shared_columns_are_missing_as_in_other_jobs() -> None:
    cells = np.array(([0] * 20 + [1] * 20) * 2 + [2])[:, None]
    tables = {
        site: LabelTable.from_arrays(cells[:80 + (site == "north")], columns=["common"],
                                     ids=[f"{site} {i}" for i in range(80 + (site == "north"))])
        for site in SITES
    }  # fmt: skip
    minimums, findings = check(tables)
    assert findings.clean
    assert [(one.rule, one.labels) for one in minimums.excluded] == [("rare categories", 1)]
