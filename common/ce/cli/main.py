"""The `ce` command: its group, its exit codes, and the one place where errors become sentences."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from typing import Any, NoReturn

import click
from click.shell_completion import get_completion_class
from rich.console import Console
from rich.markup import escape

from ce import __version__
from ce.cli.fit import fit
from ce.cli.measure import metrics
from ce.cli.simulating import simulate
from ce.errors import CeError

EXIT_CODES = """\b
Exit codes:
  0 ok                2 usage               3 bad input
  4 configuration     6 refused by a rule   7 job failed
  8 cancelled         130 interrupted
"""


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ce")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="How much to log; debug also shows where an unexpected error arose.",
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


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      eval "$(ce completion bash)"
      ce completion fish > ~/.config/fish/completions/ce.fish
    """
    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(cli, {}, "ce", "_CE_COMPLETE").source())


cli.add_command(fit)
cli.add_command(simulate)
cli.add_command(metrics)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command and leave with its exit code; never with a traceback, unless it is asked for."""
    given = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A column name that this terminal's encoding lacks must not end a job.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: Any = cli.main(args=given, prog_name="ce", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted", 130, given)
        code = 130
    except CeError as error:
        _say(str(error), error.exit_code, given)
        code = error.exit_code
    except SystemExit as error:
        # After completion; or click or rich saw that whoever read our output has stopped: nobody is left to tell.
        code = error.code if "_CE_COMPLETE" in os.environ else 0
    except MemoryError:
        _say("not enough memory for these labels; fewer restarts need less", 1, given)
        code = 1
    except Exception as error:
        if logging.getLogger().isEnabledFor(logging.DEBUG):
            raise
        _say(f"unexpected {type(error).__name__}; --log-level debug shows where", 1, given)
        code = 1
    sys.exit(_flushed(code if isinstance(code, int) else 0))


def _flushed(code: int) -> int:
    """The exit code once all output is written. What cannot be is dropped, or Python would try again, and complain."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code if isinstance(error, BrokenPipeError) else code or 1
    return code


def _say(sentence: str, code: int, arguments: list[str]) -> None:
    text = " ".join(arguments)
    if "--format json" in text or "--format=json" in text:
        click.echo(json.dumps({"error": sentence, "exit_code": code}), err=True)
    else:
        Console(stderr=True, emoji=False).print(
            f"[bold red]error:[/] {escape(sentence)}", highlight=False, soft_wrap=True
        )


if __name__ == "__main__":
    main()
