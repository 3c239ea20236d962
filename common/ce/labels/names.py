"""Names of ids, columns and labels: cleaned, listed in errors, matched with patterns, numbered."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ce.errors import LabelError, UnknownColumn


def clean_text(text: str) -> str:
    text = text.strip()
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def is_text(text: str) -> bool:
    """Whether the text has no control characters, which files and terminals interpret, and no unpaired surrogates."""
    return text.isprintable() or not any(c < " " or "\x7f" <= c <= "\x9f" or "\ud800" <= c <= "\udfff" for c in text)


def listed(names: Iterable[str]) -> str:
    """Column names for an error message."""
    known = [repr(name) for name in names]
    return ", ".join(known[:20]) + (f" and {len(known) - 20} more" if len(known) > 20 else "")


def refuse_repeated(names: Sequence[str], source: str) -> None:
    seen: set[str] = set()
    for at, name in enumerate(names):
        if not is_text(name):
            raise LabelError(f"the name of column {at + 1} has a character that is not text: rename it", source=source)
        if name in seen:
            raise LabelError("two columns have this name: rename one", source=source, column=name)
        seen.add(name)


def refuse_unknown_noise(noise: str) -> None:
    if noise not in ("missing", "keep"):
        raise LabelError(f"unknown noise {noise!r}: expected 'missing' or 'keep'")


def matching(names: Sequence[str], patterns: Iterable[str], source: str) -> set[str]:
    """The names that match a pattern (a name or a glob). Raises UnknownColumn for a pattern that matches none."""
    picked: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        hits = {name for name in names if name == pattern or fnmatchcase(name, pattern)}
        if not hits:
            problem = f"unknown column: no column matches this classifier; the columns are {listed(names)}"
            raise UnknownColumn(problem, source=source, column=pattern)
        picked |= hits
    return picked


def factorise(values: Iterable[Hashable]) -> tuple[list[Any], NDArray[np.intp]]:
    """The distinct values in order of appearance, and for every value its index among them."""
    place: defaultdict[Hashable, int] = defaultdict()
    place.default_factory = place.__len__
    inverse = np.fromiter(map(place.__getitem__, values), dtype=np.intp)
    return list(place), inverse
