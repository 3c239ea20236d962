"""Sealed jobs over real daemons that are killed: one release, charged once, labels that pooling gives."""

from __future__ import annotations

import csv
import hashlib
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cryptography.x509 import load_pem_x509_certificate
from support.processes import Deployment
from support.schedules import SITES, sealed_job, sealed_tables

import ce
from ce.labels import Column
from ce_client.state.ledger import FILE_NAME as LEDGER
from ce_client.state.ledger import entries, verify
from ce_client.state.releases.store import Releases
from ce_proto.v1 import operator_pb2 as pb

pytestmark = pytest.mark.slow

SECRETS = {site: hashlib.sha256(site.encode()).digest() for site in SITES}
KILLS = int(os.environ.get("CE_FAULT_KILLS", "12"))
PATIENCE_S = 120.0
#: Objects of the test, many times over: so that the job takes long enough to be killed anywhere.
COPIES = 100


@pytest.fixture(scope="module", name="deployment")
def _deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("deployment"), SITES, SECRETS) as deployment:
        yield deployment


def write_all_labels(deployment: Deployment, job: str) -> None:
    """The same labels for each job, of other objects: each object is labelled once."""
    for site, table in sealed_tables().items():
        ids = np.array([f"{job}/{id_}-{copy}" for copy in range(COPIES) for id_ in table.ids])
        columns = []
        for column in table.columns:
            assert column.codes is not None
            columns.append(Column(column.name, column.kind, column.categories, np.tile(column.codes, COPIES), None))
        deployment.write_labels(site, ce.LabelTable(ids, tuple(columns)))


def over(status: pb.JobStatus) -> bool:
    return status.state in ("done", "failed", "cancelled")


def labels_of(deployment: Deployment, job: str) -> dict[str, str]:
    """The label of each object, the same at all sites that hold it."""
    found: dict[str, str] = {}
    for site in SITES:
        path = deployment.directory / site / "results" / job / "consensus.csv"
        if not path.exists():  # else it was killed after it had heard of the end
            deployment.processes[site].wait_for("job over", job=job, state="done")
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == COPIES * sealed_tables()[site].n_objects
        for row in rows:
            assert found.setdefault(row["id"].removeprefix(f"{job}/"), row["label"]) == row["label"]
    return found


def assert_charged_once(deployment: Deployment, job: str) -> None:
    for site in SITES:
        state = deployment.directory / site / "state"
        lines = [line for line in entries(state / LEDGER) if line.get("job") == job]
        for kind in ("charge", "release", "model"):
            assert len({(line["sha256"], line.get("epoch")) for line in lines if line["kind"] == kind}) == 1
        charged = [one for one, _ in Releases(state).budget(1e-6).jobs if one.job == job]
        assert [(one.state, len(one.objects)) for one in charged] == [
            ("opening", COPIES * sealed_tables()[site].n_objects)
        ]


def turned(labels: dict[str, str]) -> dict[str, str]:
    """The same two clusters, counted in the other order: where a fit begins follows from the job's name."""
    return {id_: {"0": "1", "1": "0", "": ""}[label] for id_, label in labels.items()}


@pytest.mark.promise("kill -9 of any process at any moment ends with the same bits.")
def test_whoever_is_killed_whenever_there_is_one_release(deployment: Deployment, record_property: Any) -> None:
    """Exact tables: every job has the labels of the first, which nobody disturbs."""
    plan = random.Random(f"sealed {KILLS}")
    write_all_labels(deployment, "undisturbed")
    undisturbed = deployment.run(sealed_job("exact", "undisturbed"), PATIENCE_S)
    assert undisturbed.state == "done", undisturbed.reason
    expected = labels_of(deployment, "undisturbed")
    assert {*expected.values()} >= {"0", "1"}
    kills = number = attempts = 0
    while kills < KILLS:
        number += 1
        job = sealed_job("exact", f"killed-{number}")
        write_all_labels(deployment, job.name)
        deployment.submit(job)
        for _ in range(plan.randint(1, 3)):
            moment = plan.randint(0, undisturbed.exchanges)
            deployment.watch_until(job.name, lambda status, moment=moment: over(status) or status.exchanges >= moment)
            victims = plan.choice(
                [("hub",), (plan.choice(SITES),), ("hub", plan.choice(SITES)), SITES, ("hub", *SITES)]
            )
            for victim in victims:
                deployment.processes[victim].stop(signal.SIGKILL)
                kills += 1
            for victim in victims:
                deployment.start(victim)
        status = deployment.wait(job.name, PATIENCE_S)
        assert status.state == "done", status.reason
        attempts += status.epoch
        assert labels_of(deployment, job.name) in (expected, turned(expected))
        assert_charged_once(deployment, job.name)
    record_property("kills", kills)
    record_property("jobs", number)
    record_property("attempts", attempts)
    assert attempts > number
    for settings in deployment.sites.values():
        certificate = load_pem_x509_certificate((settings.key.parent / "site.pem").read_bytes())
        assert verify(settings.state / LEDGER, certificate).ok
