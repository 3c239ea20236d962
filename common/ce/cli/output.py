"""The output of commands: lines and tables for people, or JSON for scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

format_option = click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Tables for people, or JSON for scripts.",
)


def say(format_: str, facts: Mapping[str, Any] | Sequence[Any], *lines: str) -> None:
    """Print the facts as JSON, or the lines as text."""
    if format_ == "json":
        click.echo(json.dumps(facts, indent=2))
    else:
        for line in lines:
            click.echo(line)


def list_table(*titles: str) -> Table:
    """An empty table with these columns. Values that do not fit on a terminal are folded, never cut."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def fact_table() -> Table:
    """An empty table of names and values."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def show_table(table: Table) -> None:
    """Print a table. If the output goes to a file or another program, lines are not folded."""
    console = Console(emoji=False, highlight=False)
    if console.is_terminal:
        console.print(table)
        return
    console = Console(emoji=False, highlight=False, width=10_000)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def span(seconds: float) -> str:
    """A duration in one unit: days, hours, minutes or seconds."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def ago(seconds: float) -> str:
    """A time in the past, as "3 min ago"."""
    return "just now" if seconds < 2 else f"{span(seconds)} ago"


def size(n_bytes: float) -> str:
    """A number of bytes with its unit, to three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 999.5:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.1f} TB"


def mode_words(privacy: str) -> str:
    """How sites compute together, after the name of a model: all jobs but sealed ones send sums."""
    return privacy if privacy == "sealed" else f"{privacy} sums"
