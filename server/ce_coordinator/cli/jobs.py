"""ce-coordinator submit, list, show, cancel, sites, result: an operator's jobs and sites."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
from rich.text import Text

from ce.cli.exclusions import not_in_the_fit
from ce.cli.output import ago, fact_table, format_option, list_table, say, show_table
from ce.errors import InputError
from ce.identity.files import make_directory, rewrite
from ce.job import EXACT, Job
from ce_coordinator.cli.operator_call import call
from ce_coordinator.cli.options import config_option, next_command, read_config
from ce_coordinator.cli.picture import left_out, mode, progress, state_text
from ce_coordinator.cli.plain import plain
from ce_coordinator.cli.watch import watch_to_the_end
from ce_proto.v1 import operator_pb2 as pb


@click.command(short_help="Submit a job to its sites.")
@click.argument("job", type=click.Path(path_type=Path), metavar="JOB.toml")
@click.option("--watch", "watch_", is_flag=True, help="Show the job's progress, and end as it ends.")
@click.option("--token", help="Submitting again with the same token and job has no effect.  [default: random]")
@config_option
@format_option
def submit(job: Path, watch_: bool, token: str | None, config: Path, format_: str) -> None:
    """Submit a job to its sites. Every site decides by its own policy whether it takes part.

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
        watch_to_the_end(settings, status.job, config, format_)
        return
    then = next_command("watch", status.job, config=config)
    # Which objects take part is known once the sites have enrolled: at once only for a job that was submitted before.
    objects = left_out(status)
    lines = [f"objects: {objects}"] if objects else []
    say(format_, plain(status), f"job {status.job} is {status.state}; follow it with: {then}", *lines)


@click.command("list", short_help="List all jobs, the newest first.")
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
    if format_ == "json" or not answer.jobs:
        say(format_, [plain(job) for job in answer.jobs], "no jobs yet: ce-coordinator submit JOB.toml")
        return
    table = list_table("job", "state", "model", "sites", "progress", "submitted", "reason")
    for job in answer.jobs:
        table.add_row(
            Text(job.job),
            state_text(job.state),
            job.model,
            ", ".join(site.site for site in job.sites),
            _where(job),
            _when(job.submitted_s),
            Text(job.reason),
        )
    show_table(table)


@click.command(short_help="Show one job: its state, its sites, which of them it waits for.")
@click.argument("job")
@config_option
@format_option
def show(job: str, config: Path, format_: str) -> None:
    """Show one job: its state, its sites, which of them it waits for.

    \b
    Examples:
      ce-coordinator show demo --config /srv/ce
      ce-coordinator show demo --config /srv/ce --format json
    """
    status = call(read_config(config), lambda stub, timeout: stub.GetJob(pb.GetJobRequest(job=job), timeout=timeout))
    if format_ == "json":
        click.echo(json.dumps(plain(status), indent=2))
        return
    facts = fact_table()
    facts.add_row("job", Text(status.job))
    facts.add_row("state", state_text(status.state))
    facts.add_row("model", f"{status.model}, {mode(status.privacy)}")
    facts.add_row("submitted", f"{_when(status.submitted_s)} by {status.operator}")
    facts.add_row("attempt", str(status.epoch))
    if status.layout:
        facts.add_row("layout", f"{status.layout}, {status.objects:,} objects")
    for name, value in progress(status):
        facts.add_row(name, value)
    for warning in status.warnings:
        facts.add_row("warning", Text(warning))
    if status.reason:
        facts.add_row("reason", Text(status.reason))
    if status.rule:
        facts.add_row("rule", Text(status.rule))
    show_table(facts)
    click.echo()
    sites = list_table("site", "connected", "seen", *(["objects"] if any(s.objects for s in status.sites) else []))
    for site in status.sites:
        objects = [f"{site.objects:,}"] if any(s.objects for s in status.sites) else []
        sites.add_row(site.site, _connected(site), _seen(site, status.now_s), *objects)
    show_table(sites)


@click.command(short_help="Cancel a job that has not ended.")
@click.argument("job")
@config_option
@format_option
def cancel(job: str, config: Path, format_: str) -> None:
    """Cancel a job that has not ended. Its sites are notified. A job that has ended stays as it is.

    \b
    Examples:
      ce-coordinator cancel demo --config /srv/ce
    """
    request = pb.CancelJobRequest(job=job)
    status = call(read_config(config), lambda stub, timeout: stub.CancelJob(request, timeout=timeout))
    over = "" if status.state == "cancelled" else ": there was nothing left to cancel"
    say(format_, plain(status), f"job {status.job} is {status.state}{over}")


