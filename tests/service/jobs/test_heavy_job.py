"""A job that computes for minutes at a site: its daemon answers, stops computing when the job is cancelled or begins
again, and ends when it is told to, each within two seconds. Real daemons.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

import numpy as np
import pytest
from support.processes import PATIENCE_S, Deployment

import ce
from ce_proto.v1 import operator_pb2 as pb

SITES = ("north", "south")
#: Seconds within which a daemon does what it is told; more where others keep the cores busy.
PROMISED_S = 2.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
#: As many as a job may have: minutes for each exchange.
LOOPS = 1_000_000
ENVIRONMENT = {"CE_POLICY_MAX_LOCAL_LOOPS": str(LOOPS)}
#: Seconds over which a process is watched, and seconds of a core that an idle one may take meanwhile.
WATCHED_S, IDLE_S = 0.25, 0.03


@pytest.fixture(scope="module", name="shared")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("heavy"), SITES, metrics=True)
    rng = np.random.default_rng(0)
    for site in SITES:
        # Columns that one site holds: passes within an iteration are about these.
        columns = [f"{site}_{i}" for i in range(3)]
        table = ce.LabelTable.from_arrays(rng.integers(0, 3, (40, 3)), ids=range(40), columns=columns)
        deployment.write_labels(site, table)
    try:
        deployment.start("hub")
        yield deployment
    finally:
        deployment.close()


@pytest.fixture(name="deployment")
def _deployment(shared: Deployment) -> Deployment:
    """Every site up, whomever the last test has stopped."""
    for site in SITES:
        if site not in shared.processes or not shared.processes[site].alive:
            shared.start(site, ENVIRONMENT).wait_for("connected")
    return shared


def computing(deployment: Deployment, name: str) -> ce.Job:
    """A job whose sites are in the middle of their first iteration."""
    job = ce.Job(name=name, clusters=3, sites=SITES, restarts=1, local_loops=LOOPS, privacy="plain")
    deployment.submit(job)
    # After "open" and "counts" the first iteration begins.
    status = deployment.watch_until(name, lambda status: status.exchanges >= 2)
    assert status.state == "running"
    until(lambda: all(not idle(deployment.processes[site].pid) for site in SITES))
    return job


def until(reached: Callable[[], bool]) -> float:
    """Seconds until something is true."""
    begin = time.monotonic()
    while not reached():
        assert time.monotonic() - begin < PATIENCE_S
    return time.monotonic() - begin


def idle(pid: int) -> bool:
    """Whether a process takes no time of a core, seen over `WATCHED_S`."""
    begin = seconds_of(pid)
    threading.Event().wait(WATCHED_S)
    return seconds_of(pid) - begin < IDLE_S


def seconds_of(pid: int) -> float:
    """Seconds of cores that a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.mark.promise("No computation keeps a daemon from answering, from a cancelled job's end, or from stopping.")
def test_a_site_answers_while_it_computes_and_stops_computing_when_the_job_is_cancelled(
    deployment: Deployment,
) -> None:
    job = computing(deployment, "cancelled")
    begin = time.monotonic()
    for site in SITES:
        assert deployment.get(site, "/healthz")[0] == HTTPStatus.OK
    assert time.monotonic() - begin < PROMISED_S
    begin = time.monotonic()
    deployment.ask(lambda stub, timeout: stub.CancelJob(pb.CancelJobRequest(job=job.name), timeout=timeout))
    for site in SITES:
        deployment.processes[site].wait_for("job over", job=job.name, state="cancelled")
    assert time.monotonic() - begin < PROMISED_S
    assert until(lambda: all(idle(deployment.processes[site].pid) for site in SITES)) < PROMISED_S


@pytest.mark.promise("No computation keeps a daemon from answering, from a cancelled job's end, or from stopping.")
def test_a_site_that_computes_ends_when_it_is_told_to_and_the_others_begin_again(deployment: Deployment) -> None:
    job = computing(deployment, "told to stop")
    begin = time.monotonic()
    assert deployment.processes["south"].stop(signal.SIGTERM) == 0
    assert time.monotonic() - begin < PROMISED_S
    # The other one begins the next attempt at once, whatever it was computing.
    begin = time.monotonic()
    deployment.start("south", ENVIRONMENT).wait_for("connected")
    status = deployment.watch_until(job.name, lambda status: (status.epoch, status.state) == (2, "running"))
    assert (status.epoch, status.state) == (2, "running")
    assert time.monotonic() - begin < PROMISED_S + PROMISED_S
    deployment.ask(lambda stub, timeout: stub.CancelJob(pb.CancelJobRequest(job=job.name), timeout=timeout))


@pytest.mark.promise("What a site writes is its user's alone to read.")
def test_no_daemon_writes_its_memory_to_a_disk(deployment: Deployment) -> None:
    for name in ("hub", *SITES):
        limits = Path(f"/proc/{deployment.processes[name].pid}/limits").read_text(encoding="utf-8")
        assert re.search(r"(?m)^Max core file size +0 +0 ", limits)
