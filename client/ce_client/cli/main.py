"""The `ce-client` command."""

from __future__ import annotations

import logging
from typing import NoReturn

import click

from ce import __version__
from ce.cli.entry import EXIT_CODES, add_completion, enter
from ce_client.cli.jobs import jobs, show
from ce_client.cli.running import check, run
from ce_client.cli.setup import fingerprint, init, trust


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ce-client")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="How much commands log; debug also shows where an unexpected error arose.",
)
def cli(log_level: str) -> None:
    """A site's part in consensus jobs: its labels stay here.

    \b
    Examples:
      ce-client init /srv/ce-site --name north --coordinator hub.example.org:8443
      ce-client trust south SHA256:5f0c... --config /srv/ce-site
      ce-client check --config /srv/ce-site
      ce-client run --config /srv/ce-site
    """
    logging.basicConfig(level=log_level.upper(), format="%(levelname)s %(name)s: %(message)s")


add_completion(cli, "ce-client")
for command in (init, fingerprint, trust, check, run, jobs, show):
    cli.add_command(command)


def main(arguments: list[str] | None = None) -> NoReturn:
    enter(cli, "ce-client", arguments)


if __name__ == "__main__":
    main()
