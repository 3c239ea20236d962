"""Real daemons over mutual TLS: killed at any moment, cut off, stalled. Jobs end with the bits of an undisturbed run.

`make test` kills a few; `make faults` many (CE_FAULT_KILLS, per mode).
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from support.commands import Run, run_fixture  # noqa: F401
from support.problems import TOPOLOGIES, deal, problem
from support.processes import Deployment
from support.proxy import Proxy

import ce
from ce.job import MODES_OF_TOTALS
from ce_proto.v1 import operator_pb2 as pb

SITES = tuple(f"site{s}" for s in range(3))
SECRETS = {site: hashlib.sha256(site.encode()).digest() for site in SITES}
KILLS = int(os.environ.get("CE_FAULT_KILLS", "2"))
#: Every third exchange is kept.
OFTEN = "[checkpoints]\nevery_s = 0.0\nevery_exchanges = 3"
PATIENCE_S = 60.0


@pytest.fixture(scope="module", name="deployment")
def _deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("deployment")
    with Deployment(directory, SITES, SECRETS, configuration=OFTEN) as deployment:
        write_all_labels(deployment)
        yield deployment


def write_all_labels(deployment: Deployment) -> None:
    pooled = problem(3, k=3, clusterings=6, missing=0.1, n=60).table
    for site, table in deal(pooled, TOPOLOGIES["ragged"](pooled, 3, np.random.default_rng(1))).items():
        deployment.write_labels(site, table)


def long_job(name: str, privacy: str, **keys: Any) -> ce.Job:
    asked = {"clusters": 3, "restarts": 1, "max_iterations": 250, "tolerance": 0.0, **keys}
    return ce.Job(name=name, sites=SITES, privacy=privacy, **asked)


def expected(deployment: Deployment, job: ce.Job) -> ce.Simulation:
    tables = {site: ce.LabelTable.from_csv(deployment.directory / f"{site}.csv") for site in SITES}
    return ce.simulate(job, tables, secrets=SECRETS, privacy="plain")


def assert_results(deployment: Deployment, job: ce.Job) -> None:
    undisturbed = expected(deployment, job)
    for site in SITES:
        np.testing.assert_array_equal(deployment.consensus(site, job.name)[2], undisturbed.sites[site].memberships)


def over(status: pb.JobStatus) -> bool:
    return status.state in ("done", "failed", "cancelled")


@pytest.mark.promise("kill -9 of any process at any moment ends with the same bits.")
@pytest.mark.parametrize("privacy", MODES_OF_TOTALS)
def test_whoever_is_killed_whenever_the_result_is_the_same(
    deployment: Deployment, privacy: str, record_property: Any
) -> None:
    plan = random.Random(f"{privacy} {KILLS}")
    kills = resumed = number = 0
    while kills < KILLS:
        number += 1
        job = long_job(f"killed-{privacy}-{number}", privacy)
        deployment.submit(job)
        for _ in range(plan.randint(1, 3) if KILLS > 2 else 1):
            moment = plan.randint(0, 200)
            deployment.watch_until(job.name, lambda status, moment=moment: over(status) or status.exchanges >= moment)
            victims = plan.choice(
                [("hub",), (plan.choice(SITES),), ("hub", plan.choice(SITES)), SITES, ("hub", *SITES)]
            )
            for victim in victims:
                resumed += _resumed(deployment) if victim == "hub" else 0
                deployment.processes[victim].stop(signal.SIGKILL)
                kills += 1
            for victim in victims:
                deployment.start(victim)
        status = deployment.wait(job.name, PATIENCE_S)
        assert status.state == "done", status.reason
        assert_results(deployment, job)
    resumed += _resumed(deployment)
    record_property("kills", kills)
    record_property("jobs", number)
    record_property("resumed", resumed)
    for site in SITES:
        assert not list((deployment.directory / site / "state" / "checkpoints").glob("*/*"))
    assert not list((deployment.hub / "checkpoints").glob("*/*"))


def _resumed(deployment: Deployment) -> int:
    return sum(entry["event"] == "job goes on from a checkpoint" for entry in deployment.processes["hub"].events)


@pytest.mark.parametrize("privacy", ["blind", pytest.param("masked", marks=pytest.mark.slow)])
def test_what_was_done_before_a_kill_is_not_done_again(deployment: Deployment, privacy: str) -> None:
    job = long_job(f"resumed-{privacy}", privacy)
    deployment.submit(job)
    before = deployment.watch_until(job.name, lambda status: status.exchanges >= 60)
    assert before.state == "running"
    for victim in ("hub", "site1"):
        deployment.processes[victim].stop(signal.SIGKILL)
    for victim in ("hub", "site1"):
        deployment.start(victim)
    status = deployment.watch_until(job.name, lambda status: over(status) or status.exchanges_kept > 0)
    assert status.exchanges_kept >= before.exchanges - 8, "an iteration of blind has three exchanges"
    assert deployment.wait(job.name, PATIENCE_S).state == "done"
    assert_results(deployment, job)


@pytest.mark.parametrize("who", ["hub", "site1"])
def test_whoever_is_told_to_stop_keeps_the_state_before(deployment: Deployment, who: str) -> None:
    """Also where checkpoints are far apart."""
    environment = {"CE_COORDINATOR_CHECKPOINTS_EVERY_S": "3600"}
    deployment.processes["hub"].stop()
    deployment.start("hub", environment)
    job = long_job(f"stopped-{who}", "masked", max_iterations=600)
    deployment.submit(job)
    before = deployment.watch_until(job.name, lambda status: status.exchanges >= 60)
    assert deployment.processes[who].stop(signal.SIGTERM, patience_s=15.0) == 0
    deployment.start(who, environment if who == "hub" else None)
    status = deployment.watch_until(job.name, lambda status: over(status) or status.exchanges_kept > 0)
    assert status.exchanges_kept >= before.exchanges
    assert deployment.wait(job.name, PATIENCE_S).state == "done"
    assert_results(deployment, job)


def test_drain_stops_the_coordinator_and_start_goes_on(deployment: Deployment, run: Run) -> None:
    job = long_job("drained", "masked", max_iterations=400)
    deployment.submit(job)
    deployment.watch_until(job.name, lambda status: status.exchanges >= 20)
    drained = run("ce-coordinator", "drain", "--config", deployment.hub)
    assert (drained.code, drained.err) == (0, "")
    assert "1 unfinished job: start it again to go on" in drained.out
    assert deployment.processes["hub"].end() == 0
    deployment.start("hub")
    status = deployment.wait(job.name, PATIENCE_S)
    assert (status.state, status.epoch) == ("done", 2)
    assert_results(deployment, job)


@pytest.mark.promise("Lost, repeated and late frames, broken and stalled streams change no bit.")
@pytest.mark.parametrize(
    "fault", ["stall", *(pytest.param(fault, marks=pytest.mark.slow) for fault in ("reset", "cut", "delay"))]
)
def test_a_link_that_fails_and_comes_back(tmp_path: Path, fault: str, record_property: Any) -> None:
    """The job goes on in the same attempt; a link that is silent is noticed too, and its end."""
    deployment = Deployment(tmp_path, SITES, SECRETS, configuration=OFTEN)
    with Proxy(deployment.port) as link:
        try:
            write_all_labels(deployment)
            hub = deployment.start("hub")
            for site in SITES:
                through = {"CE_CLIENT_COORDINATOR": f"127.0.0.1:{link.port}"} if site == "site1" else None
                deployment.start(site, through).wait_for("connected")
            job = long_job("links", "masked")
            deployment.submit(job)
            deployment.watch_until(job.name, lambda status: status.exchanges >= 20)
            begin = time.monotonic()
            if fault == "delay":
                link.delay_s = 0.005
            else:
                getattr(link, fault)()
                gone = deployment.watch_until(job.name, lambda status: not _of(status, "site1").connected)
                assert not over(gone)
                hub.wait_for("site disconnected", site="site1")
                record_property("noticed after s", round(time.monotonic() - begin, 2))
                link.restore()
                begin = time.monotonic()
                deployment.watch_until(job.name, lambda status: over(status) or _of(status, "site1").connected)
                deployment.watch_until(job.name, lambda status: over(status) or status.exchanges > gone.exchanges)
                record_property("went on after s", round(time.monotonic() - begin, 2))
            status = deployment.wait(job.name, PATIENCE_S)
            assert (status.state, status.epoch) == ("done", 1), status.reason
            assert_results(deployment, job)
        finally:
            deployment.close()


def _of(status: pb.JobStatus, site: str) -> pb.SiteStatus:
    return next(own for own in status.sites if own.site == site)


def test_a_job_goes_on_without_a_site_that_stays_away_where_all_agree(tmp_path: Path) -> None:
    with Deployment(tmp_path, SITES, SECRETS, configuration=OFTEN) as deployment:
        write_all_labels(deployment)
        for site in SITES:
            policy = deployment.directory / site / "policy.toml"
            policy.write_text(policy.read_text() + "leave_behind = true\n")
        job = long_job("left", "masked", on_dropout="continue", deadlines={"round_s": 1.0, "enrol_s": 5.0})
        deployment.submit(job)
        deployment.watch_until(job.name, lambda status: status.exchanges >= 20)
        deployment.processes["site1"].stop(signal.SIGKILL)
        status = deployment.wait(job.name, PATIENCE_S)
        assert (status.state, list(status.left_behind)) == ("done", ["site1"]), status.reason
        report = deployment.result(job.name)
        assert (report["sites"], report["left_behind"]) == (["site0", "site2"], ["site1"])
        rest = [site for site in SITES if site != "site1"]
        tables = {site: ce.LabelTable.from_csv(deployment.directory / f"{site}.csv") for site in rest}
        smaller = replace(job, sites=tuple(rest))
        # It keeps the starts of the job that it was submitted as.
        with patch.object(ce.Job, "disclosure_digest", job.disclosure_digest):
            without = ce.simulate(smaller, tables, secrets={site: SECRETS[site] for site in rest}, privacy="plain")
        for site in rest:
            np.testing.assert_array_equal(deployment.consensus(site, job.name)[2], without.sites[site].memberships)
        # It hears of it when it comes back.
        deployment.start("site1").wait_for("job over", job=job.name, state="cancelled", reason="continues without")


def test_a_job_does_not_go_on_without_a_site_where_one_does_not_agree(tmp_path: Path) -> None:
    with Deployment(tmp_path, SITES, SECRETS, configuration=OFTEN) as deployment:
        write_all_labels(deployment)
        job = long_job("stays", "masked", on_dropout="continue", deadlines={"round_s": 1.0, "enrol_s": 5.0})
        deployment.submit(job)
        deployment.watch_until(job.name, lambda status: status.exchanges >= 20)
        deployment.processes["site1"].stop(signal.SIGKILL)
        status = deployment.wait(job.name, PATIENCE_S)
        assert (status.state, status.rule, status.exit_code) == ("failed", "leave_behind", 6)
        assert "its policy says leave_behind = true" in status.reason
