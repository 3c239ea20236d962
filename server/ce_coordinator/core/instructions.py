"""What the brain asks the world to do. Carried out in order: what is saved is saved before anybody is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ce.errors import CeError
from ce.transport.frames import Frame
from ce_coordinator.core.records import JobRecord, SiteRecord

Session = int
"""One stream of one site; a site that connects again gets another number."""


#: The size of a computation that never runs on the event loop.
AWAY = 2**62


@dataclass(frozen=True)
class SaveJob:
    """Write a job's record, durably, before anything that follows."""

    record: JobRecord


@dataclass(frozen=True)
class SaveSite:
    """Write what is known of a site."""

    record: SiteRecord


@dataclass(frozen=True)
class RemoveCheckpoints:
    """A job is over: forget the states of it that were kept."""

    job: str


@dataclass(frozen=True)
class Send:
    """Send frames down a stream, in order; they are made as fast as the stream takes them.

    Not if the record of the job that they are about could not be saved: what is not written is not announced.
    """

    session: Session
    frames: Iterable[Frame] = field(repr=False)
    job: str = ""


@dataclass(frozen=True)
class Close:
    """End a stream with an error."""

    session: Session
    error: CeError


@dataclass(frozen=True)
class Compute:
    """Run `work`, away from the event loop when it is large, and come back with `Machine.computed`."""

    job: str
    epoch: int
    size: int  # numbers that it goes over, roughly
    work: Callable[[], Any] = field(repr=False)


@dataclass(frozen=True)
class Changed:
    """Whoever watches this job should look again."""

    job: str


@dataclass(frozen=True)
class Note:
    """Write to the log. Fields name jobs, sites and rules; never labels, objects or keys."""

    level: Literal["debug", "info", "warning", "error"]
    event: str
    fields: Mapping[str, str | int | float] = field(default_factory=dict)


Instruction = SaveJob | SaveSite | RemoveCheckpoints | Send | Close | Compute | Changed | Note
