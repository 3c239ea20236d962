"""A coordinator and sites as real processes over mutual TLS on the loopback interface, for tests and benchmarks.

    with Deployment(directory, ["north", "south"]) as deployment:
        deployment.write_labels("north", table)
        status = deployment.run(ce.Job(name="a", clusters=3, sites=("north", "south"), privacy="plain"))

Nothing here sleeps: a log line is waited for on a condition, with a deadline.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import numpy as np
from cryptography.hazmat.primitives.serialization import Encoding
from prometheus_client.parser import text_string_to_metric_families

import ce
from ce.identity.authority import Authority
from ce.identity.keys import make_key, write_key
from ce.identity.names import Identity
from ce.testing import make_sites, write_labels
from ce_client.state.rosters import Rosters
from ce_coordinator.cli.operator_call import call
from ce_coordinator.config import CoordinatorSettings
from ce_proto.v1 import operator_pb2 as pb
from support.nursery import Child, Nursery

PATIENCE_S = 60.0
#: The variable that lets daemons be forked.
FORKED = "CE_TEST_DAEMONS_FORKED"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@cache
def _nursery() -> Nursery:
    return Nursery()


def _begin(
    module: str, arguments: list[str], environment: Mapping[str, str], before: list[str], log: int
) -> Child | subprocess.Popen[bytes]:
    """Where start-up is not what is measured or tested (tests/conftest.py), daemons come from a nursery."""
    if os.environ.get(FORKED) and not before:
        return _nursery().start(module, arguments, environment, log)
    nothing = subprocess.DEVNULL
    command = [*before, sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=log, env=environment)


class Process:
    """A daemon, and the events that it has logged."""

    def __init__(
        self,
        module: str,
        arguments: Iterable[str],
        environment: Mapping[str, str] | None = None,
        before: Iterable[str] = (),
    ) -> None:
        """`before`: words before the command, which run it somewhere else."""
        self.events: list[dict[str, Any]] = []
        self.raw: list[str] = []
        self._changed = threading.Condition()
        log, end = os.pipe()
        self._log = os.fdopen(log, encoding="utf-8", errors="replace")
        self._process = _begin(module, [*arguments], {**os.environ, **(environment or {})}, [*before], end)
        os.close(end)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, event: str, patience_s: float = PATIENCE_S, **fields: Any) -> dict[str, Any]:
        """The first logged event of this name with these fields; a text field need only be contained."""

        def find() -> dict[str, Any] | None:
            for entry in self.events:
                if entry["event"] == event and all(str(v) in str(entry.get(k, "")) for k, v in fields.items()):
                    return entry
            return None

        deadline = time.monotonic() + patience_s
        with self._changed:
            while (found := find()) is None:
                left = deadline - time.monotonic()
                if left <= 0 or not self._reader.is_alive():
                    raise AssertionError(f"no event {event!r} {fields}; the log is\n" + "\n".join(self.raw))
                self._changed.wait(min(left, 1.0))
        return found

    def send(self, number: int) -> None:
        """Send a signal, and wait for nothing."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM, patience_s: float = PATIENCE_S) -> int:
        """Ask it to stop, or kill it; returns its exit code."""
        self.send(number)
        return self.end(patience_s)

    def end(self, patience_s: float = PATIENCE_S) -> int:
        """Wait for its end; returns its exit code."""
        code = self._process.wait(patience_s)
        self._reader.join(PATIENCE_S)
        self._log.close()
        return code

    def _read(self) -> None:
        for line in self._log:
            try:
                entry = json.loads(line)
            except ValueError:
                entry = {"event": "", "text": line}
            with self._changed:
                self.raw.append(line.rstrip())
                self.events.append(entry)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()


