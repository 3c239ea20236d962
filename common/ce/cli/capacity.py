"""`ce capacity`: what a job of a given size would take."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ce import capacity as formulas
from ce.cli.options import precision_option
from ce.cli.output import fact_table, format_option, show_table
from ce.cli.output import size as readable
from ce.declarations.registry import DEFAULT, find_model, model_names
from ce.job import PRIVACY

Command = TypeVar("Command", bound=Callable[..., Any])


def _count(name: str, help_: str, default: int | None = None, smallest: int = 1) -> Callable[[Command], Command]:
    return click.option(
        name,
        type=click.IntRange(min=smallest),
        required=default is None,
        default=default,
        show_default=default is not None,
        metavar="NUMBER",
        help=help_,
    )


@click.command(short_help="What a job of a given size would take: bytes, memory, disk.")
@_count("--sites", "Sites.")
@_count("--objects", "Objects at each site.")
@_count("--shared", "Objects among these that all other sites hold, too.", 0, 0)
@_count("--columns", "Columns at each site.")
@_count("--shared-columns", "Columns among these that all other sites hold, too.", 0, 0)
@_count("--categories", "Categories of each column.")
@_count("--clusters", "Consensus clusters, or classes.")
@click.option(
    "--restarts", type=click.IntRange(min=1), metavar="NUMBER", help="Starts. Default: 5, 20 for mixture, 1 for bc3e."
)
@_count("--iterations", "Iterations.", 100, 0)
@click.option("--model", type=click.Choice(model_names()), default=DEFAULT, show_default=True, help="What is fitted.")
@click.option(
    "--privacy", type=click.Choice(PRIVACY), help="How sums travel. Default: masked; sealed for models without sums."
)
@precision_option
@format_option
def capacity(format_: str, restarts: int | None, privacy: str | None, model: str, **given: Any) -> None:
    """What a job of a given size would take, at most: bytes on the wire, memory and disk.

    All sites are assumed to be of the same size. docs/capacity.md has the formulas, and how accurate they are.

    \b
    Examples:
      ce capacity --sites 4 --objects 100000 --columns 6 --shared-columns 6 --categories 12 --clusters 10
      ce capacity --sites 4 --objects 100000 --shared 20000 --columns 6 --categories 12 --clusters 10 --privacy blind
      ce capacity --sites 4 --objects 100000 --shared 20000 --columns 6 --categories 12 --clusters 10 --model pairs
    """
    declaration = find_model(model)
    sealed, starts = declaration.sealed, restarts or declaration.restarts
    job = formulas.Size(starts=starts, model=model, privacy=privacy or ("sealed" if sealed else "masked"), **given)
    facts = _sealed(job) if sealed else _over_totals(job)
    if format_ == "json":
        click.echo(json.dumps({name.replace(", ", " ").replace(" ", "_"): round(fact) for name, fact in facts.items()}))
        return
    table = fact_table()
    for name, fact in facts.items():
        table.add_row(name, f"{fact:,}" if name in _NUMBERS else readable(fact))
    show_table(table)


#: What is not counted in bytes.
_NUMBERS = ("exchanges", "bits of a word")


def _over_totals(job: formulas.Size) -> dict[str, float]:
    iteration = formulas.iteration_traffic(job)
    return {
        "exchanges": formulas.exchanges(job),
        "to a site, each iteration": iteration.down,
        "from a site, each iteration": iteration.up,
        "on the wire, all sites and iterations": formulas.job_traffic(job),
        "memory at the coordinator": formulas.coordinator_memory(job),
        "memory at a site": formulas.site_memory(job),
        "checkpoints at the coordinator": formulas.CHECKPOINTS * formulas.coordinator_checkpoint(job),
        "checkpoints at a site": formulas.CHECKPOINTS * formulas.site_checkpoint(job),
        "ledger at a site": formulas.ledger_bytes(job),
    }


def _sealed(job: formulas.Size) -> dict[str, float]:
    from ce import sealed_capacity as sealed  # its sizes are those of a protocol that needs libraries

    shape = sealed.SealedShape.even(job)
    enrolment = sealed.enrolment_traffic(job)
    # The last site by name is sent what the dealer makes; the others less.
    last, first = shape.sites[-1], shape.sites[0]
    return {
        "exchanges": sealed.exchanges(shape),
        "bits of a word": shape.bits,
        "to a site, at most": enrolment.down + sealed.site_traffic(shape, last).down,
        "from a site, at most": enrolment.up + max(sealed.site_traffic(shape, site).up for site in (first, last)),
        "on the wire, all sites": job.sites * enrolment.both + sealed.rounds_traffic(shape),
        "memory at the coordinator": max(sealed.coordinator_memory(shape), formulas.alignment_memory(job)),
        "memory at a site": sealed.site_memory(shape, last, job.objects, job.columns),
        "on the disk of the coordinator": sealed.coordinator_disk(shape),
        "on the disk of a site": sealed.site_disk(shape, last),
    }
