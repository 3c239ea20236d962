"""The `ce-client` command and its subcommands."""

from __future__ import annotations

from typing import NoReturn

import click

from ce import __version__
from ce.cli.entry import CONTEXT, EXIT_CODES, Commands, add_completion, enter, log_level_option
from ce.service.logs import configure
from ce_client.cli.budget import allow_release, budget
from ce_client.cli.decisions import allow_definition, allow_redraw, allow_roster, approve, decline, preview
from ce_client.cli.jobs import forget, jobs, show
from ce_client.cli.ledger import ledger
from ce_client.cli.run import check, run
from ce_client.cli.setup import fingerprint, init, request, trust


@click.group(cls=Commands, epilog=EXIT_CODES, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="ce-client")
@log_level_option
def cli(log_level: str) -> None:
    """A site's part in consensus jobs: its labels stay here.

    \b
    Examples:
      ce-client init /srv/ce-site --name north --coordinator hub.example.org:8443
      ce-client trust south SHA256:5f0c... --config /srv/ce-site
      ce-client check --config /srv/ce-site
      ce-client run --config /srv/ce-site
    """
    configure(log_level, format="text")


cli.add_section("Set up", init, fingerprint, trust, check, request)
cli.add_section("Run", run)
cli.add_section(
    "Jobs", jobs, show, preview, approve, decline, allow_roster, allow_definition, allow_release, allow_redraw
)
cli.add_section("Ledger and clean-up", ledger, budget, forget)
add_completion(cli, "ce-client")


def main(arguments: list[str] | None = None) -> NoReturn:
    enter(cli, "ce-client", arguments)


if __name__ == "__main__":
    main()
