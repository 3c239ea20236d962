"""When the state of a job is kept, so that it can go on from there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ce.errors import ConfigError
from ce.service.settings import setting


@dataclass(frozen=True)
class CheckpointSettings:
    """Checkpoints: the states of jobs under way, here and at every site, from which they go on after a restart."""

    directory: Path = setting(
        Path("checkpoints"), "Where the coordinator keeps its own, encrypted under a key that is made there."
    )
    every_s: float = setting(5.0, "Seconds, at least, between two checkpoints of a job: what a restart may cost.")
    every_exchanges: int = setting(
        5, "Exchanges, at least, between two checkpoints of a job, so that those of large ones do not dominate."
    )
    largest: int = setting(4 * 2**30, "Most bytes of one checkpoint; a job whose state is larger runs without.")
    least_free: int = setting(
        100 * 2**20, "Bytes that a checkpoint must leave free on its disk: the store may need them more."
    )

    def __post_init__(self) -> None:
        if not 0 <= self.every_s <= 86_400:
            raise ConfigError("checkpoints.every_s is a number of seconds from 0 to 86,400")
        for key in ("every_exchanges", "largest"):
            if getattr(self, key) < 1:
                raise ConfigError(f"checkpoints.{key} is a whole number of at least 1")
        if self.least_free < 0:
            raise ConfigError("checkpoints.least_free is a whole number of at least 0")


class CheckpointSchedule:
    """Whether it is time for the next checkpoint of one attempt; and whether one that was asked for is everywhere."""

    def __init__(self, keeping: CheckpointSettings, now: float) -> None:
        self._keeping = keeping
        self._at, self._exchanges = now, 0
        self._asked_for = False
        self._under_way = False

    @property
    def pending(self) -> bool:
        """Whether one was asked for that not all have yet."""
        return self._asked_for or self._under_way

    def ask(self) -> None:
        """As soon as possible, please: somebody is about to stop."""
        self._asked_for = True

    def due(self, now: float, exchanges: int) -> bool:
        keeping = self._keeping
        passed = now - self._at >= keeping.every_s and exchanges - self._exchanges >= keeping.every_exchanges
        return self._asked_for or passed

    def next_round(self, now: float, exchanges: int, kept: bool) -> None:
        """A round begins, all having answered the one before; `kept`: they are asked to keep their state in it."""
        self._under_way = kept and self.pending
        if kept:
            self._at, self._exchanges = now, exchanges
            self._asked_for = False
