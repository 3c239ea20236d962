"""Operator and sites are told what is not in the fit, over real daemons with default policies: a bc3e job of 850
objects of which 450 take part, because three sites hold the other 400 together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import (
    Run,
    run_fixture,  # noqa: F401 (a fixture)
)
from support.processes import Deployment

import ce
from ce_client.state.ledger import FILE_NAME, entries

SITES = ("east", "north", "south")
CLASSES = ("high", "low", "middle")
SHARED, ALONE = 400, 150
SENTENCE = (
    "400 of 850 are not in the fit (shared_objects: 400 objects at east, 400 objects at north, 400 objects at south)"
)


def table(at: int, site: str) -> ce.LabelTable:
    """A clustering and a classifier of the site's own, over objects that all hold and objects of its own."""
    ids = [f"o{i}" for i in range(SHARED)] + [f"{site}{i}" for i in range(ALONE)]
    truth = np.append(np.random.default_rng(0).integers(0, 3, SHARED), np.random.default_rng(at).integers(0, 3, ALONE))
    cells = np.column_stack([truth, np.where(np.random.default_rng(9 + at).random(len(ids)) < 0.3, at % 3, truth)])
    labels = np.column_stack([cells[:, 0].astype(str), np.array(CLASSES)[cells[:, 1]]])
    return ce.LabelTable.from_arrays(labels, ids=ids, columns=[f"c_{site}", f"v_{site}"], classifiers=("v_*",))


@pytest.fixture(scope="module", name="deployment")
def _deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("deployment"), SITES)
    for at, site in enumerate(SITES):
        deployment.write_labels(site, table(at, site))
        (deployment.directory / site / "policy.toml").write_text("")  # every default
    with deployment:
        yield deployment


def excluded(*, site: str) -> dict[str, Any]:
    return {"site": site, "rule": "shared_objects", "objects": SHARED, "columns": 0, "labels": 0}


@pytest.mark.promise("Operator and sites are told how many objects take no part in the fit, and which rule says so.")
@pytest.mark.parametrize("privacy", ["masked", "blind"])
def test_everybody_is_told_that_400_of_850_objects_are_not_in_the_fit(
    deployment: Deployment, run: Run, privacy: str, tmp_path: Path
) -> None:
    job = f"votes-{privacy}"
    sites = ", ".join(f'"{site}"' for site in SITES)
    file = tmp_path / "job.toml"
    file.write_text(
        f'name = "{job}"\nmodel = "bc3e"\nclasses = {list(CLASSES)}\nsites = [{sites}]\nprivacy = "{privacy}"\n'
    )

    def operator(command: str, *arguments: object) -> Any:
        return run("ce-coordinator", command, *arguments, "--config", deployment.hub)

    watched = operator("submit", file, "--watch", "--token", job)
    assert watched.code == 0, watched.err
    assert f"objects {SENTENCE}" in watched.out.splitlines()[-2]
    assert f"objects: {SENTENCE}" in operator("submit", file, "--token", job).out
    deployment.processes["hub"].wait_for(
        "objects of the job", job=job, objects=850, objects_in_fit=450, rules="shared_objects"
    )
    for again in (False, True):
        assert SENTENCE in operator("show", job).out
        assert SENTENCE in operator("watch", job).out
        status = json.loads(operator("show", job, "--format", "json").out)
        assert (status["objects"], status["objects_in_fit"]) == (850, 450)
        assert status["excluded"] == [excluded(site=site) for site in SITES]
        fetched = operator("result", job, "--out", tmp_path)
        assert f"objects: {SENTENCE}" in fetched.out
        fetched = operator("result", job, "--out", tmp_path, "--format", "json")
        for result in (json.loads(fetched.out)["result"], json.loads((tmp_path / f"{job}.json").read_text())):
            assert (result["objects"], result["objects_in_fit"]) == (850, 450)
            assert result["excluded"] == [excluded(site=site) for site in SITES]
            assert ("kappa" in result) == (privacy == "masked")
        if not again and privacy == "blind":
            deployment.processes["hub"].stop()
            deployment.start("hub")
    for site in SITES:
        home = deployment.directory / site
        deployment.processes[site].wait_for(
            "job over", job=job, objects=550, objects_in_fit=150, rules="shared_objects"
        )
        report = json.loads((home / "results" / job / "report.json").read_text())
        assert (report["objects"], report["objects_in_fit"]) == (550, 150)
        assert report["excluded"] == [{"rule": "shared_objects", "objects": SHARED, "columns": [], "labels": 0}]
        shown = run("ce-client", "show", job, "--config", home).out
        assert "400 of 550 are not in the fit (shared_objects: 400 objects at this site)" in shown
        told = json.loads(run("ce-client", "show", job, "--config", home, "--format", "json").out)
        assert (told["objects"], told["objects_in_fit"]) == (550, 150)
        previewed = run("ce-client", "preview", job, "--config", home).out
        assert "shared_objects: they take no part in this job, and are labelled here afterwards" in previewed


@pytest.mark.promise("Nothing but masked sums leaves a site in masked, and nothing but random words in blind.")
def test_the_last_step_of_bc3e_sends_nothing_of_shared_objects_over_real_daemons(deployment: Deployment) -> None:
    """Sums under a flat message are linear in the labels: tests/protocol/test_clusterings_only.py reads them."""
    lax = 'shared_objects = "totals"\nmin_foreign_columns = 0\nmin_classifiers = 0\n'
    for site in SITES:
        (deployment.directory / site / "policy.toml").write_text(lax)
    job = ce.Job(name="opened", model="bc3e", classes=CLASSES, sites=SITES, privacy="masked")
    status = deployment.run(job)
    assert (status.state, status.reason, status.objects_in_fit) == ("done", "", 850)
    for site in SITES:
        deployment.processes[site].wait_for("job over", job=job.name, state="done")
        written = entries(deployment.directory / site / "state" / FILE_NAME)
        lines = [line for line in written if (line["kind"], line.get("job")) == ("contribution", job.name)]
        sent = {line["round"]: sorted(line["arrays"]) for line in lines}
        rounds = json.loads((deployment.directory / site / "results" / job.name / "report.json").read_text())["rounds"]
        assert any("block/0/sums" in names for names in sent.values())
        assert sent[rounds - 1] == ["global/agreement"]
        assert sent[rounds] == ["global/sizes"]
