"""ce-client jobs and show: the jobs that this site was in."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from ce.cli.options import format_option
from ce.cli.output import ago, show_table
from ce_client.cli.options import config_option, read_config
from ce_client.journal import Journal


@click.command()
@config_option
@format_option
def jobs(config: Path, format_: str) -> None:
    """List the jobs that this site was offered, the newest first.

    \b
    Examples:
      ce-client jobs --config /srv/ce-site
    """
    entries = Journal(read_config(config).state).entries()
    if format_ == "json":
        click.echo(json.dumps([asdict(entry) for entry in entries], indent=2))
        return
    if not entries:
        click.echo("no jobs yet")
        return
    table = Table()
    for title in ("job", "state", "model", "sites", "since", "reason"):
        table.add_column(title)
    for entry in entries:
        since = f"{ago(time.time() - entry.since_s)} ago"
        table.add_row(escape(entry.job), entry.state, entry.model, ", ".join(entry.sites), since, escape(entry.reason))
    show_table(table)


@click.command()
@click.argument("job")
@config_option
@format_option
def show(job: str, config: Path, format_: str) -> None:
    """Show one job: what was asked, how it ended, where the results are.

    \b
    Examples:
      ce-client show demo --config /srv/ce-site
    """
    settings = read_config(config)
    entry = Journal(settings.state).entry(job)
    results = settings.results / entry.job
    facts = asdict(entry) | {"results": str(results) if results.exists() else None}
    if format_ == "json":
        click.echo(json.dumps(facts, indent=2))
        return
    table = Table(title=escape(f"Job {entry.job}"), title_justify="left", show_header=False)
    table.add_row("state", entry.state)
    table.add_row("model", f"{entry.model}, {entry.privacy} sums")
    table.add_row("sites", ", ".join(entry.sites))
    table.add_row("coordinator", escape(entry.coordinator))
    table.add_row("attempt", str(entry.epoch))
    table.add_row("since", f"{ago(time.time() - entry.since_s)} ago")
    if entry.reason:
        table.add_row("reason", escape(entry.reason))
    if facts["results"]:
        table.add_row("results", escape(str(results)))
    show_table(table)
