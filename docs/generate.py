"""Writes the pages of docs/ that say what the code declares.

    python docs/generate.py           write them
    python docs/generate.py --check   end with 1, and name them, when some are not what would be written

A test runs the check. What a page says is changed where it is declared, or in docs/pages/, never in the page.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pages import api, capacity, commands, configuration, errors, metrics, promises

DOCS = Path(__file__).parent
PAGES = (api, capacity, commands, configuration, errors, metrics, promises)


def written() -> dict[str, str]:
    """Every page, by its name."""
    return {f"{module.__name__.rpartition('.')[2]}.md": module.page() for module in PAGES}


def out_of_date(directory: Path = DOCS) -> list[str]:
    """The pages there that are not what would be written."""
    return [
        name
        for name, text in written().items()
        if not (directory / name).exists() or (directory / name).read_text(encoding="utf-8") != text
    ]


def write(directory: Path = DOCS) -> None:
    for name, text in written().items():
        (directory / name).write_text(text, encoding="utf-8")


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        if old := out_of_date():
            sys.exit(f"not up to date: {', '.join(old)}; run make docs")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        write()


if __name__ == "__main__":
    main()
