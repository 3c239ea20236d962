"""`ce.simulate` and `ce simulate` of sealed jobs: what rules leave out, and what is written of shared objects."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from support.sealed_jobs import SealedWorld, few_sites, sealed_job

import ce
from ce.cli.main import cli
from ce.errors import ConfigError, InputError, Refused
from ce.labels import LabelTable

OPEN = {
    "models": ["pairs"],
    "min_sites": 2,
    "min_objects": 5,
    "min_foreign_columns": 2,
    "weakest_privacy": "blind",
    "allow_exact": True,
}


def test_noise_that_cannot_be_drawn_is_found_before_anything_leaves() -> None:
    world = SealedWorld(sealed_job(2, 1e-6), few_sites())
    with pytest.raises(InputError, match=r"^epsilon: 1e-06 needs noise .* larger epsilon"):
        world.attempt()
    assert SealedWorld(sealed_job(2, 0.01), few_sites()).attempt().coordinator.open_round is not None


def test_objects_that_a_rule_leaves_out_are_scored_from_the_sites_own_labels() -> None:
    tables = few_sites(300, alone=100, columns=3)
    result = ce.simulate(sealed_job(3), tables, policy={**OPEN, "shared_objects": "exclude"})
    assert {(e.site, e.rule, e.objects) for e in result.excluded if e.rule == "shared_objects"} == {
        (site, "shared_objects", 300) for site in tables
    }
    for name, site in result.sites.items():
        assert np.isfinite(site.memberships).all()
        assert np.array_equal(site.labels[site.labels >= 0], site.memberships.argmax(axis=1)[site.labels >= 0])
        assert (site.labels == -1).sum() == (~tables[name].labelled).sum()


def test_exact_tables_need_a_policy_that_allows_them_and_enough_common_objects() -> None:
    with pytest.raises(Refused, match="rule: allow_exact"):
        ce.simulate(sealed_job(2), few_sites(), policy={**OPEN, "allow_exact": False})
    with pytest.raises(Refused, match="rule: exact tables"):
        ce.simulate(sealed_job(2), few_sites(), policy=OPEN)
    assert ce.simulate(sealed_job(2), few_sites(300, alone=100), policy=OPEN).objects_in_fit == 600


def test_modes_and_models_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="sealed is the mode of pairs"):
        ce.simulate(sealed_job(2), few_sites(), privacy="blind")
    with pytest.raises(ConfigError, match="sealed is the mode of pairs"):
        ce.simulate(ce.Job(clusters=2), few_sites(), privacy="sealed")
    with pytest.raises(InputError, match="names without spaces"):
        ce.simulate(sealed_job(2), {"a b": few_sites()["a"], "c": few_sites()["c"]})


def test_the_command_writes_labels_and_leaves_unknown_memberships_empty(tmp_path: Path) -> None:
    for name, table in few_sites().items():
        write(tmp_path / f"{name}.csv", table)
    files = [str(tmp_path / f"{name}.csv") for name in "abc"]
    options = ["--model", "pairs", "--clusters", "2", "--epsilon", "1", "--format", "json"]
    result = CliRunner().invoke(cli, ["simulate", *files, *options, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["privacy"] == "sealed"
    assert report["n_clusters"] == 2
    assert set(report["epsilon_spent"]) == {"a", "b", "c"}
    assert "larger epsilon" in report["noise_warning"]
    rows = list(csv.DictReader((tmp_path / "out" / "a.csv").read_text(encoding="utf-8").splitlines()))
    shared, alone = rows[:24], rows[24:]
    assert all(row["label"] in ("0", "1", "") and not row["confidence"] + row["p0"] + row["p1"] for row in shared)
    assert all(float(row["p0"]) + float(row["p1"]) == pytest.approx(1) for row in alone)


def write(path: Path, table: LabelTable) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *(column.name for column in table.columns)])
        for at, id_ in enumerate(table.ids):
            writer.writerow([id_, *(column.likeliest[at] for column in table.columns)])
