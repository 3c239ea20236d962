"""What a command prints: lines for people, or one JSON object for scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.table import Table


def say(format_: str, facts: Mapping[str, Any], *lines: str) -> None:
    """The facts as JSON, or the lines."""
    if format_ == "json":
        click.echo(json.dumps(facts, indent=2))
    else:
        for line in lines:
            click.echo(line)


def show_table(table: Table) -> None:
    """A table on standard output; wide ones are not cut when nobody sees them on a terminal."""
    console = Console(emoji=False)
    if not console.is_terminal:
        console = Console(emoji=False, width=200)
    console.print(table)


def ago(seconds: float) -> str:
    """A time span as people say it."""
    if seconds < 2:
        return "now"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def size(n_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} GB"
