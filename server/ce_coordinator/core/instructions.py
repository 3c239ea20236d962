"""What the coordinator's core asks the runner to do. Records are written before any other instruction is carried out:
nothing is announced that is not on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ce.errors import CeError
from ce.protocol.engine.snapshots import Snapshot
from ce.service.checkpoint_id import CheckpointId
from ce.transport.frames import Frame
from ce_coordinator.core.records import JobRecord, SiteRecord

Session = int
"""One stream of one site; a site that connects again gets another number."""


@dataclass(frozen=True)
class SaveJob:
    """Write a job's record durably, before every other instruction that comes with it.

    `new`: the record of a submission. If it cannot be written, the job is forgotten and the submission is refused.
    """

    record: JobRecord
    new: bool = False


@dataclass(frozen=True)
class SaveSite:
    """Write a site's record."""

    record: SiteRecord


@dataclass(frozen=True)
class SaveCheckpoint:
    """Write a checkpoint durably, off the event loop; then pass in `CheckpointSaved` or `CheckpointNotSaved`.

    `context` is a digest of everything that the snapshot is valid for.
    """

    job: str
    epoch: int
    context: bytes = field(repr=False)
    checkpoint_id: CheckpointId
    snapshot: Snapshot = field(repr=False)


@dataclass(frozen=True)
class LoadCheckpoint:
    """Read the first of these checkpoints that can be read, off the event loop; then pass in `CheckpointLoaded`."""

    job: str
    epoch: int
    context: bytes = field(repr=False)
    checkpoint_ids: tuple[CheckpointId, ...]


@dataclass(frozen=True)
class RemoveCheckpoints:
    """A job has ended: remove all its checkpoints."""

    job: str


@dataclass(frozen=True)
class Send:
    """Send frames down a stream, in order; they are made as fast as the stream takes them.

    `job`: the job that the frames are about. If its record could not be written, they are not sent.
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
    """Run `work`, off the event loop unless it is short; then pass in `Computed`."""

    job: str
    epoch: int
    size: int  # numbers that the work reads, roughly
    work: Callable[[], Any] = field(repr=False)
    at_once: bool = False  # a fixed number of operations with each of them


@dataclass(frozen=True)
class Changed:
    """Wake up those who watch this job."""

    job: str


@dataclass(frozen=True)
class Note:
    """Write to the log. Fields name jobs, sites and rules; never labels, objects or keys."""

    level: Literal["debug", "info", "warning", "error"]
    event: str
    fields: Mapping[str, str | int | float] = field(default_factory=dict)


Instruction = (
    SaveJob | SaveSite | SaveCheckpoint | LoadCheckpoint | RemoveCheckpoints | Send | Close | Compute | Changed | Note
)
