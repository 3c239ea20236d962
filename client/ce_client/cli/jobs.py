"""ce-client jobs and show: the jobs that this site was in."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import click
from rich.text import Text

from ce.cli.output import ago, fact_table, format_option, list_table, say, show_table
from ce_client.cli.options import config_option, read_config
from ce_client.journal import Journal

_COLOURS = {"done": "green", "failed": "red", "refused": "red", "cancelled": "yellow", "running": "cyan"}


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
    entries = Journal(read_config(config).state).entries()
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
    """Show one job: what was asked, how it ended, where the results are.

    \b
    Examples:
      ce-client show demo --config /srv/ce-site
      ce-client show demo --config /srv/ce-site --format json
    """
    settings = read_config(config)
    entry = Journal(settings.state).entry(job)
    results = settings.results / entry.job
    facts = asdict(entry) | {"results": str(results) if entry.state == "done" and results.exists() else None}
    if format_ == "json":
        click.echo(json.dumps(facts, indent=2))
        return
    table = fact_table()
    table.add_row("job", Text(entry.job))
    table.add_row("state", Text(entry.state, style=_COLOURS.get(entry.state, "")))
    table.add_row("model", f"{entry.model}, {entry.privacy} sums")
    table.add_row("sites", ", ".join(entry.sites))
    table.add_row("coordinator", Text(entry.coordinator))
    table.add_row("attempt", str(entry.epoch))
    if entry.rounds:
        table.add_row("rounds", f"{entry.rounds:,}")
    table.add_row("since", ago(time.time() - entry.since_s))
    if entry.reason:
        table.add_row("reason", Text(entry.reason))
    if facts["results"]:
        table.add_row("results", Text(str(results)))
    show_table(table)
