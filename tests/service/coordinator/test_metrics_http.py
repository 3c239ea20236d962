"""Metrics of real daemons: what they count is so, and nobody who scrapes them disturbs a job."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import hashlib
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.problems import TOPOLOGIES, deal, problem
from support.processes import Deployment

import ce
from ce.errors import ConfigError
from ce.identity.peers import CHANGED, UNPINNED
from ce.rules import OF_COMMANDS, RULES
from ce.service import metrics_http as scraping
from ce.service.metrics import NONE, OTHER, MetricsRegistry, known_rule
from ce.service.metrics_http import LARGEST_REQUEST, MOST_CONNECTIONS
from ce_client.state.attempt_history import RULE as SAME_IN_EVERY_ATTEMPT
from ce_client.state.consents import RULE as CONSENT
from ce_client.state.rosters import RULE as ONE_ROSTER
from ce_coordinator.core.instructions import Compute
from ce_coordinator.core.records import JobRecord, JobState
from ce_coordinator.service.metrics import CoordinatorMetrics

SITES = ("east", "north", "south")
SECRETS = {site: hashlib.sha256(site.encode()).digest() for site in SITES}
KEPT_OFTEN = "[checkpoints]\nevery_s = 0.0\nevery_exchanges = 1\n"


@pytest.fixture(scope="module", name="deployment")
def _deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("scraped")
    with Deployment(directory, SITES, SECRETS, configuration=KEPT_OFTEN, metrics=True) as deployment:
        pooled = problem(3, k=3, clusterings=6, missing=0.1, n=60).table
        split = TOPOLOGIES["ragged"](pooled, 3, np.random.default_rng(1))
        for site, table in zip(SITES, deal(pooled, split).values(), strict=True):
            deployment.write_labels(site, table)
        yield deployment


def job(name: str, **keys: object) -> ce.Job:
    keys = {"clusters": 3, "sites": SITES, "restarts": 1, "max_iterations": 40, "tolerance": 0.0, **keys}
    return ce.Job(name=name, **keys)  # type: ignore[arg-type]


def test_a_job_is_counted_at_both_ends(deployment: Deployment) -> None:
    before = deployment.scrape("hub")
    assert before["ce_coordinator_sites_connected"] == len(SITES)
    assert before["ce_coordinator_jobs{state=done}"] == 0, "the first test of this file"
    status = deployment.run(job("counted"))
    assert status.state == "done"
    hub = deployment.scrape("hub")
    kind = "{model=bce}{privacy=masked}"
    assert hub[f"ce_coordinator_exchanges_total{kind}"] == status.exchanges > 40
    assert hub[f"ce_coordinator_attempts_total{kind}"] == 1
    assert hub["ce_coordinator_jobs{state=done}"] == 1
    assert hub["ce_coordinator_jobs{state=running}"] == 0
    assert hub[f"ce_coordinator_jobs_ended_total{kind}{{state=done}}"] == 1
    assert hub["ce_coordinator_checkpoints_total{state=saved}"] > 10
    assert hub["ce_coordinator_checkpoints_total{state=failed}"] == 0
    assert hub["ce_coordinator_bytes_total{direction=in}"] > status.bytes / 3  # arrays of three sites, and more
    phases = {
        phase: hub[f"ce_coordinator_phase_seconds_total{{model=bce}}{{phase={phase}}}{{privacy=masked}}"]
        for phase in ("enrolling", "aligning", "waiting", "computing")
    }
    assert all(seconds > 0 for seconds in phases.values())
    assert sum(phases.values()) == pytest.approx(status.changed_s - status.submitted_s, abs=0.5)
    received = sent = 0.0
    for site in SITES:
        deployment.processes[site].wait_for("job over", job="counted")
        own = deployment.scrape(site)
        assert own["ce_client_rounds_total"] == status.exchanges + 1  # the last one brings the results
        assert own["ce_client_connected"] == 1
        assert own["ce_client_attempts_total"] == 1
        assert own["ce_client_jobs_ended_total{state=done}"] == 1
        assert own["ce_client_checkpoints_total{state=saved}"] == hub["ce_coordinator_checkpoints_total{state=saved}"]
        assert 0 < own["ce_client_computing_seconds_total"] < status.changed_s - status.submitted_s
        assert own["ce_client_process_resident_memory_bytes"] > 1e6
        received += own["ce_client_bytes_total{direction=in}"]
        sent += own["ce_client_bytes_total{direction=out}"]
    # What left a site came to the coordinator, to the byte; the operator's calls come on top.
    assert received <= hub["ce_coordinator_bytes_total{direction=out}"]
    assert sent <= hub["ce_coordinator_bytes_total{direction=in}"] < sent + 2000


def test_refusals_are_counted_by_their_rule(deployment: Deployment) -> None:
    policy = deployment.directory / "south" / "policy.toml"
    before = policy.read_text()
    policy.write_text(before.replace("min_sites = 1", "min_sites = 4"))
    try:
        assert deployment.run(job("refused")).rule == "min_sites"
    finally:
        policy.write_text(before)
    assert deployment.scrape("hub")["ce_coordinator_refusals_total{rule=min_sites}"] == 1
    deployment.processes["south"].wait_for("job over", job="refused")
    assert deployment.scrape("south")["ce_client_refusals_total{rule=min_sites}"] == 1
    assert deployment.scrape("south")["ce_client_jobs_ended_total{state=failed}"] == 1
    assert deployment.scrape("north")["ce_client_refusals_total{rule=min_sites}"] == 0


def test_health_says_whether_a_site_is_connected_and_reconnects_are_counted(deployment: Deployment) -> None:
    done = deployment.scrape("hub")["ce_coordinator_jobs{state=done}"]
    assert deployment.get("hub", "/healthz") == (200, b"ok\n")
    assert deployment.get("north", "/healthz") == (200, b"ok: connected\n")
    deployment.processes["hub"].stop(signal.SIGTERM)
    for site in SITES:
        deployment.processes[site].wait_for("disconnected")
        assert deployment.get(site, "/healthz") == (200, b"ok: not connected\n")
        assert deployment.scrape(site)["ce_client_connected"] == 0
    deployment.start("hub")
    for site in SITES:
        deployment.processes["hub"].wait_for("site connected", site=site)
    # The site hears of it a little later; a job waits for all of them.
    assert deployment.run(job("again")).state == "done"
    for site in SITES:
        own = deployment.scrape(site)
        assert (own["ce_client_connections_total"], own["ce_client_reconnects_total"]) == (2, 1)
    after = deployment.scrape("hub")["ce_coordinator_jobs{state=done}"]
    assert after == done + 1, "and those of before, from the store"


def dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def everything(connection: socket.socket) -> bytes:
    """All that comes until the other end closes, in whatever way."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(65536):
            received += chunk
    return received


