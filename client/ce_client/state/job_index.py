"""The jobs of a site: one file per job, so that `ce-client jobs` needs neither daemon nor coordinator."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ce.errors import ConfigError, UnknownJob
from ce.service.logs import fields
from ce_client.state.files import name_of, remove, write_json

log = logging.getLogger("ce_client")

#: The site has checked the job and waits for `ce-client approve` or `decline`.
AWAITING_CONSENT = "awaiting_consent"
#: States after which nothing more happens in a job.
OVER = ("done", "failed", "cancelled", "refused")
#: States as version 0.1.0 wrote them.
_FORMER_STATES = {"asks": AWAITING_CONSENT}


@dataclass(frozen=True)
class JobEntry:
    """A job as this site knows it."""

    job: str
    state: str  # "offered", "awaiting_consent", "running", "done", "failed", "cancelled", "refused"
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
    """The entries of one site, in its state directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reported: set[Path] = set()  # damaged files that the log has named

    def write(self, entry: JobEntry) -> None:
        """Write an entry. A failure is ignored: the job goes on without it."""
        with contextlib.suppress(ConfigError):
            write_json(self._path(entry.job), {**asdict(entry), "since_s": time.time()})

    def entries(self) -> list[JobEntry]:
        """All entries that can be read, the last changed first."""
        found = [entry for path in self._files() if (entry := self._read(path)) is not None]
        return sorted(found, key=lambda entry: -entry.since_s)

    def find(self, job: str) -> JobEntry | None:
        """The entry of a job; None if there is none, or it is damaged."""
        return self._read(self._path(job))

    def count(self) -> int:
        """The number of entries, damaged ones included."""
        return sum(1 for _ in self._files())

    def entry(self, job: str) -> JobEntry:
        """The entry of a job. Raises UnknownJob if there is none."""
        known = {entry.job: entry for entry in self.entries()}
        if job not in known:
            close = difflib.get_close_matches(job, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise UnknownJob(f"this site was in no job named {job!r}{hint}: ce-client jobs lists those that it was in")
        return known[job]

    def forget(self, job: str) -> bool:
        """Remove an entry; False if there was none."""
        return remove(self._path(job))

    def _read(self, path: Path) -> JobEntry | None:
        """The entry in a file. A file that cannot be read is named in the log, once, and skipped."""
        try:
            return _entry(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if path not in self._reported:
                self._reported.add(path)
                problem = error.strerror if isinstance(error, OSError) else "is damaged"
                hint = "restore it from a backup, or remove it"
                log.warning("entry of a job skipped", extra=fields(file=str(path), problem=problem, hint=hint))
            return None

    def _files(self) -> Iterator[Path]:
        return self._directory.glob(f"{'?' * len(name_of(''))}.json")

    def _path(self, job: str) -> Path:
        return self._directory / f"{name_of(job)}.json"


def _entry(content: dict[str, Any]) -> JobEntry:
    """An entry from a file of this version or of version 0.1.0; keys that this version does not know are ignored."""
    known = {declared.name for declared in dataclasses.fields(JobEntry)}
    entry = JobEntry(**{key: value for key, value in content.items() if key in known})
    texts = (entry.job, entry.state, entry.model, entry.privacy, entry.coordinator, entry.reason, entry.rule)
    numbers = (entry.epoch, entry.since_s, entry.rounds)
    if not all(isinstance(text, str) for text in texts) or not all(isinstance(n, int | float) for n in numbers):
        raise TypeError("a value of another type")
    state = _FORMER_STATES.get(entry.state, entry.state)
    return dataclasses.replace(entry, state=state, sites=tuple(map(str, content["sites"])))
