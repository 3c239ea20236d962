"""Which jobs this site was in: one small file per job, so that `ce-client jobs` needs nobody's help."""

from __future__ import annotations

import contextlib
import difflib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ce.errors import ConfigError, UnknownJob
from ce_client.state.files import name_of, remove, write_json

#: States of a job of which nothing more will come.
OVER = ("done", "failed", "cancelled", "refused")


@dataclass(frozen=True)
class Entry:
    """A job as this site knows it."""

    job: str
    state: str  # "offered", "running", "done", "failed", "cancelled", "refused"
    epoch: int
    model: str = ""
    privacy: str = ""
    sites: tuple[str, ...] = ()
    coordinator: str = ""
    since_s: float = 0.0
    reason: str = ""
    rule: str = ""
    rounds: int = 0

    @property
    def over(self) -> bool:
        return self.state in OVER


class JobIndex:
    """The state directory of one site."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, entry: Entry) -> None:
        """Best effort: a job does not fail because nobody could note it down."""
        with contextlib.suppress(ConfigError):
            write_json(self._path(entry.job), {**asdict(entry), "since_s": time.time()})

    def entries(self) -> list[Entry]:
        """All jobs, the newest change first."""
        found = [entry for path in self._files() if (entry := _read(path)) is not None]
        return sorted(found, key=lambda entry: -entry.since_s)

    def find(self, job: str) -> Entry | None:
        """The job of this name, if it is known here."""
        return _read(self._path(job))

    def count(self) -> int:
        """Jobs of which anything is noted."""
        return sum(1 for _ in self._files())

    def entry(self, job: str) -> Entry:
        known = {entry.job: entry for entry in self.entries()}
        if job not in known:
            close = difflib.get_close_matches(job, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise UnknownJob(f"this site was in no job named {job!r}{hint}: ce-client jobs lists those that it was in")
        return known[job]

    def forget(self, job: str) -> bool:
        """Whether there was anything to forget."""
        return remove(self._path(job))

    def _files(self) -> Iterator[Path]:
        return self._directory.glob(f"{'?' * len(name_of(''))}.json")

    def _path(self, job: str) -> Path:
        return self._directory / f"{name_of(job)}.json"


def _read(path: Path) -> Entry | None:
    """None also for a file that is damaged, or another one."""
    try:
        keys = json.loads(path.read_bytes())
        entry = Entry(**{**keys, "sites": tuple(keys["sites"])})
        return entry if isinstance(entry.since_s, int | float) and isinstance(entry.job, str) else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
