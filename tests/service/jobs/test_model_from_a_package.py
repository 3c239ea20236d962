"""A model of another package, found through the entry-point group `ce.models`: everything runs it as its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.model_packages import install_example
from support.problems import problem
from support.processes import FORKED, Deployment

import ce
from ce.capacity import Size
from ce.declarations.registry import look_again
from ce.errors import ConfigError
from ce.splits import split
from ce.testing import PERMISSIVE

#: Without the package.
_PATH = os.environ.get("PYTHONPATH", "")
MODEL = "hard_mixture"
K = 3
SITES = ("north", "east", "south")
SECRETS = {site: hashlib.sha256(site.encode()).digest() for site in SITES}


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as changes:
        install_example(tmp_path / "packages", changes)
        yield
    look_again()


def pooled() -> ce.LabelTable:
    return problem(7, k=K, clusterings=6, missing=0.2, n=60).table


def test_fit_gives_a_consensus_whose_bound_never_falls() -> None:
    fitted = ce.models.estimator_of(MODEL)(K, random_state=0).fit(pooled())
    assert fitted.converged_
    assert (np.diff(fitted.bound_path_) >= -1e-9 * abs(fitted.lower_bound_)).all()
    assert set(np.unique(fitted.memberships_)) == {0.0, 1.0}
    assert fitted.weights_.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("privacy", ["masked", "blind"])
@pytest.mark.parametrize(("how", "layout"), [("rows:3", "row"), ("columns:3", "column"), ("blocks:3", "arbitrary")])
def test_simulated_sites_give_the_bits_of_one_machine(how: str, layout: str, privacy: str) -> None:
    table = pooled()
    job = ce.Job(model=MODEL, clusters=K, restarts=3, seed=4)
    fitted = ce.models.estimator_of(MODEL)(K, n_init=3, random_state=4).fit(table)
    simulated = ce.simulate(job, split(table, how, 0), privacy=privacy)
    assert (simulated.layout, simulated.lower_bound) == (layout, fitted.lower_bound_)
    np.testing.assert_array_equal(simulated.parameters["weights"], fitted.weights_)
    expected = dict(zip(table.ids.tolist(), fitted.memberships_, strict=True))
    for site in simulated.sites.values():
        for id_, memberships in zip(site.ids.tolist(), site.memberships, strict=True):
            np.testing.assert_array_equal(memberships, expected[id_])


def test_the_command_fits_it(tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("id,a,b\n" + "".join(f"{i},{i % 2},{i % 2}\n" for i in range(12)))
    arguments = ["fit", str(labels), "--clusters", "2", "--model", MODEL, "--format", "json"]
    found = subprocess.run(
        [sys.executable, "-m", "ce.cli.main", *arguments], capture_output=True, text=True, check=True
    )
    assert json.loads(found.stdout)["sizes"] == {"0": 6, "1": 6}


def test_what_it_does_not_declare_cannot_be_planned() -> None:
    with pytest.raises(ConfigError, match=f"model {MODEL} does not declare what a job of it takes"):
        Size(sites=3, objects=60, shared=0, columns=6, shared_columns=6, categories=4, clusters=K, model=MODEL)


def test_three_daemons_run_it_and_a_site_without_it_refuses_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Processes of their own from the first instruction on: forked ones have the path of the one that they come from.
    monkeypatch.delenv(FORKED, raising=False)
    tables = dict(zip(SITES, split(pooled(), "blocks:3", 0).values(), strict=True))
    deployment = Deployment(tmp_path, SITES, SECRETS)
    for site, table in tables.items():
        deployment.write_labels(site, table)
        (tmp_path / site / "policy.toml").write_text(f'{PERMISSIVE}models = ["{MODEL}"]\n')
    with deployment:
        job = ce.Job(name="packaged", model=MODEL, clusters=K, restarts=2, sites=SITES, privacy="masked")
        status = deployment.run(job)
        assert (status.state, status.reason, status.layout) == ("done", "", "arbitrary")
        read = {site: ce.LabelTable.from_csv(tmp_path / f"{site}.csv") for site in SITES}
        simulated = ce.simulate(job, read, secrets=SECRETS)
        for site in SITES:
            ids, _, memberships = deployment.consensus(site, job.name)
            assert ids == simulated.sites[site].ids.tolist()
            np.testing.assert_array_equal(memberships, simulated.sites[site].memberships)
        assert deployment.result(job.name)["parameters"] == {"weights": simulated.parameters["weights"].tolist()}

        deployment.processes["south"].stop()
        (tmp_path / "south" / "policy.toml").write_text(PERMISSIVE)
        deployment.start("south", {"PYTHONPATH": _PATH}).wait_for("connected")
        again = deployment.run(ce.Job(name="again", model=MODEL, clusters=K, sites=SITES))
        assert again.state == "failed"
        assert f"model {MODEL} is not installed here" in again.reason
