"""A fake clock: time moves from one event to the next, and never waits."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable

#: A run with more events than this never comes to rest.
MAX_EVENTS = 60_000


class FakeClock:
    """Events in the order of their times; events of equal times in the order in which they were planned.

    An event may belong to a process. Events of a process that has ended meanwhile do not happen.
    """

    def __init__(self, processes: Iterable[str] = ()) -> None:
        self.now = 0.0  # seconds
        self.ahead_s = 1_700_000_000.0  # how far the coordinator's wall clock is ahead of `now`
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count(1)
        self._lives: dict[str, int] = dict.fromkeys(processes, 0)

    @property
    def wall(self) -> float:
        """The coordinator's wall clock, in seconds since 1970."""
        return self.now + self.ahead_s

    @property
    def at_rest(self) -> bool:
        """True when no event is planned."""
        return not self._events

    def at(self, delay_s: float, work: Callable[[], object], process: str | None = None) -> None:
        """Plan an event after a delay; it does not happen if `process` has ended by then."""
        life = None if process is None else self._lives[process]

        def event() -> None:
            if process is None or self._lives[process] == life:
                work()

        heapq.heappush(self._events, (self.now + delay_s, next(self._numbers), event))

    def end_process(self, process: str) -> None:
        """Cancel all planned events of a process."""
        self._lives[process] += 1

    def run(self, until: float) -> None:
        """Let all events happen whose time is at most `until`. Raises RuntimeError after MAX_EVENTS."""
        for _ in range(MAX_EVENTS):
            if not self._events or self._events[0][0] > until:
                return
            self.now, _, event = heapq.heappop(self._events)
            event()
        raise RuntimeError(f"events are still planned after {MAX_EVENTS:,} of them")
