"""Which jobs this site was in: one small file per job, so that `ce-client jobs` needs nobody's help."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ce.errors import UnknownJob


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


class Journal:
    """The state directory of one site."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, entry: Entry) -> None:
        """Best effort: a job does not fail because nobody could note it down."""
        with contextlib.suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True)
            path = self._path(entry.job)
            aside = path.with_suffix(".part")
            aside.write_text(json.dumps({**asdict(entry), "since_s": time.time()}), encoding="utf-8")
            aside.replace(path)

    def entries(self) -> list[Entry]:
        """All jobs, the newest change first."""
        found = []
        for path in self._directory.glob("*.json") if self._directory.is_dir() else ():
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                keys = json.loads(path.read_bytes())
                found.append(Entry(**{**keys, "sites": tuple(keys["sites"])}))
        return sorted(found, key=lambda entry: -entry.since_s)

    def entry(self, job: str) -> Entry:
        known = {entry.job: entry for entry in self.entries()}
        if job not in known:
            close = difflib.get_close_matches(job, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise UnknownJob(f"this site was in no job named {job!r}{hint}: ce-client jobs lists those that it was in")
        return known[job]

    def _path(self, job: str) -> Path:
        # A job's name is not a file's name: any text may be one.
        return self._directory / f"{hashlib.sha256(job.encode()).hexdigest()[:32]}.json"
