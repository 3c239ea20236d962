"""What the coordinator's store holds about a job and about a site. Times are seconds since 1970, UTC."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

JobState = Literal["submitted", "enrolling", "aligning", "running", "done", "failed", "cancelled"]


@dataclass(frozen=True)
class JobRecord:
    """A job as of its last change of state.

    `token` is chosen by the operator's command: the same submission sent twice is one job. `definition` and `result`
    are JSON. `reason`, `rule` and `exit_code` say why a job ended without a result.
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
    left_behind: tuple[str, ...] = ()  # sites of the job that it continued without

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self.state in ("done", "failed", "cancelled")


@dataclass(frozen=True)
class SiteRecord:
    """A known site, and the SHA-256 fingerprint of the certificate that it connected with last."""

    name: str
    fingerprint: str
    first_seen: float
    last_seen: float
