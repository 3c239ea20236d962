"""What can happen to the coordinator. The runner passes each event to `Machine.handle`, one at a time.

An event that answers an instruction carries the job and the epoch of that instruction: when the job has ended or begun
another attempt in the meantime, the event changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ce.errors import CeError
from ce.protocol.engine.snapshots import Snapshot
from ce.service.checkpoint_id import CheckpointId
from ce_coordinator.core.instructions import Session
from ce_proto.v1 import site_pb2 as pb


@dataclass(frozen=True)
class CoordinatorStarted:
    """The process has read its store and accepts connections."""


@dataclass(frozen=True)
class DeadlineReached:
    """The time of `Machine.next_deadline` has come."""


@dataclass(frozen=True)
class DrainRequested:
    """The process is about to stop: accept no more jobs, checkpoint those that run."""


@dataclass(frozen=True)
class SiteConnected:
    """A site has sent Hello; `site` and `fingerprint` are those of its certificate."""

    session: Session
    site: str
    fingerprint: str
    hello: pb.Hello = field(repr=False)


@dataclass(frozen=True)
class SiteDisconnected:
    """A stream has ended, at either end."""

    session: Session
    reason: str


@dataclass(frozen=True)
class FrameReceived:
    """A site has sent a frame after its Hello."""

    session: Session
    frame: pb.SiteFrame = field(repr=False)


@dataclass(frozen=True)
class Computed:
    """The work of a `Compute` has returned a result, or raised the exception that is in its place."""

    job: str
    epoch: int
    result: Any = field(repr=False)


@dataclass(frozen=True)
class CheckpointSaved:
    """The checkpoint of a `SaveCheckpoint` is on the disk."""

    job: str
    epoch: int
    checkpoint_id: CheckpointId


@dataclass(frozen=True)
class CheckpointNotSaved:
    """The checkpoint of a `SaveCheckpoint` could not be written; older ones are unchanged."""

    job: str
    epoch: int
    reason: str


@dataclass(frozen=True)
class CheckpointLoaded:
    """The newest readable checkpoint of those that a `LoadCheckpoint` named; None when none could be read."""

    job: str
    epoch: int
    checkpoint_id: CheckpointId | None = None
    snapshot: Snapshot = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class RecordNotSaved:
    """The record of a `SaveJob` could not be written."""

    job: str
    error: CeError


@dataclass(frozen=True)
class StoreRecovered:
    """All records that could not be written are written now."""


@dataclass(frozen=True)
class CertificatesIssued:
    """Certificates that the authority has issued to sites: fingerprints by site name."""

    fingerprints: Mapping[str, str]


@dataclass(frozen=True)
class JobSubmitted:
    """An operator has submitted a job, as JSON."""

    definition: bytes = field(repr=False)
    token: str = field(repr=False)
    operator: str


@dataclass(frozen=True)
class JobCancelled:
    """An operator has cancelled a job."""

    job: str
    operator: str


Event = (
    CoordinatorStarted
    | DeadlineReached
    | DrainRequested
    | SiteConnected
    | SiteDisconnected
    | FrameReceived
    | Computed
    | CheckpointSaved
    | CheckpointNotSaved
    | CheckpointLoaded
    | RecordNotSaved
    | StoreRecovered
    | CertificatesIssued
    | JobSubmitted
    | JobCancelled
)
