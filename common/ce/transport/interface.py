"""The interface of every transport."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol


class Transport(Protocol):
    """Delivers one task to each site and brings back one answer from each."""

    def exchange(self, tasks: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
        """Send each named site its task; yield (site, answer) as answers arrive, in any order, each site once."""
        ...
