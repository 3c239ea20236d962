"""What the coordinator remembers about a job and about a site. Times are seconds since 1970, UTC."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

JobState = Literal["submitted", "enrolling", "aligning", "running", "done", "failed", "cancelled"]


@dataclass(frozen=True)
class JobRecord:
    """A job as of its last change of state.

    `token` is the operator's, chosen before the submission: the same submission sent twice is one job. `definition`
    and `result` are encoded messages. `reason`, `rule` and `exit_code` say why a job ended without a result.
    """

    name: str
    token: str = field(repr=False)
    operator: str
    definition: bytes = field(repr=False)
    state: JobState
    epoch: int
    submitted_at: float
    changed_at: float
    reason: str = ""
    rule: str = ""
    exit_code: int = 0
    result: bytes = field(default=b"", repr=False)
    left_behind: tuple[str, ...] = ()  # sites of the job that it has gone on without

    @property
    def ended(self) -> bool:
        """Whether the state is one that no job leaves."""
        return self.state in ("done", "failed", "cancelled")


@dataclass(frozen=True)
class SiteRecord:
    """A site that has connected at least once, and the SHA-256 fingerprint of the certificate it came with last."""

    name: str
    fingerprint: str
    first_seen: float
    last_seen: float
