"""A coordinator and sites as real processes over mutual TLS on the loopback interface, and what a job of theirs takes.

Set-up is that of the tests (`tests/support/processes.py`). CPU time is that of all daemons together, from /proc.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from peers.echo import cpu_seconds
from support.processes import Deployment

import ce

PATIENCE_S = 1800.0
CONNECTED_S = 600.0
_names = count()


@contextmanager
def deployed(tables: Mapping[str, ce.LabelTable], *, metrics: bool = False) -> Iterator[Deployment]:
    """A coordinator and a site for each table, connected; many sites on few cores take their time."""
    with tempfile.TemporaryDirectory(prefix="ce-bench-") as directory:
        deployment = Deployment(Path(directory), tuple(tables), metrics=metrics)
        for site, table in tables.items():
            deployment.write_labels(site, table)
        with closing(deployment):
            for name in ("hub", *tables):
                deployment.start(name)
            for name in tables:
                deployment.processes[name].wait_for("connected", CONNECTED_S)
            yield deployment


@dataclass(frozen=True)
class Cost:
    """What one exchange or one iteration took: seconds, seconds of CPU of all daemons, bytes of arrays up and down."""

    seconds: float
    cpu: float
    bytes: float

    def times(self) -> dict[str, float]:
        return {"wall": self.seconds, "CPU": self.cpu}


def per_exchange(deployment: Deployment, **keys: Any) -> Cost:
    """Run a job of many exchanges: one of them, on average, from the first to the end. CPU is of the whole job."""
    job = _job(deployment, keys)
    before = cpu_of(deployment)
    _finished(deployment.run(job, patience_s=PATIENCE_S))
    cpu = cpu_of(deployment) - before
    hub = deployment.processes["hub"]
    begin, end = (_time(hub.wait_for(event, job=job.name)) for event in ("job running", "job done"))
    status = deployment.ask(lambda stub, timeout: _status(stub, job.name, timeout))
    n = status.exchanges
    return Cost((end - begin) / n, cpu / n, status.bytes / n)


def per_iteration(deployment: Deployment, **keys: Any) -> Cost:
    """Run a job: an iteration of it, between the second and the last, so that neither set-up nor results count."""
    job = _job(deployment, keys)
    seen: dict[int, tuple[float, float, float]] = {}

    async def watch(stub: Any, timeout: float) -> Any:
        from ce_proto.v1 import operator_pb2 as pb

        status = pb.JobStatus()
        async with asyncio.timeout(PATIENCE_S):
            async for status in stub.WatchJob(pb.WatchJobRequest(job=job.name)):
                if status.state == "running" and status.iteration not in seen:
                    seen[status.iteration] = (time.perf_counter(), cpu_of(deployment), status.bytes)
        return status

    deployment.submit(job)
    _finished(deployment.ask(watch))
    # After the last iteration other arrays are sent.
    first, last = min(at for at in seen if at >= 2), max(at for at in seen if at < job.max_iterations)
    seconds, cpu, sent = ((b - a) / (last - first) for a, b in zip(seen[first], seen[last], strict=True))
    return Cost(seconds, cpu, sent)


def whole_job(deployment: Deployment, **keys: Any) -> ce.Job:
    """Run a job and return it."""
    job = _job(deployment, keys)
    _finished(deployment.run(job, patience_s=PATIENCE_S))
    return job


def _job(deployment: Deployment, keys: Mapping[str, Any]) -> ce.Job:
    """A job over all sites, with a name of its own."""
    deadlines = {"enrol_s": 600.0, "round_s": 600.0, "job_s": PATIENCE_S}
    common: dict[str, Any] = {"name": f"job-{next(_names)}", "sites": tuple(deployment.sites), "deadlines": deadlines}
    return ce.Job(**common, **keys)


def _finished(status: Any) -> None:
    if status.state != "done":
        raise RuntimeError(f"the job is {status.state}: {status.reason}")


async def _status(stub: Any, name: str, timeout: float) -> Any:
    from ce_proto.v1 import operator_pb2 as pb

    return await stub.GetJob(pb.GetJobRequest(job=name), timeout=timeout)


def _time(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def cpu_of(deployment: Deployment) -> float:
    """Processor time that all daemons have had."""
    return cpu_seconds(process.pid for process in deployment.processes.values())


def peak_memory(pid: int) -> float:
    """Bytes of memory that a process has had at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