class Deployment:
    """One coordinator and its sites, each in a directory of its own below `directory`."""

    def __init__(
        self,
        directory: Path,
        sites: Iterable[str],
        secrets: Mapping[str, bytes] | None = None,
        *,
        configuration: str = "",
        metrics: bool = False,
    ) -> None:
        self.directory = directory
        self._metrics = metrics
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        now = datetime.now(UTC)
        hub = self.hub = directory / "hub"
        self.authority = Authority.create(hub / "authority", now)
        for file, identity in (
            ("coordinator", Identity("coordinator", "hub")),
            ("operator", Identity("operator", "olga")),
        ):
            key = make_key()
            write_key(hub / f"{file}.key", key)
            certificate = self.authority.issue(identity, key, now)
            (hub / f"{file}.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
        (hub / "coordinator.toml").write_text(
            f'listen = "{self.address}"\nmin_cluster = 1\n{configuration}\n[operator]\naddress = "{self.address}"\n'
        )
        self.settings = CoordinatorSettings.read(hub / "coordinator.toml")
        labels = {site: directory / f"{site}.csv" for site in sites}
        self.sites = make_sites(directory, labels, secrets, authority=self.authority, coordinator=self.address)
        self.processes: dict[str, Process] = {}

    def __enter__(self) -> Self:
        try:
            self.start("hub")
            for site in self.sites:
                self.start(site)
            for site in self.sites:
                self.processes[site].wait_for("connected")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, name: str, environment: Mapping[str, str] | None = None, before: Iterable[str] = ()) -> Process:
        """Start the coordinator ("hub") or a site."""
        if self._metrics:
            variable = "CE_COORDINATOR_METRICS" if name == "hub" else "CE_CLIENT_METRICS"
            environment = {variable: "127.0.0.1:0", **(environment or {})}
        if name == "hub":
            process = Process("ce_coordinator.cli.main", ["serve", "--config", str(self.hub)], environment, before)
            self.processes[name] = process
            process.wait_for("listening")
        else:
            arguments = ["run", "--config", str(self.directory / name)]
            process = self.processes[name] = Process("ce_client.cli.main", arguments, environment, before)
        return process

    def close(self) -> None:
        for process in self.processes.values():
            process.stop(signal.SIGKILL)

    def allow(self, *roster: str) -> None:
        """Let the label files of these sites be contributed under this roster beside others."""
        for site in roster:
            Rosters(self.directory / site / "state").allow(roster, "any")

    # Metrics.

    def get(self, name: str, path: str = "/metrics") -> tuple[int, bytes]:
        """What a daemon says over HTTP: status and body."""
        port = self.processes[name].wait_for("metrics")["port"]
        connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def scrape(self, name: str) -> dict[str, float]:
        """The metrics of a daemon as they are now: by name and labels, as in the text."""
        status, text = self.get(name)
        assert status == HTTPStatus.OK
        return {
            own.name + "".join(f"{{{label}={value}}}" for label, value in sorted(own.labels.items())): own.value
            for family in text_string_to_metric_families(text.decode())
            for own in family.samples
        }

    # Jobs.

    def write_labels(self, site: str, table: ce.LabelTable) -> None:
        """A site's label file, as the product reads it."""
        write_labels(self.directory / f"{site}.csv", table)

    def ask(self, ask: Callable[[Any, float], Any]) -> Any:
        """One call as the operator."""
        return call(self.settings, ask)

    def submit(self, job: ce.Job) -> pb.JobStatus:
        request = pb.SubmitJobRequest(token=uuid4().hex, definition=job.definition())
        status: pb.JobStatus = self.ask(lambda stub, timeout: stub.SubmitJob(request, timeout=timeout))
        return status

    def wait(self, job: str, patience_s: float = PATIENCE_S) -> pb.JobStatus:
        """The job's status when it is over."""

        async def watch(stub: Any, timeout: float) -> pb.JobStatus:
            last = pb.JobStatus()
            async with asyncio.timeout(patience_s):
                async for status in stub.WatchJob(pb.WatchJobRequest(job=job)):
                    last = status
            return last

        return self.ask(watch)  # type: ignore[no-any-return]

    def watch_until(self, job: str, enough: Callable[[pb.JobStatus], bool]) -> pb.JobStatus:
        """The first status of which that is true, or the last of a job that is over."""

        async def watch(stub: Any, timeout: float) -> pb.JobStatus:
            status = pb.JobStatus()
            async with asyncio.timeout(PATIENCE_S):
                async for status in stub.WatchJob(pb.WatchJobRequest(job=job)):
                    if enough(status):
                        break
            return status

        return self.ask(watch)  # type: ignore[no-any-return]

    def run(self, job: ce.Job, patience_s: float = PATIENCE_S) -> pb.JobStatus:
        self.submit(job)
        return self.wait(job.name, patience_s)

    def result(self, job: str) -> dict[str, Any]:
        request = pb.GetResultRequest(job=job)
        answer = self.ask(lambda stub, timeout: stub.GetResult(request, timeout=timeout))
        report: dict[str, Any] = json.loads(answer.report)
        return report

    def consensus(self, site: str, job: str) -> tuple[list[str], list[str], np.ndarray]:
        """A site's result, once the site has heard that the job is done: ids, labels, memberships."""
        self.processes[site].wait_for("job over", job=job, state="done")
        with (self.directory / site / "results" / job / "consensus.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))[1:]
        memberships = np.array([[float(value) if value else np.nan for value in row[3:]] for row in rows])
        return [row[0] for row in rows], [row[1] for row in rows], memberships
