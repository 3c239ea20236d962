"""ce-coordinator submit, list, show, cancel, sites, result: an operator's jobs and sites."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
from google.protobuf.json_format import MessageToDict
from rich.markup import escape
from rich.table import Table

from ce.cli.options import format_option
from ce.cli.output import ago, say, show_table, size
from ce.errors import CeError, Cancelled, InputError, JobFailed, Refused
from ce.identity.files import make_directory, rewrite
from ce.job import Job
from ce_coordinator.cli.calling import call
from ce_coordinator.cli.options import config_option, read_config
from ce_coordinator.cli.watching import watch_job
from ce_proto.v1 import operator_pb2 as pb

_COLOURS = {"done": "green", "failed": "red", "cancelled": "yellow", "running": "cyan"}


@click.command()
@click.argument("job", type=click.Path(path_type=Path), metavar="JOB.toml")
@click.option("--watch", "watch_", is_flag=True, help="Show the job's progress, and end as it ends.")
@click.option("--token", help="Makes submitting again safe: the same token and job are one job.  [default: random]")
@config_option
@format_option
def submit(job: Path, watch_: bool, token: str | None, config: Path, format_: str) -> None:
    """Submit a job to its sites.

    \b
    Examples:
      ce-coordinator submit job.toml --config /srv/ce --watch
      ce-coordinator submit job.toml --config /srv/ce --token nightly-2026-11-16 --format json
    """
    definition = Job.from_toml(job).definition()
    settings = read_config(config)
    request = pb.SubmitJobRequest(token=token or uuid4().hex, definition=definition)
    status = call(settings, lambda stub, timeout: stub.SubmitJob(request, timeout=timeout))
    if watch_:
        end_like(watch_job(settings, status.job, format_))
        return
    say(
        format_,
        as_dict(status),
        f"job {status.job} is {status.state}; follow it with: ce-coordinator watch {status.job} --config {config}",
    )


@click.command("list")
@config_option
@format_option
def list_(config: Path, format_: str) -> None:
    """List all jobs, the newest first.

    \b
    Examples:
      ce-coordinator list --config /srv/ce
      ce-coordinator list --config /srv/ce --format json
    """
    answer = call(read_config(config), lambda stub, timeout: stub.ListJobs(pb.ListJobsRequest(), timeout=timeout))
    if format_ == "json":
        click.echo(json.dumps([as_dict(job) for job in answer.jobs], indent=2))
        return
    if not answer.jobs:
        click.echo("no jobs yet: ce-coordinator submit JOB.toml")
        return
    table = Table()
    for title in ("job", "state", "model", "sites", "iteration", "submitted", "reason"):
        table.add_column(title)
    for job in answer.jobs:
        colour = _COLOURS.get(job.state, "")
        table.add_row(
            escape(job.job),
            f"[{colour}]{job.state}[/]" if colour else job.state,
            job.model,
            ", ".join(site.site for site in job.sites),
            str(job.iteration or ""),
            _when(job.submitted_s),
            escape(job.reason),
        )
    show_table(table)


@click.command()
@click.argument("job")
@config_option
@format_option
def show(job: str, config: Path, format_: str) -> None:
    """Show one job: its state, its sites, whom it waits for.

    \b
    Examples:
      ce-coordinator show demo --config /srv/ce
    """
    status = call(read_config(config), lambda stub, timeout: stub.GetJob(pb.GetJobRequest(job=job), timeout=timeout))
    if format_ == "json":
        click.echo(json.dumps(as_dict(status), indent=2))
        return
    facts = Table(title=escape(f"Job {status.job}"), title_justify="left", show_header=False)
    facts.add_row("state", status.state)
    facts.add_row("model", f"{status.model}, {status.privacy} sums")
    facts.add_row("submitted", f"{_when(status.submitted_s)} by {status.operator}")
    facts.add_row("attempt", str(status.epoch))
    if status.layout:
        facts.add_row("layout", f"{status.layout}, {status.objects:,} objects")
    if status.iteration:
        facts.add_row("iteration", f"{status.iteration:,}")
    if status.bound_path:
        facts.add_row("bound", f"{status.bound_path[-1]:,.4f}")
    if status.exchanges:
        facts.add_row("exchanges", f"{status.exchanges:,} ({size(status.bytes)})")
    if status.reason:
        facts.add_row("reason", escape(status.reason))
    show_table(facts)
    show_table(sites_table(status.sites, status.now_s))


@click.command()
@click.argument("job")
@config_option
@format_option
def cancel(job: str, config: Path, format_: str) -> None:
    """Cancel a job that is not over. Its sites are told.

    \b
    Examples:
      ce-coordinator cancel demo --config /srv/ce
    """
    request = pb.CancelJobRequest(job=job)
    status = call(read_config(config), lambda stub, timeout: stub.CancelJob(request, timeout=timeout))
    say(format_, as_dict(status), f"job {status.job} is {status.state}")


@click.command()
@config_option
@format_option
def sites(config: Path, format_: str) -> None:
    """List the sites: who has a certificate, who is connected.

    \b
    Examples:
      ce-coordinator sites --config /srv/ce
    """
    answer = call(read_config(config), lambda stub, timeout: stub.ListSites(pb.ListSitesRequest(), timeout=timeout))
    if format_ == "json":
        click.echo(json.dumps([as_dict(site) for site in answer.sites], indent=2))
        return
    table = Table()
    for title in ("site", "connected", "last seen", "software", "key fingerprint"):
        table.add_column(title)
    now = datetime.now(UTC).timestamp()
    for site in answer.sites:
        seen = "never" if not site.last_seen_s else ago(now - site.last_seen_s)
        table.add_row(site.site, "yes" if site.connected else "no", seen, escape(site.software), site.fingerprint)
    show_table(table)


@click.command()
@click.argument("job")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="JOB.json goes here.")
@config_option
@format_option
def result(job: str, out: Path, config: Path, format_: str) -> None:
    """Fetch what the operator may see of a result: parameters, bound, sizes; no memberships.

    \b
    Examples:
      ce-coordinator result demo --config /srv/ce --out results
    """
    request = pb.GetResultRequest(job=job)
    answer = call(read_config(config), lambda stub, timeout: stub.GetResult(request, timeout=timeout))
    report: dict[str, Any] = json.loads(answer.report)
    if "/" in answer.job or answer.job.startswith("."):
        raise InputError("the job's name cannot be a file's name")
    make_directory(out)
    path = out / f"{answer.job}.json"
    rewrite(path, (json.dumps(report, indent=2) + "\n").encode())
    sizes = ", ".join("withheld" if n is None else f"{n:,}" for n in report["sizes"])
    say(
        format_,
        {"written": str(path), "result": report},
        f"bound {report['lower_bound']:,.4f} after {report['iterations']} iterations; sizes {sizes}",
        f"wrote {path}",
    )


def sites_table(sites: Any, now: float) -> Table:
    """The sites of a job."""
    table = Table(title="Sites", title_justify="left")
    for title in ("site", "stream", "last seen", "objects", ""):
        table.add_column(title)
    for site in sites:
        seen = "never" if not site.last_seen_s else ago(now - site.last_seen_s)
        table.add_row(
            site.site,
            "[green]open[/]" if site.connected else "[red]none[/]",
            seen,
            f"{site.objects:,}" if site.objects else "",
            "[yellow]awaited[/]" if site.awaited else "",
        )
    return table


def end_like(status: pb.JobStatus) -> None:
    """Leave as the job did: a failed one with its exit code."""
    if status.state == "done":
        return
    reason = status.reason or f"job {status.job} is {status.state}"
    if status.state == "cancelled":
        raise Cancelled(reason)
    if status.rule:
        raise Refused(status.rule, reason.removesuffix(f" (rule: {status.rule})"))
    error: CeError = JobFailed(reason)
    error.exit_code = status.exit_code or error.exit_code  # type: ignore[misc]
    raise error


def as_dict(message: Any) -> dict[str, Any]:
    """A message for --format json: every field, by its name in the contract."""
    found: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S") if seconds else ""
