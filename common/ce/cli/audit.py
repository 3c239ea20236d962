"""`ce audit`: play attacks on a job, and show what its messages reveal about labels."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from rich.console import Console
from rich.markup import escape

from ce.cli.options import Options, job_options
from ce.cli.output import list_table, show_table
from ce.declarations.registry import find_model
from ce.errors import ConfigError, InputError
from ce.job import PRIVACY, Job
from ce.labels import LabelTable
from ce.policy import Policy
from ce.splits import split as split_table

# The attacks and their libraries are imported only when an audit runs, so that other commands start faster.
if TYPE_CHECKING:
    from ce.audit import Audit

#: What a number is a share of, by measure; an adjusted Rand index is no share.
_OF = {"ari": "", "histograms": " of counts", "rows": " of rows", "votes": " of objects", "labels": " of labels"}


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE...]")
@click.option("--split", metavar="HOW", help="Split one file: rows:4, columns:4 or blocks:6.")
@click.option(
    "--privacy",
    "modes",
    type=click.Choice(PRIVACY),
    multiple=True,
    help="A mode to audit; may be repeated. Default: all that open totals; pairs has one, sealed.",
)
@click.option("--attack", "attacks", multiple=True, metavar="NAME", help="Only this attack; may be repeated.")
@click.option(
    "--shared-objects",
    type=click.Choice(("totals", "exclude")),
    default="totals",
    show_default=True,
    help="The sites' policy about objects that several of them hold: what their totals reveal, or what is left without "
    "them.",
)
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a report with plots, as one page.")
@job_options
def audit(
    files: tuple[Path, ...],
    split: str | None,
    modes: tuple[str, ...],
    attacks: tuple[str, ...],
    shared_objects: Literal["totals", "exclude"],
    html: Path | None,
    **given: Any,
) -> None:
    """Play attacks on a job's messages and show what they recover of the labels.

    Give one file per site, or one file and --split; without files, an example of four organisations is audited. Nothing
    leaves this machine. Each line names the adversary, the attack, the mode, how much of a column the attack recovers
    (adjusted Rand index: 0 nothing, 1 every object) and how much of it the published consensus implies anyway.

    \b
    Examples:
      ce audit
      ce audit north.csv east.csv south.csv --clusters 5 --html audit.html
      ce audit labels.csv --split columns:5 --clusters 5 --privacy masked
      ce audit labels.csv --split rows:4 --clusters 5 --format json
      ce audit north.csv east.csv south.csv --clusters 5 --shared-objects exclude
      ce audit --attack unmixing --attack 'two rosters' --privacy masked
    """
    from ce.audit import audit as audit_job
    from ce.audit.html import write_page

    options = Options(truth=None, **given)
    job, tables = _job_and_tables(files, split, options)
    if html is not None:
        _check_page(html, files)
    try:
        with _progress() as show:
            policy = Policy(shared_objects=shared_objects)
            found = audit_job(
                job, tables, modes=modes or None, attacks=attacks or None, policy=policy, on_progress=show
            )
    except ConfigError as error:  # an attack's name
        raise click.UsageError(str(error)) from error
    if html is not None:
        write_page(html, found)
    if options.format_ == "json":
        click.echo(json.dumps({**found.as_dict(), "written": [] if html is None else [str(html)]}, indent=2))
        return
    _show(found)
    if html is not None:
        click.echo(f"wrote {html}")


# An audit scores attacks against the sites' labels, so that it needs no --truth.
audit.params = [parameter for parameter in audit.params if parameter.name != "truth"]


def _job_and_tables(files: tuple[Path, ...], split: str | None, options: Options) -> tuple[Job, dict[str, LabelTable]]:
    """The job to audit, and each site's label table."""
    from ce.audit.example import GROUPS, example_tables

    if split is not None and not re.fullmatch(r"(rows|columns|blocks):[1-9][0-9]{0,8}", split):
        raise click.UsageError("--split is rows:N, columns:N or blocks:N")
    if not files:
        if split is not None:
            raise click.UsageError("--split takes one file")
        if find_model(options.model).takes_classes:
            raise click.UsageError(f"the example has no classifiers: give files for {options.model}")
        tables = example_tables()
        clusters = GROUPS if options.clusters is None else options.clusters
        return replace(options, clusters=clusters).job("example", tuple(tables)), tables
    if split is None:
        tables = options.read_sites(files)
    elif len(files) == 1:
        tables = split_table(options.read(files[0]), split, options.seed)
    else:
        raise click.UsageError("--split takes one file; without it each file is a site")
    if len(tables) < 2:
        raise click.UsageError("an audit needs at least two sites: give a file per site, or --split")
    return options.job("audit", tuple(tables)), tables


def _check_page(path: Path, inputs: tuple[Path, ...]) -> None:
    """Raise InputError, before anything is computed, if the page cannot be written or is one of the input files."""
    if not path.name or (path.exists() and not path.is_file()):
        raise InputError(f"{path}: cannot be written: not a file: choose another --html")
    if path.exists() and any(read.exists() and path.samefile(read) for read in inputs):
        raise InputError(f"{path}: would overwrite a file that is read: choose another --html")


@contextmanager
def _progress() -> Iterator[Callable[[str], None] | None]:
    """A line that says what is being done if standard error is a terminal; otherwise nothing."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    with Console(stderr=True).status("reading labels") as status:
        yield lambda text: status.update(escape(text))


def _show(found: Audit) -> None:
    from ce.audit.html import summary

    table = list_table("view", "attack", "mode", "target", "recovered", "baseline", "verdict")
    for finding in found.worst():
        verdict = escape(finding.verdict)
        table.add_row(
            escape(finding.view),
            escape(finding.attack),
            finding.mode,
            escape(finding.target),
            f"{finding.recovered:.3f}{_OF[finding.measure]}",
            f"{finding.baseline:.3f}",
            f"[bold red]{verdict}[/]" if finding.leaks else verdict,
        )
    show_table(table)
    click.echo()
    if found.objects < found.of_objects:
        click.echo(f"attacked {found.objects:,} of {found.of_objects:,} objects, drawn at random")
    if found.excluded_objects:
        click.echo(f'left out {found.excluded_objects:,} objects that several sites hold (shared_objects = "exclude")')
    broken = sorted({rule for rules in found.broken_rules.values() for rule in rules})
    if broken:
        click.echo(f"sites with this policy would exclude part of this job, or refuse it: {', '.join(broken)}")
    for line in summary(found):
        click.echo(line)
