"""Categories of shared columns: those that too few sites have take no part, and nobody is told of them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ce
from ce.errors import Refused
from ce.labels import Column, LabelTable
from ce.policy import Policy
from ce.privacy.pseudonyms import tokens
from ce.protocol.engine.starting_parameters import job_key
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.topology.vocabularies import Enough, Wishes, agree, agreed, counting, restricted
from ce.testing import FrameByFrame, make_sites
from ce.transport.array_chunks import Collector
from ce_proto.v1 import site_pb2 as pb

SITES = ("east", "north", "west")
SECRETS = {site: hashlib.sha256(site.encode()).digest() for site in SITES}
#: Of each site, how many labels it has of each category of the shared column.
COUNTS = {
    "east": {"a": 9, "b": 8, "c": 3, "d": 0},
    "north": {"a": 9, "b": 8, "c": 3, "d": 6},  # "d" is north's alone
    "west": {"a": 9, "b": 8, "c": 4, "d": 0},
}
POLICY = {
    "weakest_privacy": "plain",
    "min_sites": 3,
    "min_objects": 12,
    "min_foreign_columns": 0,
    "min_classifiers": 0,
    "min_cluster": 1,
    "shared_objects": "totals",
}


def tables() -> dict[str, LabelTable]:
    """Objects of one site each; a column that all share and one of each site's own."""
    rng = np.random.default_rng(4)
    found = {}
    for site, counts in COUNTS.items():
        shared = rng.permutation([name for name, count in counts.items() for _ in range(count)])
        own = rng.choice(list("xyz"), len(shared))
        cells = np.column_stack([shared, own])
        ids = [f"{site}{i}" for i in range(len(shared))]
        found[site] = LabelTable.from_arrays(cells, ids=ids, columns=["shared", f"own{site}"])
    return found


def job(privacy: str, model: str = "bce") -> ce.Job:
    return ce.Job(name="rare", model=model, clusters=2, restarts=2, max_iterations=6, privacy=privacy, sites=SITES)


# The rule.


def test_what_is_enough() -> None:
    assert Enough.of([Wishes(3, 20), Wishes(2, 10)]) == Enough(7, 3)
    assert Enough.of([Wishes(2, 1), Wishes(1, 30)]) == Enough(100, 2), "no step between 20 and 100"
    assert Enough.of([Wishes(3, 20), Wishes(20, 20)]) == Enough(7, 20), "a peer cannot lower what this site asks for"
    assert Enough.of([Wishes(), Wishes()]) == Enough(0, 1), "no rule"
    for wishes in (Wishes(3, 20), Wishes(4, 21), Wishes(1, 5)):
        enough = Enough.of([wishes])
        assert enough.labels * enough.holders >= wishes.min_objects


def test_a_category_takes_part_where_it_counts_at_enough_holders() -> None:
    enough = Enough(4, 2)
    column = tables()["west"].column("shared")
    assert counting(column, column.categories, enough) == ("a", "b", "c")
    assert agreed([("a", "b", "c"), ("a", "d"), ("b",)], enough) == ("a", "b")
    shared = agree(tables(), dict.fromkeys(SITES, Wishes(3, 12)), None)
    assert shared == {"shared": ("a", "b")}
    assert agree(tables(), dict.fromkeys(SITES, Wishes()), None) == {"shared": ("a", "b", "c", "d")}


def test_soft_labels_count_for_their_likeliest_category_and_are_scaled() -> None:
    probabilities = np.array([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [np.nan] * 3, [0.5, 0.5, 0.0]])
    column = Column("c", "clustering", ("x", "y", "z"), None, probabilities)
    assert counting(column, column.categories, Enough(2, 1)) == ("x",)
    left = restricted(column, column.categories, ("x", "y"))
    np.testing.assert_allclose(left.probabilities, [[2 / 3, 1 / 3, 0], [np.nan] * 3, [np.nan] * 3, [0.5, 0.5, 0]])
    assert left.recode(("x", "y")).observed.tolist() == [True, False, False, True]
    assert restricted(column, column.categories, ("x", "y", "z")) is column


# In a simulation.


