"""A preflight: one line for each thing that must be right, ok or what to do about it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import click
from rich.console import Console
from rich.markup import escape

from ce.errors import CeError

Result = TypeVar("Result")


@dataclass(frozen=True)
class Check:
    name: str
    ok: bool
    sentence: str
    exit_code: int = 0


class Checks:
    """Collects checks; `finish` prints them and leaves with the exit code of the first that failed."""

    def __init__(self) -> None:
        self._checks: list[Check] = []

    def run(self, name: str, work: Callable[[], Result], fine: str | None) -> Result | None:
        """Do something that raises a CeError when it is not right. `fine` None: the caller notes it itself."""
        try:
            result = work()
        except CeError as error:
            self._checks.append(Check(name, False, str(error), error.exit_code))
            return None
        if fine is not None:
            self.note(name, fine)
        return result

    def note(self, name: str, sentence: str) -> None:
        self._checks.append(Check(name, True, sentence))

    def finish(self, format_: str) -> None:
        failed = [check for check in self._checks if not check.ok]
        if format_ == "json":
            checks = [{"check": c.name, "ok": c.ok, "sentence": c.sentence} for c in self._checks]
            click.echo(json.dumps({"ok": not failed, "checks": checks}, indent=2))
        else:
            console = Console(emoji=False)
            width = max(len(check.name) for check in self._checks)
            for check in self._checks:
                sign = "[green]ok    [/]" if check.ok else "[bold red]to do [/]"
                console.print(
                    f"{sign} {escape(check.name.ljust(width))}  {escape(check.sentence)}",
                    highlight=False,
                    soft_wrap=True,
                )
        if failed:
            # Said already, line by line.
            sys.stdout.flush()
            raise click.exceptions.Exit(failed[0].exit_code)
