"""The machine's state as the messages that operators are sent."""

from __future__ import annotations

import json
from dataclasses import asdict

from ce_coordinator.core.job_run import JobRun
from ce_coordinator.core.machine import Machine
from ce_coordinator.core.records import JobRecord
from ce_proto.v1 import operator_pb2 as pb


def job_status(machine: Machine, name: str, now: float) -> pb.JobStatus:
    """One job as it stands. Raises UnknownJob."""
    record = machine.jobs.record_with_result(name)
    definition = json.loads(record.definition)
    status = pb.JobStatus(
        job=record.name,
        state=record.state,
        model=definition["model"],
        privacy=definition["privacy"],
        operator=record.operator,
        epoch=record.epoch,
        submitted_s=record.submitted_at,
        changed_s=record.changed_at,
        reason=record.reason,
        rule=record.rule,
        exit_code=record.exit_code,
        now_s=now,
        left_behind=record.left_behind,
    )
    run = machine.runs.get(name)
    if run is not None:
        status.left_behind.extend(sorted(run.absent))
    for site in sorted(definition["sites"]):
        status.sites.append(_site(machine, site, run))
    if run is not None:
        _add_progress(status, run, now)
    elif record.state == "done":
        _add_result(status, record)
    return status


def site_statuses(machine: Machine) -> list[pb.SiteStatus]:
    """All sites, by name."""
    statuses = []
    for name in sorted(machine.sites):
        status = _site(machine, name, None)
        status.fingerprint = machine.sites[name].fingerprint
        statuses.append(status)
    return statuses


def _site(machine: Machine, name: str, run: JobRun | None) -> pb.SiteStatus:
    connection, record = machine.connections.get(name), machine.sites.get(name)
    status = pb.SiteStatus(site=name, connected=connection is not None)
    if connection is not None:
        status.last_seen_s, status.software = connection.last_seen, connection.software
    elif record is not None:
        status.last_seen_s = record.last_seen
    if run is not None:
        status.awaited = name in run.awaited
        status.objects = run.attempt.setup.objects(name) if run.attempt is not None else 0
    return status


def _add_progress(status: pb.JobStatus, run: JobRun, now: float) -> None:
    status.deadline_s = run.deadline
    attempt = run.attempt
    if attempt is None:
        return
    status.iteration = attempt.trace.iteration
    status.max_iterations = attempt.trace.max_iterations
    status.starts_running = attempt.trace.starts_running
    status.bound_path.extend(attempt.trace.bound_path)
    rounds = attempt.rounds
    if rounds is not None:
        status.layout = rounds.topology.layout
        status.objects = attempt.setup.exclusions.objects
        status.objects_in_fit = rounds.topology.sizes.objects
        for site, count in attempt.setup.exclusions:
            status.excluded.append(pb.SiteExclusion(site=site, **asdict(count)))
        status.exchanges = rounds.exchanges
        status.exchanges_kept = rounds.exchanges_resumed
        status.bytes = rounds.bytes
        status.exchanges_per_s = attempt.rate.per_s(now)
    if attempt.sealed is not None:
        status.phase = attempt.sealed.phase
        status.warnings.extend(attempt.sealed.warnings)


def _add_result(status: pb.JobStatus, record: JobRecord) -> None:
    report = json.loads(record.result)
    status.layout = report["layout"]
    status.objects = report["objects"]
    # Results of version 0.1.0 have only the objects that took part.
    status.objects_in_fit = report.get("objects_in_fit", report["objects"])
    status.excluded.extend(pb.SiteExclusion(**entry) for entry in report.get("excluded", ()))
    status.iteration = report.get("iterations", 0)  # the coordinator of a blind job does not know it
    status.bound_path.extend(report.get("bound_path", ()))
    status.exchanges = report["exchanges"]
    status.bytes = report.get("bytes", 0)
    status.warnings.extend(report.get("warnings", ()))
