"""The `ce-coordinator` command."""

from __future__ import annotations

from typing import NoReturn

import click

from ce import __version__
from ce.cli.entry import CONTEXT, EXIT_CODES, Commands, add_completion, enter, log_level_option
from ce.service.logs import configure
from ce_coordinator.cli.jobs import cancel, drain, list_, result, show, sites, submit
from ce_coordinator.cli.serve import check, serve
from ce_coordinator.cli.setup import init, renew, sign
from ce_coordinator.cli.watch import watch


@click.group(cls=Commands, epilog=EXIT_CODES, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="ce-coordinator")
@log_level_option
def cli(log_level: str) -> None:
    """The coordinator of consensus jobs: it never needs a label.

    \b
    Examples:
      ce-coordinator init /srv/ce
      ce-coordinator serve --config /srv/ce
      ce-coordinator sign north.csr --config /srv/ce --out to-north
      ce-coordinator submit job.toml --config /srv/ce --watch
    """
    configure(log_level, format="text")


cli.add_section("Set up", init, sign, check, renew)
cli.add_section("Run", serve, drain)
cli.add_section("Jobs and sites", submit, list_, show, watch, cancel, result, sites)
add_completion(cli, "ce-coordinator")


def main(arguments: list[str] | None = None) -> NoReturn:
    enter(cli, "ce-coordinator", arguments)


if __name__ == "__main__":
    main()
