"""All jobs of the coordinator: their records, those that run, and the line of those that wait."""

from __future__ import annotations

import difflib
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

from ce.errors import (
    AlreadyExists,
    CeError,
    ConfigError,
    InputError,
    JobFailed,
    LimitReached,
    NotDone,
    UnknownJob,
)
from ce.identity.names import check_name
from ce.job import Job
from ce_coordinator.core.instructions import Instruction, Note, RemoveCheckpoints, SaveJob
from ce_coordinator.core.job_run import JobRun
from ce_coordinator.core.limits import JobSettings
from ce_coordinator.core.modes.choice import mode_of
from ce_coordinator.core.records import JobRecord
from ce_coordinator.core.site_directory import SiteDirectory

#: From a job's name to its record with the result.
Archive = Callable[[str], JobRecord | None]

_LONGEST_TOKEN = 100


class Jobs:
    """Jobs by name. `runs` has those that run; at most limits.jobs_at_once, further ones wait in `line`."""

    def __init__(
        self,
        records: Iterable[JobRecord],
        settings: JobSettings,
        directory: SiteDirectory,
        archive: Archive | None,
    ) -> None:
        self._archive = archive
        self._settings = settings
        self._directory = directory
        self._store_works = True
        self.records: dict[str, JobRecord] = {record.name: self._without_result(record) for record in records}
        self.runs: dict[str, JobRun] = {}
        unfinished = [record for record in self.records.values() if not record.ended]
        self.line: deque[JobRecord] = deque(sorted(unfinished, key=lambda record: record.submitted_at))

    # Records.

    def record(self, name: str) -> JobRecord:
        if name not in self.records:
            raise UnknownJob(
                f"no job is named {name[:100]!r}{_hint(name, self.records)}: ce-coordinator list shows all jobs"
            )
        return self.records[name]

    def record_with_result(self, name: str) -> JobRecord:
        record = self.record(name)
        found = self._archive(name) if record.state == "done" and self._archive is not None else None
        return record if found is None else found

    def result(self, name: str) -> bytes:
        record = self.record_with_result(name)
        if record.state != "done":
            raise NotDone(
                f"job {name!r} is {record.state}; only a job that is done has a result: ce-coordinator show says more"
            )
        return record.result

    def submitted(self, token: str) -> JobRecord | None:
        """The job that was submitted with this token."""
        return next((record for record in self.records.values() if record.token == token), None)

    # Time.

    @property
    def next_deadline(self) -> float | None:
        """When `tick` is due, if nothing happens before."""
        return min((run.deadline for run in self.runs.values()), default=None)

    def start(self, now: float) -> list[Instruction]:
        """The process begins: unfinished jobs continue, checkpoints of ended ones are removed."""
        ended = [RemoveCheckpoints(record.name) for record in self.records.values() if record.ended]
        return [*ended, *self._admit(now)]

    def tick(self, now: float) -> list[Instruction]:
        """Time has passed."""
        return self.each(self.runs.values(), lambda run: run.tick(now), now)

    # Operators.

    def submit(
        self, definition: bytes, token: str, operator: str, known_sites: Collection[str], now: float
    ) -> list[Instruction]:
        """A job, as JSON. The same token and definition again change nothing. Its record is written once, in the state
        that it has when this returns."""
        job = Job.from_definition(definition)
        definition = job.definition()
        if not 0 < len(token) <= _LONGEST_TOKEN:
            raise InputError(f"a token is a text of 1 to {_LONGEST_TOKEN} characters")
        known = self.submitted(token)
        if known is not None:
            if known.definition == definition:
                return []
            raise AlreadyExists("this token was used for another job: choose a new one")
        if job.name in self.records:
            raise AlreadyExists(f"a job named {job.name!r} exists: give this one another name")
        self._check(job, known_sites)
        record = JobRecord(job.name, token, operator, definition, "submitted", 0, now, now)
        self.records[job.name] = record
        self.line.append(record)
        note = Note("info", "job submitted", {"job": job.name, "operator": operator, "model": job.model})
        admitted = [step for step in self._admit(now) if not _saves(step, job.name)]
        return [SaveJob(self.records[job.name], new=True), note, *admitted]

    def forget(self, name: str) -> None:
        """A job whose record could not be written was never submitted."""
        self.records.pop(name, None)
        self.runs.pop(name, None)
        self.line = deque(record for record in self.line if record.name != name)

    def cancel(self, name: str, operator: str, now: float) -> list[Instruction]:
        record = self.record(name)
        if record.ended:
            return []
        if name in self.runs:
            return self._after(self.runs[name].cancel(operator, now), now)
        self.line.remove(record)
        run = JobRun(record, self._settings, self._directory)
        steps = run.cancel(operator, now)
        self.records[name] = run.record
        return steps

    # What the runner has done.

    def computed(self, job: str, epoch: int, result: Any, now: float) -> list[Instruction]:
        """The work of a `Compute` has ended, with a result or an exception."""
        return self.of_attempt(job, epoch, lambda run: run.computed(result, now), now)

    def checkpoint_saved(self, job: str, epoch: int, now: float) -> list[Instruction]:
        """A checkpoint is on the disk; if its job has ended meanwhile, it is removed."""
        if job not in self.records or self.records[job].ended:
            return [RemoveCheckpoints(job)]
        return self.of_attempt(job, epoch, JobRun.checkpoint_saved, now)

    def record_not_saved(self, job: str, error: CeError, now: float) -> list[Instruction]:
        """A job's state could not be written and was not announced: the job fails. Jobs in line stay there until the
        store works again: their states could not be written, either."""
        self._store_works = False
        run = self.runs.get(job)
        return [] if run is None else self._after(run.record_not_saved(error, now), now)

    def store_recovered(self, now: float) -> list[Instruction]:
        """All records that could not be written are written now."""
        self._store_works = True
        return self._admit(now)

    # Events of runs.

    def of_attempt(
        self, job: str, epoch: int, event: Callable[[JobRun], list[Instruction]], now: float
    ) -> list[Instruction]:
        """What an event leads to, unless its attempt is over."""
        run = self.runs.get(job)
        return [] if run is None or run.epoch != epoch else self.each([run], event, now)

    def each(
        self, runs: Iterable[JobRun], event: Callable[[JobRun], list[Instruction]], now: float
    ) -> list[Instruction]:
        """What an event leads to in each of these jobs. An unexpected error ends the job in which it occurs, and is
        logged; other jobs continue."""
        steps: list[Instruction] = []
        for run in list(runs):
            try:
                steps += event(run)
            except Exception as error:
                steps += _unexpected(run, error, now)
        return self._after(steps, now) if steps else []  # a record that has changed is to be written

    # How.

    def _check(self, job: Job, known_sites: Collection[str]) -> None:
        """What a job between daemons needs beyond a valid definition."""
        limits = self._settings.limits
        if not job.sites:
            raise ConfigError('sites is missing: name the sites that take part, like sites = ["north", "south"]')
        if len(job.sites) > limits.sites_per_job:
            raise ConfigError(f"sites names more than {limits.sites_per_job} sites (limits.sites_per_job)")
        for site in job.sites:
            check_name(site)
            if site not in known_sites:
                raise InputError(
                    f"site {site!r} is not known here{_hint(site, known_sites)}: sites become known when their "
                    "certificate is signed (ce-coordinator sign)"
                )
        mode_of(job)
        if len(self.line) >= limits.jobs_waiting:
            raise LimitReached(f"{len(self.line):,} jobs are waiting (limits.jobs_waiting): submit again later")

    def _admit(self, now: float) -> list[Instruction]:
        """Begin jobs that wait in line, as many as may run."""
        steps: list[Instruction] = []
        while self._store_works and self.line and len(self.runs) < self._settings.limits.jobs_at_once:
            record = self.line.popleft()
            run = self.runs[record.name] = JobRun(record, self._settings, self._directory)
            steps += run.begin(now)
            self.records[record.name] = run.record
        return steps

    def _after(self, steps: list[Instruction], now: float) -> list[Instruction]:
        """Take over the records of runs; a job that has ended makes room for the next."""
        for name, run in list(self.runs.items()):
            self.records[name] = self._without_result(run.record)
            if run.record.ended:
                del self.runs[name]
        return steps + self._admit(now)

    def _without_result(self, record: JobRecord) -> JobRecord:
        """With an archive, results take no memory here."""
        return replace(record, result=b"") if self._archive is not None and record.result else record


def _unexpected(run: JobRun, error: Exception, now: float) -> list[Instruction]:
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.filename.rsplit('/', 1)[-1]}:{place.lineno}"
    named = {"job": run.job.name, "error": type(error).__name__, "where": where}
    failed = JobFailed("an unexpected error at the coordinator; its log says more")
    return [Note("error", "unexpected error", named), *run.fail(failed, now)]


def _saves(step: Instruction, job: str) -> bool:
    return isinstance(step, SaveJob) and step.record.name == job


def _hint(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""
