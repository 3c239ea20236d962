"""When a checkpoint of a job is due: at the coordinator, and in the same round at every site."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CheckpointInterval:
    """A checkpoint is due when both have passed since the one before: seconds, and exchanges."""

    every_s: float = 5.0
    every_exchanges: int = 5


class CheckpointSchedule:
    """Whether the next checkpoint of one attempt is due, and whether a requested one has been answered by all sites."""

    def __init__(self, interval: CheckpointInterval, now: float) -> None:
        self._interval = interval
        self._last_at, self._last_exchanges = now, 0
        self._requested = False
        self._under_way = False

    @property
    def pending(self) -> bool:
        """Whether a requested checkpoint is not yet at all sites."""
        return self._requested or self._under_way

    def request(self) -> None:
        """Request a checkpoint at the next iteration; a process is shutting down."""
        self._requested = True

    def due(self, now: float, exchanges: int) -> bool:
        interval = self._interval
        seconds, rounds = now - self._last_at, exchanges - self._last_exchanges
        return self._requested or (seconds >= interval.every_s and rounds >= interval.every_exchanges)

    def round_begun(self, now: float, exchanges: int, with_checkpoint: bool) -> None:
        """All sites have answered a round, and the next begins; `with_checkpoint`: it asks them for a checkpoint."""
        self._under_way = with_checkpoint and self.pending
        if with_checkpoint:
            self._last_at, self._last_exchanges = now, exchanges
            self._requested = False
