"""The `ce` command."""

from __future__ import annotations

import logging
from typing import NoReturn

import click

from ce import __version__
from ce.cli.audit import audit
from ce.cli.capacity import capacity
from ce.cli.entry import EXIT_CODES, add_completion, enter
from ce.cli.fit import fit
from ce.cli.metrics import metrics
from ce.cli.simulate import simulate
from ce.cli.warmup import warmup


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ce")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="How much to log; debug also prints the traceback of an unexpected error.",
)
def cli(log_level: str) -> None:
    """Consensus over private labels, on one machine.

    \b
    Examples:
      ce fit labels.csv --clusters 5 --out consensus.csv
      ce simulate north.csv east.csv south.csv --clusters 5 --out results
      ce simulate labels.csv --split blocks:6 --clusters 5 --out results
      ce metrics consensus.csv truth.csv
    """
    logging.basicConfig(level=log_level.upper(), format="%(levelname)s %(name)s: %(message)s")


add_completion(cli, "ce")
cli.add_command(fit)
cli.add_command(simulate)
cli.add_command(metrics)
cli.add_command(audit)
cli.add_command(capacity)
cli.add_command(warmup)


def main(arguments: list[str] | None = None) -> NoReturn:
    enter(cli, "ce", arguments)


if __name__ == "__main__":
    main()
