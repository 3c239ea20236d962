"""`ce warmup`: compile the kernels before they are needed."""

from __future__ import annotations

import json

import click

from ce.cli.output import format_option
from ce.kernels.code_cache import cache_folder
from ce.kernels.warmup import warm_up


@click.command(short_help="Compile the fast kernels, once per installation.")
@format_option
def warmup(format_: str) -> None:
    """Compile the fast kernels, so that no later command waits for them.

    Needs numba (pip install 'ce[fast]'); without it ce runs on numpy, which needs no preparation and gives the same
    results more slowly. Machine code is stored in $CE_CACHE_DIR, or in the folder ce of the user's cache.

    \b
    Examples:
      ce warmup
      CE_CACHE_DIR=/var/lib/ce/cache ce warmup
    """
    warmth = warm_up(announce_compilation)
    if format_ == "json":
        facts = {"kernels": warmth.kernels, "was_compiled": warmth.was_compiled, "seconds": round(warmth.seconds, 2)}
        click.echo(json.dumps(facts))
    elif warmth.kernels == "numpy":
        click.echo("ce runs on numpy: there is nothing to compile. Faster: pip install 'ce[fast]'")
    elif warmth.was_compiled:
        click.echo(f"kernels were compiled already: {cache_folder()}")
    else:
        click.echo(f"kernels compiled in {warmth.seconds:.1f} s: {cache_folder()}")


def announce_compilation(sentence: str) -> None:
    """Say on the terminal why a command waits."""
    click.echo(sentence, err=True)
