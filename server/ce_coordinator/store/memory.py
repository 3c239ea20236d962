"""A store in memory, for tests. It behaves like `SqliteStore`, but does not outlive its process."""

from __future__ import annotations

from threading import Lock

from ce_coordinator.core.records import JobRecord, SiteRecord
from ce_coordinator.store.interface import StoreFailed, TokenTaken


class MemoryStore:
    """Records in dictionaries."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobRecord] = {}
        self._sites: dict[str, SiteRecord] = {}
        self._closed = False
        self._lock = Lock()

    def save_job(self, record: JobRecord) -> None:
        self._check_open()
        with self._lock:
            if any(other.token == record.token and other.name != record.name for other in self._jobs.values()):
                raise TokenTaken
            self._jobs[record.name] = record

    def job(self, name: str) -> JobRecord | None:
        self._check_open()
        return self._jobs.get(name)

    def job_by_token(self, token: str) -> JobRecord | None:
        return next((record for record in self.jobs() if record.token == token), None)

    def jobs(self) -> list[JobRecord]:
        self._check_open()
        with self._lock:
            return sorted(self._jobs.values(), key=lambda record: (-record.submitted_at, record.name))

    def save_site(self, record: SiteRecord) -> None:
        self._check_open()
        with self._lock:
            self._sites[record.name] = record

    def sites(self) -> list[SiteRecord]:
        self._check_open()
        with self._lock:
            return sorted(self._sites.values(), key=lambda record: record.name)

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreFailed("the store is closed: the coordinator is shutting down")
