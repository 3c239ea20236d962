"""Jobs through real processes: the bits of a simulation with the same secrets, and of one machine with all labels."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.problems import CLASSES, TOPOLOGIES, deal, problem
from support.processes import Deployment

import ce
from ce.models.registry import model_of
from ce.privacy.pseudonyms import pseudonyms
from ce.protocol.engine.starting_parameters import GivenStarts, SecretStarts, job_key, object_weights
from ce.protocol.local_run import run
from ce.protocol.topology.enrolment import enrol
from ce.protocol.topology.topology import align
from ce.testing import write_labels
from ce_client.state.rosters import Rosters

SITES = tuple(f"site{s}" for s in range(4))
SECRETS = {site: hashlib.sha256(site.encode()).digest() for site in SITES}
K = 3


@pytest.fixture(scope="module", name="deployment")
def _deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("deployment"), SITES, SECRETS) as deployment:
        yield deployment


#: Every topology and every model in every mode: a Latin square.
MODES = {
    (topology, model): ("plain", "masked", "blind")[(row + column) % 3]
    for row, topology in enumerate(("rows", "columns", "ragged"))
    for column, model in enumerate(("bce", "bc3e", "mixture"))
}


def job_for(model: str, name: str, sites: tuple[str, ...], privacy: str = "masked", **keys: Any) -> ce.Job:
    asked = {"classes": CLASSES[:K]} if model == "bc3e" else {"clusters": K, "restarts": 2}
    return ce.Job(name=name, model=model, sites=sites, max_iterations=40, privacy=privacy, **asked, **keys)


@pytest.mark.promise("Every transport gives the same bits: in process, gRPC, real daemons.")
@pytest.mark.parametrize(
    ("topology", "model", "privacy", "precision"),
    [
        *((*which, mode, "double") for which, mode in MODES.items()),
        ("columns", "bce", "masked", "single"),
        ("ragged", "bce", "blind", "single"),
    ],
)
def test_real_processes_give_the_bits_of_one_machine(
    deployment: Deployment, topology: str, model: str, privacy: str, precision: str, tmp_path: Path
) -> None:
    pooled = problem(7, k=K, clusterings=6, classifiers=3 if model == "bc3e" else 0, missing=0.2, n=60).table
    owner = TOPOLOGIES[topology](pooled, len(SITES), np.random.default_rng(5))
    # Sites of the column layout list all objects, labelled or not.
    dealt = deal(pooled, owner, lists_all=topology == "columns")
    tables = {}
    for site, table in dealt.items():
        deployment.write_labels(site, table)
        tables[site] = ce.LabelTable.from_csv(deployment.directory / f"{site}.csv")
    # Without passes over the columns of one holder, which there are more of when all labels are in one place.
    alike = {} if topology == "columns" else {"local_loops": 1}
    job = job_for(model, f"{topology}-{model}-{precision}", tuple(tables), privacy, precision=precision, **alike)
    for settings in deployment.sites.values():  # sites without labels in one topology are in the roster of another
        Rosters(settings.state).allow(tables, job.name)

    status = deployment.run(job)
    assert (status.state, status.reason) == ("done", "")
    expected_layout = {"rows": "row", "columns": "column", "ragged": "arbitrary"}[topology]
    assert status.layout == expected_layout

    simulated = ce.simulate(job, tables, privacy="plain", secrets=SECRETS)
    for site in tables:
        ids, labels, memberships = deployment.consensus(site, job.name)
        own = simulated.sites[site]
        assert ids == own.ids.tolist()
        assert labels == ["" if label in (-1, "") else str(label) for label in own.labels.tolist()]
        np.testing.assert_array_equal(memberships, own.memberships)
    report = deployment.result(job.name)
    if privacy == "blind":  # nobody but the sites knows
        assert not report.keys() & {"bound_path", "lower_bound", "sizes", "parameters", "beta", "kappa", "iterations"}
        assert not status.bound_path
        site_reports = [
            json.loads(path.read_text()) for path in deployment.directory.glob(f"*/results/{job.name}/*.json")
        ]
        report = site_reports[0]
        assert len(site_reports) == len(tables)
        assert all(own["bound_path"] == report["bound_path"] for own in site_reports)
    else:
        assert sum(report["sizes"]) == len({own for table in tables.values() for own in table.ids})
    assert report["bound_path"] == simulated.bound_path.tolist()

    # All labels in one place, from the same start.
    write_labels(tmp_path / "pooled.csv", pooled)
    everything = ce.LabelTable.from_csv(tmp_path / "pooled.csv")
    steps, classes = model_of(job, [everything])
    key = job_key(SECRETS[min(tables)], job.disclosure_digest)
    shared, _ = align({s: enrol(t, steps.uses_votes, key) for s, t in tables.items()})
    drawn = {
        column.name: SecretStarts.of(SECRETS[column.holders[0]], key, job.disclosure_digest).beta(
            column, steps.n_starts, K
        )
        for column in shared.clusterings
    }
    # Shared objects begin where their pseudonyms say.
    weights = np.full((steps.n_starts, K, everything.n_objects), np.nan)
    shared_ids = [
        own for own, count in Counter(i for t in tables.values() for i in t.ids.tolist()).items() if count > 1
    ]
    position = {own: at for at, own in enumerate(everything.ids.tolist())}
    tokens = pseudonyms(key, shared_ids).view("V16").reshape(-1)
    weights[..., [position[own] for own in shared_ids]] = object_weights(tokens, steps.n_starts, K)
    given = {"weights": weights} if model == "bce" else None
    start = {"here": GivenStarts(drawn)}
    fitted = run(steps, {"here": everything}, start, classes=classes, job_key=key, given=given)
    assert fitted.outcome.paths[fitted.outcome.winner].bounds == report["bound_path"]
    central = fitted.sites["here"].memberships()
    for site, table in tables.items():
        np.testing.assert_array_equal(
            deployment.consensus(site, job.name)[2], central[[position[own] for own in table.ids.tolist()]]
        )


def test_several_jobs_at_a_time_over_the_same_sites(deployment: Deployment) -> None:
    pooled = problem(8, k=K, clusterings=6, missing=0.1, n=80).table
    tables = deal(pooled, TOPOLOGIES["ragged"](pooled, len(SITES), np.random.default_rng(1)))
    for site, table in tables.items():
        deployment.write_labels(site, table)
    jobs = [job_for(model, f"together-{model}-{at}", SITES) for at in range(3) for model in ("bce", "mixture")]
    for job in jobs:
        deployment.submit(job)
    for job in jobs:
        assert deployment.wait(job.name).state == "done"
    again = {site: ce.LabelTable.from_csv(deployment.directory / f"{site}.csv") for site in SITES}
    for job in jobs:
        simulated = ce.simulate(job, again, secrets=SECRETS)
        for site in SITES:
            np.testing.assert_array_equal(deployment.consensus(site, job.name)[2], simulated.sites[site].memberships)