REQUESTS = {
    "a long line": (b"GET /" + b"a" * 4 * LARGEST_REQUEST, b"431"),
    "many headers": (b"GET /metrics HTTP/1.1\r\n" + b"x: y\r\n" * LARGEST_REQUEST, b"431"),
    "another path": (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", b"404"),
    "another method": (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
    "no HTTP": (b"\x16\x03\x01\x00\xa5\r\n\r\n", b"404"),
    "nothing": (b"\r\n\r\n", b"404"),
}


@pytest.mark.parametrize("what", REQUESTS)
@pytest.mark.parametrize("daemon", ["hub", "north"])
def test_requests_that_are_none_are_turned_away(deployment: Deployment, daemon: str, what: str) -> None:
    request, code = REQUESTS[what]
    with dial(deployment.processes[daemon].wait_for("metrics")["port"]) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
        assert everything(connection)[:12] in (b"HTTP/1.1 " + code, b"")  # lost, if the caller was still sending
    assert deployment.get(daemon, "/healthz")[0] == 200


@pytest.mark.promise("Crowds and slow callers do not keep others out.")
def test_a_crowd_of_slow_and_greedy_scrapers_disturbs_no_job(deployment: Deployment) -> None:
    ports = [deployment.processes[name].wait_for("metrics")["port"] for name in ("hub", "north")]
    before = deployment.scrape("hub")["ce_coordinator_process_open_fds"]
    with contextlib.ExitStack() as open_:
        deployment.submit(job("disturbed", max_iterations=100))
        crowd = [open_.enter_context(dial(port)) for port in ports for _ in range(5 * MOST_CONNECTIONS)]
        for at, connection in enumerate(crowd):
            with contextlib.suppress(ConnectionError):
                # A third say nothing, a third begin and never end, a third ask and never read.
                connection.sendall((b"", b"GET /met", b"GET /metrics HTTP/1.1\r\n\r\n")[at % 3])
        # Whoever asks as one should is answered at once.
        assert deployment.scrape("hub")["ce_coordinator_sites_connected"] == len(SITES)
        assert deployment.scrape("north")["ce_client_connected"] == 1
        status = deployment.wait("disturbed")
        assert (status.state, status.epoch) == ("done", 1)
        after = deployment.scrape("hub")["ce_coordinator_process_open_fds"]
        assert after < before + MOST_CONNECTIONS + 10
    assert deployment.scrape("hub")["ce_coordinator_reconnects_total"] == 0


@pytest.mark.parametrize("said", [b"", b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\n\r\n"])
def test_whoever_takes_too_long_is_cut_off(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraping, "LONGEST_S", 0.05)

    async def scrape() -> bytes:
        server = scraping.MetricsServer(lambda: b"metrics", lambda: (True, "ok"))
        port = await server.start("127.0.0.1:0")
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            received = await asyncio.wait_for(reader.read(), 10)
            with contextlib.suppress(ConnectionError):  # it never closed; the server has, by now or soon
                await asyncio.wait_for(reader.read(), 10)
            writer.close()
            return received
        finally:
            await server.close()

    assert asyncio.run(scrape())[-7:] == (b"metrics" if said.endswith(b"\r\n\r\n") else b"")


def test_an_address_that_is_taken_is_an_error_of_the_configuration() -> None:
    async def twice() -> None:
        first, second = (scraping.MetricsServer(lambda: b"", lambda: (True, "ok")) for _ in range(2))
        port = await first.start("127.0.0.1:0")
        try:
            await second.start(f"127.0.0.1:{port}")
        finally:
            await first.close()

    with pytest.raises(ConfigError, match="change metrics in the configuration"):
        asyncio.run(twice())


# What labels may say.


def test_a_metric_has_no_other_labels() -> None:
    with pytest.raises(ValueError, match="job"):
        MetricsRegistry("ce_test").counter("a", "meaning", "state", "job")


def test_rules_that_a_site_invents_are_all_one() -> None:
    assert known_rule("min_sites") == "min_sites"
    assert known_rule("") == NONE
    assert known_rule("zqcanaryid0001") == OTHER
    meter = CoordinatorMetrics()
    definition = b'{"model": "bce", "privacy": "masked"}'
    record = JobRecord("a", "t", "olga", definition, "failed", 1, 0.0, 0.0, rule="zqcanary")
    meter.saved(record)
    text = meter.registry.text()
    assert b'ce_coordinator_refusals_total{rule="other"} 1.0' in text
    assert b"zqcanary" not in text


def test_every_rule_of_the_code_has_its_label() -> None:
    """Whatever is raised as Refused by a name that stands in the code."""
    root = Path(__file__).parents[3]
    named = {CHANGED, UNPINNED, SAME_IN_EVERY_ATTEMPT, CONSENT, ONE_ROSTER}
    for path in (*root.glob("common/ce/**/*.py"), *root.glob("client/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Refused", "Met"):
                first = node.args[0] if node.args else None
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    named.add(first.value)
    assert named - set(OF_COMMANDS) <= set(RULES)


def test_time_goes_to_the_phase_that_a_job_is_in() -> None:
    now = 0.0
    meter = CoordinatorMetrics(lambda: now)

    def saved(state: JobState, at: float) -> None:
        nonlocal now
        now = at
        meter.saved(JobRecord("a", "t", "olga", b'{"model": "bce", "privacy": "blind"}', state, 1, 0.0, at))

    saved("enrolling", 10.0)
    saved("aligning", 11.0)
    now = 13.0
    meter.carried_out(Compute("a", 1, 0, lambda: None))
    saved("running", 16.0)
    now = 20.0
    meter.carried_out(Compute("a", 1, 0, lambda: None))
    saved("done", 25.0)
    now = 1000.0
    text = meter.registry.text().decode()
    for phase, seconds in {"enrolling": 1.0, "aligning": 2.0, "computing": 8.0, "waiting": 4.0}.items():
        assert f'phase_seconds_total{{model="bce",phase="{phase}",privacy="blind"}} {seconds}' in text