@click.command(short_help="List the sites: which have a certificate, which are connected.")
@config_option
@format_option
def sites(config: Path, format_: str) -> None:
    """List the sites: which have a certificate, which are connected.

    \b
    Examples:
      ce-coordinator sites --config /srv/ce
      ce-coordinator sites --config /srv/ce --format json
    """
    answer = call(read_config(config), lambda stub, timeout: stub.ListSites(pb.ListSitesRequest(), timeout=timeout))
    if format_ == "json" or not answer.sites:
        say(format_, [plain(site) for site in answer.sites], "no sites yet: ce-coordinator sign SITE.csr")
        return
    table = list_table("site", "connected", "seen", "software", "key fingerprint")
    now = datetime.now(UTC).timestamp()
    for site in answer.sites:
        table.add_row(site.site, _connected(site), _seen(site, now), Text(site.software), site.fingerprint)
    show_table(table)


@click.command(short_help="Fetch what the operator may see of a result.")
@click.argument("job")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="JOB.json goes here.")
@config_option
@format_option
def result(job: str, out: Path, config: Path, format_: str) -> None:
    """Fetch what the operator may see of a result: parameters, bound, sizes; no memberships.

    Each site has the memberships of its objects in its own result directory.

    \b
    Examples:
      ce-coordinator result demo --config /srv/ce --out results
      ce-coordinator result demo --config /srv/ce --out results --format json
    """
    request = pb.GetResultRequest(job=job)
    answer = call(read_config(config), lambda stub, timeout: stub.GetResult(request, timeout=timeout))
    report: dict[str, Any] = json.loads(answer.report)
    if "/" in answer.job or answer.job.startswith("."):
        raise InputError("the job's name cannot be the name of a file")
    make_directory(out)
    path = out / f"{answer.job}.json"
    rewrite(path, (json.dumps(report, indent=2) + "\n").encode())
    sizes = ", ".join("withheld" if n is None else f"{n:,}" for n in report.get("sizes") or ())
    if report["privacy"] == "sealed":
        found = _sealed_result(report)
    elif "lower_bound" in report:
        found = f"bound {report['lower_bound']:,.4f} after {report['iterations']:,} iterations; sizes {sizes}"
        if report.get("withheld_by"):
            asked = ", ".join(report["withheld_by"])
            found += f"; withheld: clusters of fewer than {report['min_cluster']:,} objects, as {asked} asks"
    else:
        found = "a blind job: only its sites know the bound and the sizes"
    in_fit, excluded = report.get("objects_in_fit", report["objects"]), report.get("excluded", ())
    objects = not_in_the_fit(report["objects"], in_fit, excluded)
    say(
        format_,
        {"written": str(path), "result": report},
        found,
        *([f"objects: {objects}"] if objects else []),
        f"wrote {path}",
    )


@click.command(short_help="Stop the coordinator; running jobs go on when it is started again.")
@config_option
@format_option
def drain(config: Path, format_: str) -> None:
    """Stop the coordinator, as SIGTERM does; running jobs go on when it is started again.

    It accepts no more jobs, checkpoints those that run, here and at their sites, closes the streams of the sites and
    ends. That takes seconds. If it is killed instead, no job is lost, but the last iterations are computed again.

    \b
    Examples:
      ce-coordinator drain --config /srv/ce
    """
    answer = call(read_config(config), lambda stub, timeout: stub.Drain(pb.DrainRequest(), timeout=timeout))
    jobs = f"{answer.jobs:,} unfinished job{'s' * (answer.jobs != 1)}"
    say(format_, {"jobs": answer.jobs}, f"the coordinator stops with {jobs}: start it again to go on")


def _sealed_result(report: dict[str, Any]) -> str:
    """What a sealed job has found, in a sentence."""
    noise = "without noise" if report["epsilon"] == EXACT else f"epsilon {report['epsilon']:g}"
    clusters = report["clusters"]
    found = (
        f"{clusters:,} cluster{'s' * (clusters != 1)} from pair tables, {noise}; only the sites know labels and sizes"
    )
    if report["unlabelled"]:
        found += f"; {report['unlabelled']:,} objects of sites that stayed away have no label"
    return "; ".join([found, *report["warnings"]])


def _connected(site: pb.SiteStatus) -> Text:
    return Text("yes", style="green") if site.connected else Text("no", style="red")


def _seen(site: pb.SiteStatus, now: float) -> str:
    return ago(now - site.last_seen_s) if site.last_seen_s else "never"


def _where(job: pb.JobStatus) -> str:
    """How far a job has come, in a cell."""
    if job.privacy == "sealed":
        return f"{job.phase}, round {job.iteration:,}" if job.phase else ""
    return f"iteration {job.iteration:,}" if job.iteration else ""


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S") if seconds else ""
