"""Durable records of the coordinator: its jobs and the sites it has seen."""

from ce_coordinator.core.records import JobRecord, JobState, SiteRecord
from ce_coordinator.store.interface import Store, StoreFailed, TokenTaken
from ce_coordinator.store.memory import MemoryStore
from ce_coordinator.store.sqlite import SqliteStore

__all__ = ["JobRecord", "JobState", "MemoryStore", "SiteRecord", "SqliteStore", "Store", "StoreFailed", "TokenTaken"]
