"""How every command of ce begins and ends: exit codes, completion, and the one place where errors become sentences."""

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

from ce.errors import CeError

EXIT_CODES = """\b
Exit codes:
  0 ok                2 usage               3 bad input
  4 configuration     5 unreachable         6 refused by a rule
  7 job failed        8 cancelled           130 interrupted
"""


def add_completion(group: click.Group, name: str) -> None:
    """Give a group the subcommand `completion`."""

    @group.command(
        help=f"""Print the completion script of a shell.

        \b
        Examples:
          eval "$({name} completion bash)"
          {name} completion fish > ~/.config/fish/completions/{name}.fish
        """
    )
    @click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
    def completion(shell: str) -> None:
        complete = get_completion_class(shell)
        assert complete is not None
        click.echo(complete(group, {}, name, _variable(name)).source())


def enter(group: click.Group, name: str, arguments: list[str] | None) -> NoReturn:
    """Run a command and leave with its exit code; never with a traceback, unless it is asked for."""
    given = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A column name that this terminal's encoding lacks must not end a job.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: Any = group.main(args=given, prog_name=name, standalone_mode=False)
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
        code = error.code if _variable(name) in os.environ else 0
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


def _variable(name: str) -> str:
    return f"_{name.upper().replace('-', '_')}_COMPLETE"
