"""Entry and exit of every command line of ce: help, exit codes, completion, and how errors are printed."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any, NoReturn, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import get_completion_class
from rich.console import Console
from rich.markup import escape

from ce.errors import CeError
from ce.service.logs import LEVELS

Command = TypeVar("Command", bound=Callable[..., Any])
Result = TypeVar("Result")

EXIT_CODES = """\b
Exit codes:
  0 ok                2 usage               3 bad input
  4 configuration     5 unreachable         6 refused by a rule
  7 job failed        8 cancelled           130 interrupted
"""


#: Settings of all groups of commands: -h is --help, and help is up to 100 characters wide.
CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Commands(click.Group):
    """A group of commands whose help lists them under headings, in the order in which they were added."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._sections: dict[str, list[click.Command]] = {}

    def add_section(self, heading: str, *commands: click.Command) -> None:
        self._sections.setdefault(heading, []).extend(commands)
        for command in commands:
            self.add_command(command)

    def list_commands(self, context: click.Context) -> list[str]:
        named = [str(command.name) for commands in self._sections.values() for command in commands]
        return [*named, *sorted(set(self.commands) - set(named))]

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        listed = {id(command) for commands in self._sections.values() for command in commands}
        others = [command for command in self.commands.values() if id(command) not in listed]
        widest = max(map(len, self.commands))
        for heading, commands in (*self._sections.items(), ("Other", others)):
            with formatter.section(heading):
                room = formatter.width - formatter.current_indent - widest - 2
                rows = [(str(command.name).ljust(widest), command.get_short_help_str(room)) for command in commands]
                formatter.write_dl(rows)


def log_level_option(command: Command) -> Command:
    """--log-level of a whole command line. Commands that run a daemon have another one, see `daemon_level`."""
    return click.option(
        "--log-level",
        type=click.Choice(LEVELS),
        default="warning",
        show_default=True,
        help="How much commands log; debug also prints the traceback of an unexpected error.",
    )(command)


def daemon_options(command: Command) -> Command:
    """--log-level and --format of a command that runs a daemon."""
    level = click.option("--log-level", type=click.Choice(LEVELS), help="How much to log, instead of log.level.")
    format_ = click.option(
        "--format",
        "format_",
        type=click.Choice(["text", "json"]),
        help="How events and errors are written, instead of log.format.",
    )
    return level(format_(command))


def daemon_level(of_command: str | None, configured: str) -> str:
    """A daemon's log level: from --log-level after the command, else before it, else from the configuration."""
    root = click.get_current_context().find_root()
    given = root.get_parameter_source("log_level") is ParameterSource.COMMANDLINE
    return of_command or (str(root.params["log_level"]) if given else configured)


def add_completion(group: click.Group, name: str) -> None:
    """Add the command `completion` to a group."""

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


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """Run an asynchronous call of a command.

    A process that does this twice has two event loops, one after the other. gRPC wakes both, and logs an error when one
    has nothing to read or is closed, although nothing is wrong (grpc/grpc#25364). Such errors are suppressed.
    """

    async def run() -> Result:
        asyncio.get_running_loop().set_exception_handler(_handle)
        return await work

    return asyncio.run(run())


def _handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    harmless = isinstance(context.get("exception"), BlockingIOError | RuntimeError)
    if not (harmless and "PollerCompletionQueue" in str(context.get("handle"))):
        loop.default_exception_handler(context)


def enter(group: click.Group, name: str, arguments: list[str] | None) -> NoReturn:
    """Run a command and exit with its exit code. Tracebacks are printed with --log-level debug only."""
    given = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A column name that the terminal cannot display must not end a job.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: Any = group.main(args=given, prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        if _wants_json(given):
            _print_error(error.format_message(), error.exit_code, given)
        else:
            error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _print_error("interrupted", 130, given)
        code = 130
    except CeError as error:
        _print_error(str(error), error.exit_code, given)
        code = error.exit_code
    except SystemExit as error:
        # Either completion is done, or the reader of the output has closed the pipe: then this is no error.
        code = error.code if _variable(name) in os.environ else 0
    except MemoryError:
        _print_error("not enough memory for these labels: lower --restarts, or use a larger machine", 1, given)
        code = 1
    except Exception as error:
        if logging.getLogger().isEnabledFor(logging.DEBUG):
            raise
        _print_error(f"unexpected {type(error).__name__}; --log-level debug shows where", 1, given)
        code = 1
    sys.exit(_flushed(code if isinstance(code, int) else 0))


def _flushed(code: int) -> int:
    """Flush the output, then return the exit code. Output that cannot be written is dropped: otherwise Python would try
    again at exit, and print an error."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code if isinstance(error, BrokenPipeError) else code or 1
    return code


def _print_error(sentence: str, code: int, arguments: list[str]) -> None:
    if _wants_json(arguments):
        click.echo(json.dumps({"error": sentence, "exit_code": code}), err=True)
    else:
        Console(stderr=True, emoji=False).print(
            f"[bold red]error:[/] {escape(sentence)}", highlight=False, soft_wrap=True
        )


def _wants_json(arguments: list[str]) -> bool:
    """Whether --format json was given; works also if the arguments cannot be parsed."""
    return "--format=json" in arguments or ("--format", "json") in pairwise(arguments)


def _variable(name: str) -> str:
    return f"_{name.upper().replace('-', '_')}_COMPLETE"
