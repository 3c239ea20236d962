"""The state of an engine as plain values: what a process that was killed goes on from.

A snapshot is taken of a round that begins an iteration: at the home when the round is opened, at a site when it has
been answered. A job of which both exist can go on from there, in another epoch and under other masks, and ends with
the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Numbers, texts, bytes, arrays, None, and lists and dictionaries (with texts as keys) of those.
Snapshot = dict[str, Any]


def numbered(values: Mapping[int, Any]) -> dict[str, Any]:
    """A dictionary with numbers as keys, in a snapshot."""
    return {str(key): value for key, value in values.items()}


def by_number(values: Mapping[str, Any]) -> dict[int, Any]:
    """The same again."""
    return {int(key): value for key, value in values.items()}
