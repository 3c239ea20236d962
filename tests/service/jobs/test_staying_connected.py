"""Daemons that come and go: a job survives a restarted coordinator, a restarted site and a cut connection; daemons stop
promptly when told to; a site dials through an HTTP proxy.
"""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.problems import TOPOLOGIES, deal, problem
from support.processes import Deployment, free_port
from support.proxy import Proxy

import ce

SITES = tuple(f"site{s}" for s in range(3))
SECRETS = {site: hashlib.sha256(site.encode()).digest() for site in SITES}


@pytest.fixture(scope="module", name="shared")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("deployment"), SITES, SECRETS) as deployment:
        yield deployment


@pytest.fixture(name="deployment")
def _deployment(shared: Deployment) -> Deployment:
    """Everybody up, whomever the last test has stopped."""
    for name, process in shared.processes.items():
        if not process.alive:
            shared.start(name).wait_for("listening" if name == "hub" else "connected")
    return shared


def long_job(deployment: Deployment, name: str) -> tuple[ce.Job, ce.Simulation]:
    """A job of a thousand rounds, and what it comes to undisturbed."""
    pooled = problem(3, k=3, clusterings=6, missing=0.1, n=60).table
    for site, table in deal(pooled, TOPOLOGIES["ragged"](pooled, 3, np.random.default_rng(1))).items():
        deployment.write_labels(site, table)
    tables = {site: ce.LabelTable.from_csv(deployment.directory / f"{site}.csv") for site in SITES}
    job = ce.Job(name=name, clusters=3, sites=SITES, restarts=1, max_iterations=200, tolerance=0.0, privacy="plain")
    return job, ce.simulate(job, tables, secrets=SECRETS)


def assert_results(deployment: Deployment, job: ce.Job, expected: ce.Simulation) -> None:
    for site in SITES:
        np.testing.assert_array_equal(deployment.consensus(site, job.name)[2], expected.sites[site].memberships)


def running(deployment: Deployment, job: ce.Job) -> None:
    deployment.submit(job)
    deployment.processes["hub"].wait_for("job running", job=job.name)


@pytest.mark.promise("kill -9 of any process at any moment ends with the same bits.")
def test_a_killed_coordinator_takes_its_jobs_up_again(deployment: Deployment) -> None:
    job, expected = long_job(deployment, "hub-killed")
    running(deployment, job)
    assert deployment.processes["hub"].stop(signal.SIGKILL) == -signal.SIGKILL
    deployment.start("hub")
    status = deployment.wait(job.name)
    assert (status.state, status.epoch) == ("done", 2)
    assert_results(deployment, job, expected)


@pytest.mark.promise("kill -9 of any process at any moment ends with the same bits.")
def test_a_killed_site_is_waited_for(deployment: Deployment) -> None:
    job, expected = long_job(deployment, "site-killed")
    running(deployment, job)
    deployment.processes["site1"].stop(signal.SIGKILL)
    deployment.processes["hub"].wait_for("site disconnected", site="site1")
    deployment.start("site1")
    status = deployment.wait(job.name)
    assert (status.state, status.epoch) == ("done", 2)
    assert_results(deployment, job, expected)


def test_a_stopped_coordinator_ends_promptly_and_lets_its_sites_wait(deployment: Deployment) -> None:
    job, expected = long_job(deployment, "hub-stopped")
    running(deployment, job)
    assert deployment.processes["hub"].stop(signal.SIGTERM, patience_s=5.0) == 0
    deployment.start("hub")
    status = deployment.wait(job.name)
    assert (status.state, status.epoch) == ("done", 2)
    assert_results(deployment, job, expected)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_site_says_goodbye_and_ends_promptly(deployment: Deployment, number: int) -> None:
    job, _ = long_job(deployment, f"site-stopped-by-{number}")
    running(deployment, job)
    assert deployment.processes["site2"].stop(number, patience_s=5.0) == 0
    deployment.processes["hub"].wait_for("site disconnected", site="site2", reason="goodbye")
    deployment.start("site2")
    assert deployment.wait(job.name).state == "done"


@pytest.mark.promise("Lost, repeated and late frames, broken and stalled streams change no bit.")
def test_a_cut_connection_is_dialled_again_and_nothing_begins_again(tmp_path: Path) -> None:
    """The stream of one site goes through a relay that is cut: the job goes on in the same epoch."""
    deployment = Deployment(tmp_path, SITES, SECRETS)
    with Proxy(deployment.port) as relay:
        environment = {"CE_CLIENT_COORDINATOR": f"127.0.0.1:{relay.port}"}
        try:
            deployment.start("hub")
            for site in SITES:
                deployment.start(site, environment if site == "site1" else None).wait_for("connected")
            job, expected = long_job(deployment, "cut")
            running(deployment, job)
            for times in (2, 3):
                relay.reset()
                wait_for_times(deployment, "site1", "connected", times)
            status = deployment.wait(job.name)
            assert (status.state, status.epoch) == ("done", 1)
            assert_results(deployment, job, expected)
        finally:
            deployment.close()


def test_an_http_proxy_is_honoured(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, SITES, SECRETS)
    with Proxy(deployment.port, http=True) as relay:
        # Nothing listens at this address: only the proxy leads anywhere.
        environment = {
            "CE_CLIENT_COORDINATOR": f"coordinator.invalid:{free_port()}",
            "CE_CLIENT_PROXY": f"http://127.0.0.1:{relay.port}",
        }
        try:
            deployment.start("hub")
            deployment.start("site0", environment).wait_for("connected")
            assert relay.requests[0].startswith(b"CONNECT coordinator.invalid:")
        finally:
            deployment.close()


def wait_for_times(deployment: Deployment, site: str, event: str, times: int) -> None:
    """Until a site has logged an event so many times."""
    process = deployment.processes[site]
    deadline = time.monotonic() + 20.0
    with process._changed:
        while sum(entry["event"] == event for entry in process.events) < times:
            assert process._changed.wait(deadline - time.monotonic()), "\n".join(process.raw)
