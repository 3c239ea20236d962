"""Sealed jobs through real processes: the labels of one machine, and daemons that are killed on the way."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator

import numpy as np
import pytest
from support.commands import Run, run_fixture  # noqa: F401 (a fixture)
from support.processes import Deployment

import ce
from ce_proto.v1 import operator_pb2 as pb

SITES = ("east", "north", "west")
#: Who holds the objects whose names begin so: 150 of each.
HOLDERS = {"a": SITES, "b": ("east", "north"), "c": ("north", "west"), "d": ("west",)}
SECRETS = {site: hashlib.sha256(site.encode()).digest() for site in SITES}
K = 3


@pytest.fixture(scope="module", name="deployment")
def _deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("deployment"), SITES, SECRETS, metrics=True) as deployment:
        yield deployment


def prepare(deployment: Deployment, job: str) -> None:
    """Objects of this job alone: a site labels an object once. One label in five is wrong, one in twenty is missing."""
    rng = np.random.default_rng(0)
    truth = {f"{kind}-{job}-{i}": int(rng.integers(0, K)) for kind in HOLDERS for i in range(150)}
    for site in SITES:
        ids = [name for name in truth if site in HOLDERS[name[0]]]
        cells = np.repeat(np.array([[truth[name]] for name in ids]), 2, axis=1)
        cells = np.where(rng.random(cells.shape) < 0.2, rng.integers(0, K, cells.shape), cells)
        cells[:, 1] = np.where(rng.random(len(cells)) < 0.1, -1, cells[:, 1])
        table = ce.LabelTable.from_arrays(cells, ids=ids, columns=[f"{site}{j}" for j in range(2)])
        deployment.write_labels(site, table)


def job_of(name: str, **keys: object) -> ce.Job:
    asked: dict[str, object] = {"model": "pairs", "clusters": K, "sites": SITES, "epsilon": 50.0, **keys}
    return ce.Job(name=name, **asked)  # type: ignore[arg-type]


def labels(deployment: Deployment, job: str) -> dict[str, dict[str, str]]:
    found = {}
    for site in SITES:
        ids, own, _ = deployment.consensus(site, job)
        found[site] = dict(zip(ids, own, strict=True))
    return found


def agreement(found: dict[str, dict[str, str]]) -> None:
    """Members of a block have the same labels, and every object has one."""
    for name in found["north"]:
        assert len({by_object[name] for by_object in found.values() if name in by_object}) == 1, name
    assert all(label for by_object in found.values() for label in by_object.values())


def test_without_noise_real_processes_give_the_labels_of_one_machine(deployment: Deployment, run: Run) -> None:
    prepare(deployment, "exact")
    job = job_of("exact", epsilon="exact", collusion=0)
    status = deployment.run(job)
    assert status.state == "done", status.reason
    assert (status.privacy, status.epoch) == ("sealed", 1)
    known = {site: ce.LabelTable.from_csv(deployment.directory / f"{site}.csv") for site in SITES}
    simulated = ce.simulate(job, known, secrets=SECRETS)
    found = labels(deployment, "exact")
    agreement(found)
    for site in SITES:
        own = simulated.sites[site]
        assert found[site] == dict(zip(own.ids.tolist(), map(str, own.labels.tolist()), strict=True))
    report = deployment.result("exact")
    assert (report["clusters"], report["noise_sd"], report["sizes"]) == (K, 0.0, None)
    counted = deployment.scrape("hub")
    assert counted["ce_coordinator_jobs_ended_total{model=pairs}{privacy=sealed}{state=done}"] == 1
    shown = run("ce-coordinator", "result", "exact", "--out", deployment.directory, "--config", deployment.hub)
    assert "3 clusters from pair tables, without noise; only the sites know labels and sizes" in shown.out


def test_operators_see_warnings_of_a_job(deployment: Deployment, run: Run) -> None:
    """More noise than objects: the job is done, and says what that means."""
    prepare(deployment, "noisy")
    status = deployment.run(job_of("noisy", epsilon=0.1))
    assert status.state == "done", status.reason
    assert "the noise of this job is large for its tables" in " ".join(status.warnings)
    shown = run("ce-coordinator", "show", "noisy", "--config", deployment.hub)
    assert "the noise of this job" in " ".join(shown.out.split())
    assert "pairs, sealed job" in shown.out
    written = run("ce-coordinator", "show", "noisy", "--config", deployment.hub, "--format", "json").json
    assert len(written["warnings"]) == 1
    assert "large for its tables" in deployment.result("noisy")["warnings"][0]


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["seeding", "products", "opening", "scoring"])
@pytest.mark.parametrize("who", ["west", "hub"])
def test_a_daemon_that_is_killed_costs_an_attempt(deployment: Deployment, who: str, phase: str) -> None:
    name = f"killed-{who}-{phase}"
    prepare(deployment, name)
    deployment.submit(job_of(name))
    status = deployment.watch_until(name, lambda status: status.phase == phase or bool(status.exit_code))
    if status.phase == phase:  # else it was faster than we
        deployment.processes[who].stop(signal.SIGKILL)
        deployment.start(who)
    ended: pb.JobStatus = deployment.wait(name)
    assert (ended.state, ended.reason) == ("done", "")
    agreement(labels(deployment, name))
