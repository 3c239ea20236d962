"""What every store does. When `save_job` or `save_site` has returned, the record survives the end of the process."""

from __future__ import annotations

from typing import Protocol

from ce.errors import InputError, JobFailed
from ce_coordinator.core.records import JobRecord, SiteRecord


class StoreFailed(JobFailed):
    """A record could not be written or read. It is unchanged, and the store can still be used.

    Next: make room on the coordinator's disk, see that its user may write there; submit the job again.
    """


class TokenTaken(InputError):
    """The token of a submission belongs to a job of another name.

    Next: submit again with a new token, or with none.
    """

    def __init__(self) -> None:
        super().__init__("this submission token already belongs to another job: submit again with a new token")


class Store(Protocol):
    """Records by name. Threads may share a store; after `close` every other method raises StoreFailed."""

    def save_job(self, record: JobRecord) -> None:
        """Insert the job, or replace the one of that name. Changes nothing if it raises TokenTaken or StoreFailed."""

    def job(self, name: str) -> JobRecord | None:
        """The job of that name."""

    def job_by_token(self, token: str) -> JobRecord | None:
        """The job that was submitted with that token."""

    def jobs(self) -> list[JobRecord]:
        """All jobs: the newest submission first, those of the same moment by name."""

    def save_site(self, record: SiteRecord) -> None:
        """Insert the site, or replace the one of that name. Changes nothing if it raises StoreFailed."""

    def sites(self) -> list[SiteRecord]:
        """All sites, by name."""

    def close(self) -> None:
        """Close the files. Closing again has no effect."""
