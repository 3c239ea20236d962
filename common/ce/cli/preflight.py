"""The checks of both daemons' `check` command: one line per check, with "ok" or with what to do."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console
from rich.markup import escape

from ce.declarations.registry import package_problems
from ce.errors import CeError, ConfigError

Result = TypeVar("Result")


@dataclass(frozen=True)
class Check:
    name: str
    ok: bool
    sentence: str
    exit_code: int = 0


class Checks:
    """Collects checks. `finish` prints them and ends the command with the exit code of the first that failed."""

    def __init__(self) -> None:
        self._checks: list[Check] = []

    def run(self, name: str, work: Callable[[], Result], fine: str | None) -> Result | None:
        """Run a check that raises a CeError if it fails. `fine` is the sentence if it succeeds; None: the caller adds
        one."""
        try:
            result = work()
        except CeError as error:
            self.fail(name, error)
            return None
        if fine is not None:
            self.note(name, fine)
        return result

    def note(self, name: str, sentence: str) -> None:
        self._checks.append(Check(name, True, sentence))

    def fail(self, name: str, error: CeError) -> None:
        self._checks.append(Check(name, False, str(error), error.exit_code))

    def finish(self, format_: str) -> None:
        failed = [check for check in self._checks if not check.ok]
        if format_ == "json":
            checks = [
                {"check": c.name, "ok": c.ok, "sentence": c.sentence, "exit_code": c.exit_code} for c in self._checks
            ]
            code = failed[0].exit_code if failed else 0
            click.echo(json.dumps({"ok": not failed, "exit_code": code, "checks": checks}, indent=2))
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
            # The lines above are the error message.
            sys.stdout.flush()
            raise click.exceptions.Exit(failed[0].exit_code)


def check_packages(checks: Checks) -> None:
    """One line for each installed package that offers a model which cannot be used."""
    for problem in package_problems():
        checks.fail("models", problem)


def check_writable(directory: Path) -> None:
    """Raise ConfigError unless files can be created in this directory or, if it does not exist, in its nearest parent.

    The directory itself is not created: it would belong to the user who checks, not to the user who runs the daemon.
    """
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    probe = existing / f".{os.getpid()}.probe"
    try:
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"{directory}: cannot be written: {error.strerror}: choose a directory that this user may write to or "
            "create"
        ) from error
