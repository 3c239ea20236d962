"""How tasks reach sites and answers come back: the one interface of every transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from ce.protocol.messages.task import Answer, Task


class Transport(Protocol):
    """Delivers one task to each site and brings back one answer from each."""

    #: Bytes of all messages so far, both ways; 0 where nothing is encoded.
    bytes_sent: int

    def exchange(self, tasks: Mapping[str, Task]) -> Iterator[tuple[str, Answer]]:
        """Send each named site its task; yield (site, answer) as answers arrive, in any order, each site once."""
        ...


class InMemory:
    """Hands tasks over as they are: one site on one machine needs no messages."""

    bytes_sent = 0

    def __init__(self, sites: Mapping[str, Callable[[Task], Answer]]) -> None:
        self._sites = dict(sites)

    def exchange(self, tasks: Mapping[str, Task]) -> Iterator[tuple[str, Answer]]:
        for site, task in tasks.items():
            yield site, self._sites[site](task)
