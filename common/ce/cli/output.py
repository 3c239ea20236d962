"""What a command prints: lines for people, or JSON for scripts."""

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
    """The facts as JSON, or the lines."""
    if format_ == "json":
        click.echo(json.dumps(facts, indent=2))
    else:
        for line in lines:
            click.echo(line)


def list_table(*titles: str) -> Table:
    """A table with one row per thing. What does not fit on a terminal is folded, never cut."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def fact_table() -> Table:
    """A table of names and what they are."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def show_table(table: Table) -> None:
    """A table on standard output; one that goes to a file or another program has lines of any length."""
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
    """How long something takes, as people say it."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def ago(seconds: float) -> str:
    """How long ago something was."""
    return "just now" if seconds < 2 else f"{span(seconds)} ago"


def size(n_bytes: float) -> str:
    """Bytes, to three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 999.5:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.1f} TB"
