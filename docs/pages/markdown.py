"""What all pages are made of: the note at their top, tables, and docstrings as paragraphs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable


def head(title: str) -> str:
    """The first lines of a page."""
    return f"# {title}\n\nWritten by `make docs` from the declarations in the code: change those, and run it again.\n"


def table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """The lines of a table."""
    lines = [titles, tuple("---" for _ in titles), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def code(text: str, language: str = "") -> list[str]:
    """The lines of a block that is shown as it is."""
    return [f"```{language}", *text.rstrip().splitlines(), "```"]


def anchor(heading: str) -> str:
    """Where a link to a heading leads."""
    return re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")


def docstring(thing: object) -> list[str]:
    """The lines of a thing's docstring. Indented ones are shown as they are, as Markdown does anyhow.

    Raises for a thing without one: a page would have nothing to say of it.
    """
    text = inspect.getdoc(thing)
    if not text:
        raise SystemExit(f"{getattr(thing, '__qualname__', thing)} has no docstring")
    return _parted(text.splitlines())


def summary(thing: object) -> str:
    """The first paragraph of a docstring, as one line."""
    lines = docstring(thing)
    end = lines.index("") if "" in lines else len(lines)
    return " ".join(line.strip() for line in lines[:end])


def _parted(lines: list[str]) -> list[str]:
    """A blank line wherever an indented block begins or ends: without it Markdown takes it for text."""
    parted: list[str] = []
    for line in lines:
        if parted and line and parted[-1] and line.startswith("    ") != parted[-1].startswith("    "):
            parted.append("")
        parted.append(line)
    return parted
