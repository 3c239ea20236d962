"""The `ce-coordinator` command."""

from __future__ import annotations

import logging
from typing import NoReturn

import click

from ce import __version__
from ce.cli.entry import EXIT_CODES, add_completion, enter
from ce_coordinator.cli.jobs import cancel, list_, result, show, sites, submit
from ce_coordinator.cli.serving import check, serve
from ce_coordinator.cli.setup import init, sign
from ce_coordinator.cli.watching import watch


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ce-coordinator")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="How much commands log; debug also shows where an unexpected error arose.",
)
def cli(log_level: str) -> None:
    """The coordinator of consensus jobs: it never needs a label.

    \b
    Examples:
      ce-coordinator init /srv/ce
      ce-coordinator serve --config /srv/ce
      ce-coordinator sign north.csr --config /srv/ce --out to-north
      ce-coordinator submit job.toml --config /srv/ce --watch
    """
    logging.basicConfig(level=log_level.upper(), format="%(levelname)s %(name)s: %(message)s")


add_completion(cli, "ce-coordinator")
for command in (init, sign, serve, check, submit, list_, show, watch, cancel, sites, result):
    cli.add_command(command)


def main(arguments: list[str] | None = None) -> NoReturn:
    enter(cli, "ce-coordinator", arguments)


if __name__ == "__main__":
    main()