@pytest.mark.promise("The total of a category that one site alone has never leaves that site.")
@pytest.mark.parametrize("secrets", [None, SECRETS], ids=["seeded", "secret"])
@pytest.mark.parametrize("model", ["bce", "mixture"])
def test_labels_of_rare_categories_are_missing_in_a_simulation(model: str, secrets: dict[str, bytes] | None) -> None:
    result = ce.simulate(job("plain", model), tables(), policy=POLICY, secrets=secrets)
    assert result.parameters["beta"]["shared"].shape == (2, 2)
    assert [(e.site, e.rule, e.objects, e.columns, e.labels) for e in result.excluded] == [
        ("east", "rare categories", 0, (), 3),
        ("north", "rare categories", 0, (), 9),
        ("west", "rare categories", 0, (), 4),
    ]
    # As if they had been missing from the beginning.
    expected = ce.simulate(job("plain", model), without_rare(), secrets=secrets)
    assert result.bound_path.tobytes() == expected.bound_path.tobytes()
    for site in SITES:
        assert result.sites[site].memberships.tobytes() == expected.sites[site].memberships.tobytes()
        assert result.sites[site].labels.tolist() == expected.sites[site].labels.tolist()


def without_rare() -> dict[str, LabelTable]:
    """Tables in which labels other than a and b are missing."""
    found = {}
    for site, table in tables().items():
        column = table.column("shared")
        assert column.codes is not None
        assert column.categories[:2] == ("a", "b")
        codes = np.where(column.codes < 2, column.codes, -1).astype(np.int32)
        shared = replace(column, categories=("a", "b"), codes=codes)
        found[site] = replace(table, columns=(shared, *table.columns[1:]))
    return found


def test_a_permissive_policy_leaves_every_label() -> None:
    free, ruled = (ce.simulate(job("masked"), tables(), policy=p) for p in (None, Policy.permissive()))
    assert ruled.excluded == ()
    assert free.bound_path.tobytes() == ruled.bound_path.tobytes()


def test_a_column_in_which_no_category_takes_part_is_left_out() -> None:
    result = ce.simulate(job("plain"), tables(), policy=POLICY | {"min_objects": 20, "min_sites": 2})
    assert "shared" not in result.parameters["beta"]
    assert [(e.site, e.rule, e.columns) for e in result.excluded] == [
        (site, "rare categories", ("shared",)) for site in SITES
    ]


def test_a_site_that_leaves_nothing_out_refuses() -> None:
    with pytest.raises(Refused) as caught:
        ce.simulate(job("plain"), tables(), policy=POLICY | {"below_minimum": "refuse"})
    assert caught.value.rule == "rare categories"


# Between daemons.


@pytest.mark.promise("The total of a category that one site alone has never leaves that site.")
@pytest.mark.parametrize("privacy", ["plain", "masked", "blind"])
def test_the_total_of_a_category_of_one_site_never_reaches_the_coordinator(tmp_path: Path, privacy: str) -> None:
    policy = "".join(f"{key} = {json.dumps(value)}\n" for key, value in POLICY.items())
    table = FrameByFrame(make_sites(tmp_path, tables(), SECRETS, policy=policy))
    table.connect()
    table.submit(job(privacy).definition())
    table.run()
    record = table.machine.records["rare"]
    assert (record.state, record.reason) == ("done", "")
    assert widths(table, "columns/") == {2}
    key = job_key(SECRETS["east"], job(privacy).disclosure_digest)
    wire = b"".join(table.up_recording)
    assert not any(bytes.fromhex(token) in wire for token in tokens(key, "shared", ("a", "b", "c", "d")))
    if privacy != "blind":
        assert json.loads(record.result)["beta"]["shared"]["categories"] == 2
    told = {(e["site"], e["rule"]): e["labels"] for e in json.loads(record.result)["excluded"]}
    assert told == {("east", "rare categories"): 3, ("north", "rare categories"): 9, ("west", "rare categories"): 4}
    expected = ce.simulate(job(privacy), tables(), policy=POLICY, secrets=SECRETS)
    for site, labels in (("east", 3), ("north", 9), ("west", 4)):
        report = json.loads((tmp_path / site / "results" / "rare" / "report.json").read_text())
        assert report["excluded"] == [{"rule": "rare categories", "objects": 0, "columns": [], "labels": labels}]
        rows = np.genfromtxt(tmp_path / site / "results" / "rare" / "consensus.csv", delimiter=",", skip_header=1)
        np.testing.assert_array_equal(rows[:, -2:], expected.sites[site].memberships)


def widths(table: FrameByFrame, prefix: str) -> set[int]:
    """The last side of all arrays of this kind that came up."""
    found = set()
    for data in table.up_recording:
        frame = pb.SiteFrame.FromString(data)
        if frame.WhichOneof("frame") == "answer":
            collector = Collector(2**24)
            assert collector.feed(frame.answer.chunks)
            found |= {
                array.shape[-1]
                for name, array in collector.arrays.items()
                if name.startswith(prefix) and not ArrayName(name).is_mac
            }
    return found
