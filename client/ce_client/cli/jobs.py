"""ce-client jobs, show and forget: the jobs that this site was offered."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from ce.cli.exclusions import not_in_the_fit
from ce.cli.output import ago, fact_table, format_option, list_table, mode_words, say, show_table
from ce.errors import ConfigError, Refused
from ce_client.cli.options import config_option, read_config
from ce_client.daemon.single_instance import is_running
from ce_client.daemon.site_files import CHECKPOINTS
from ce_client.state.attempt_history import AttemptHistory
from ce_client.state.consents import Consents
from ce_client.state.files import name_of
from ce_client.state.job_index import AWAITING_CONSENT, JobIndex
from ce_client.state.previews import Previews
from ce_client.state.results import REPORT, Results

_COLOURS = {
    "done": "green",
    "failed": "red",
    "refused": "red",
    "cancelled": "yellow",
    "running": "cyan",
    AWAITING_CONSENT: "yellow",
}


@click.command(short_help="List the jobs that this site was offered, the newest first.")
@config_option
@format_option
def jobs(config: Path, format_: str) -> None:
    """List the jobs that this site was offered, the newest first. Needs no coordinator and no daemon.

    \b
    Examples:
      ce-client jobs --config /srv/ce-site
      ce-client jobs --config /srv/ce-site --format json
    """
    entries = JobIndex(read_config(config).state).entries()
    if format_ == "json" or not entries:
        say(format_, [asdict(entry) for entry in entries], "no jobs yet: the daemon (ce-client run) waits for offers")
        return
    table = list_table("job", "state", "model", "sites", "since", "reason")
    for entry in entries:
        table.add_row(
            Text(entry.job),
            Text(entry.state, style=_COLOURS.get(entry.state, "")),
            entry.model,
            ", ".join(entry.sites),
            ago(time.time() - entry.since_s),
            Text(entry.reason),
        )
    show_table(table)


@click.command(short_help="Show one job: how it ended, where the results are.")
@click.argument("job")
@config_option
@format_option
def show(job: str, config: Path, format_: str) -> None:
    """Show one job: its model and sites, how it ended, where the results are.

    \b
    Examples:
      ce-client show demo --config /srv/ce-site
      ce-client show demo --config /srv/ce-site --format json
    """
    settings = read_config(config)
    entry = JobIndex(settings.state).entry(job)
    results = settings.results / entry.job
    report = _report(results) if entry.state == "done" else {}
    facts = asdict(entry) | {
        "results": str(results) if entry.state == "done" and results.exists() else None,
        **{key: report.get(key) for key in ("objects", "objects_in_fit", "excluded")},
    }
    if format_ == "json":
        click.echo(json.dumps(facts, indent=2))
        return
    table = fact_table()
    table.add_row("job", Text(entry.job))
    table.add_row("state", Text(entry.state, style=_COLOURS.get(entry.state, "")))
    table.add_row("model", f"{entry.model}, {mode_words(entry.privacy)}")
    table.add_row("sites", ", ".join(entry.sites))
    table.add_row("coordinator", Text(entry.coordinator))
    table.add_row("attempt", str(entry.epoch))
    if entry.rounds:
        table.add_row("rounds", f"{entry.rounds:,}")
    table.add_row("since", ago(time.time() - entry.since_s))
    if entry.reason:
        table.add_row("reason", Text(entry.reason))
    if report and (left_out := not_in_the_fit(report["objects"], report["objects_in_fit"], _counts(report))):
        table.add_row("objects", Text(left_out))
    if facts["results"]:
        table.add_row("results", Text(str(results)))
    show_table(table)


def _report(results: Path) -> dict[str, Any]:
    """The report of a job's results; {}: there is none, or it does not say which objects took part."""
    try:
        found = json.loads((results / REPORT).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and "objects_in_fit" in found else {}


def _counts(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**entry, "columns": len(entry["columns"]), "site": "this site"} for entry in report["excluded"]]


@click.command(short_help="Remove the files of a job; never the ledger.")
@click.argument("job")
@click.option("--results", is_flag=True, help="Remove its results as well.")
@config_option
@format_option
def forget(job: str, results: bool, config: Path, format_: str) -> None:
    """Remove the files of a job: its entry in the list of jobs, its preview, consent, attempts and checkpoints.

    Results stay unless --results is given. The ledger, the roster under which the labels were contributed and the count
    of definitions that have opened totals of its objects always stay: they are about what has left this site.

    \b
    Examples:
      ce-client forget demo --config /srv/ce-site
      ce-client forget demo --results --config /srv/ce-site
    """
    settings = read_config(config)
    job_index = JobIndex(settings.state)
    under_way = [entry for entry in job_index.entries() if entry.job == job and not entry.over]
    if under_way and is_running(settings.state):
        raise Refused(
            "job under way", f"job {job!r} is {under_way[0].state} here: wait for its end, or stop the daemon"
        )
    found = {
        "preview": Previews(settings.state).forget(job),
        "consent": Consents(settings.state).forget(job),
        "attempts": AttemptHistory(settings.state).forget(job),
        "checkpoints": _remove_tree(settings.state / CHECKPOINTS, name_of(job)),
        "results": results and (Results(settings.results).discard(job) | _remove_tree(settings.results, job)),
        # The last one: after an interrupt the job is still listed, and can be forgotten again.
        "journal": job_index.forget(job),
    }
    removed = [name for name, existed in found.items() if existed]
    if not removed:
        job_index.entry(job)  # raises UnknownJob for a job that this site was never offered
    remaining = ["ledger"] + (["results"] if _has_directory(settings.results, job) else [])
    say(
        format_,
        {"job": job, "removed": removed, "kept": remaining},
        f"removed of {job}: {', '.join(removed)}; kept: {', '.join(remaining)}",
    )


def _has_directory(parent: Path, name: str) -> bool:
    """True if there is a directory of this name. A job may have been offered with a path for a name: then False."""
    return Path(name).name == name and name not in ("", ".", "..") and (parent / name).is_dir()


def _remove_tree(parent: Path, name: str) -> bool:
    """Remove a directory; False if there is none."""
    if not _has_directory(parent, name):
        return False
    try:
        shutil.rmtree(parent / name)
    except OSError as error:
        raise ConfigError(f"{parent / name}: cannot be removed: {error.strerror}") from error
    return True
