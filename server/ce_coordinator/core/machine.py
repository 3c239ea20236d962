"""The coordinator's state: connected sites and jobs. Every method is an event; it returns instructions.

Nothing here waits, connects or looks at a clock. Errors that are the caller's (a job that cannot be, a frame that no
site should send) are raised as CeError before anything has changed, or returned as `Close`.
"""

from __future__ import annotations

import difflib
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ce.errors import (
    AlreadyExists,
    CeError,
    ConfigError,
    InputError,
    JobFailed,
    LimitReached,
    MessageError,
    NotAllowed,
    NotDone,
    Replaced,
    UnknownJob,
    Unreachable,
    VersionMismatch,
)
from ce.identity.names import check_name
from ce.job import Job
from ce.models.registry import model_without_labels
from ce.service.checkpoints import Checkpoints, MemoryCheckpoints
from ce.transport.frames import MOST_HELD, PROTOCOL
from ce_coordinator.core.checkpoint_schedule import CheckpointSettings
from ce_coordinator.core.instructions import (
    Close,
    Instruction,
    Note,
    RemoveCheckpoints,
    SaveJob,
    SaveSite,
    Send,
    Session,
)
from ce_coordinator.core.job_run import JobRun, Setting, ended_frame, left_behind_frame
from ce_coordinator.core.limits import Limits
from ce_coordinator.core.records import JobRecord, SiteRecord
from ce_proto.v1 import site_pb2 as pb

#: When a site was last seen is written down so often.
SEEN_S = 60.0
#: From a job's name to its record, whole.
Archive = Callable[[str], JobRecord | None]

_LONGEST_TOKEN = 100
_INSTANCE_SIZE = 16


@dataclass
class Connection:
    """A site's open stream."""

    session: Session
    site: str
    fingerprint: str
    software: str
    last_seen: float
    closed: bool = False  # cut off; what it had sent before it noticed no longer counts


class Machine:
    """All that the coordinator knows."""

    def __init__(
        self,
        name: str,
        software: str,
        limits: Limits,
        min_cluster: int,
        jobs: Iterable[JobRecord] = (),
        sites: Iterable[SiteRecord] = (),
        keeping: CheckpointSettings | None = None,
        checkpoints: Checkpoints | None = None,
        archive: Archive | None = None,
    ) -> None:
        """`checkpoints`: without them, those of a job last as long as this machine. `archive` gives back whole records:
        with it, results of jobs that are over take no memory here."""
        self.name = name
        self._archive = archive
        self.records: dict[str, JobRecord] = {record.name: self._light(record) for record in jobs}
        self.sites: dict[str, SiteRecord] = {record.name: record for record in sites}
        self.connections: dict[str, Connection] = {}  # by site
        self.runs: dict[str, JobRun] = {}
        self._software = software
        self.limits = limits
        self._setting = Setting(
            limits, min_cluster, keeping or CheckpointSettings(), checkpoints or MemoryCheckpoints()
        )
        self.draining = False
        self._store_works = True
        self._by_session: dict[Session, Connection] = {}
        self._sessions: dict[str, Session] = {}  # by site, for runs
        unfinished = [record for record in self.records.values() if not record.ended]
        self._saved: dict[str, SiteRecord] = {}  # as the store has them, since this machine began
        self._line: deque[JobRecord] = deque(sorted(unfinished, key=lambda record: record.submitted_at))

    # Time.

    @property
    def next_deadline(self) -> float | None:
        """When `tick` is due, if nothing happens before."""
        return min((run.deadline for run in self.runs.values()), default=None)

    def start(self, now: float) -> list[Instruction]:
        """The coordinator begins: jobs that a former one left unfinished go on; what it kept of others goes."""
        over = [RemoveCheckpoints(record.name) for record in self.records.values() if record.ended]
        return [*over, *self._admit(now)]

    def tick(self, now: float) -> list[Instruction]:
        steps: list[Instruction] = []
        for run in list(self.runs.values()):
            steps += _guarded(run, lambda run=run: run.tick(now), now)  # type: ignore[misc]
        return self._after(steps, now)

    # Sites.

    def connected(
        self, session: Session, site: str, fingerprint: str, hello: pb.Hello, now: float
    ) -> list[Instruction]:
        """A site has said Hello; `site` and `fingerprint` are those of its certificate."""
        welcome = self.probed(site, hello, now)
        steps: list[Instruction] = []
        former = self.connections.get(site)
        if former is not None:
            del self._by_session[former.session]
            steps.append(Close(former.session, Replaced(f"site {site} has connected again")))
        connection = Connection(session, site, fingerprint, _printable(hello.software[:50]), now)
        self.connections[site] = self._by_session[session] = connection
        self._sessions[site] = session
        steps += [
            *self._seen(site, fingerprint, now),
            Note("info", "site connected", {"site": site, "fingerprint": fingerprint}),
            Send(session, [welcome]),
        ]
        held = {entry.job: entry.epoch for entry in hello.held}
        gone_on = {name for name, run in self.runs.items() if site not in run.roster}
        for job, epoch in held.items():
            if job not in self.runs or job in gone_on:
                steps.append(Send(session, [self._over(site, job, epoch)]))
        for run in list(self.runs.values()):
            if site in run.roster:
                holds = held.get(run.job.name)
                steps += _guarded(run, lambda run=run, holds=holds: run.connected(site, holds, now), now)  # type: ignore[misc]
        return self._after(steps, now)

    def probed(self, site: str, hello: pb.Hello, now: float) -> pb.CoordinatorFrame:
        """The answer to a Hello that can be accepted."""
        if hello.site != site:
            raise NotAllowed(f"the certificate of this connection is that of site {site}, not of the name it gives")
        if hello.protocol != PROTOCOL:
            raise VersionMismatch(
                f"site {site} speaks version {hello.protocol} of the protocol, this coordinator version {PROTOCOL}: "
                "install the same release at both ends"
            )
        if len(hello.instance) != _INSTANCE_SIZE or len(hello.held) > MOST_HELD:
            raise MessageError("hello: instance is 16 bytes, and held not endless")
        welcome = pb.Welcome(coordinator=self.name, protocol=PROTOCOL, software=self._software, time_s=now)
        return pb.CoordinatorFrame(welcome=welcome)

    def disconnected(self, session: Session, reason: str, now: float) -> list[Instruction]:
        """A stream has ended, by whomever. One that was replaced is known already."""
        connection = self._by_session.pop(session, None)
        if connection is None:
            return []
        site = connection.site
        del self.connections[site], self._sessions[site]
        steps = self._seen(site, connection.fingerprint, now)
        steps.append(Note("info", "site disconnected", {"site": site, "reason": reason}))
        return steps + [step for run in self.runs.values() if site in run.roster for step in run.disconnected()]

    def received(self, session: Session, frame: pb.SiteFrame, now: float) -> list[Instruction]:
        """A frame after Hello."""
        connection = self._by_session.get(session)
        if connection is None or connection.closed:
            return []  # from a stream that was just replaced or cut off
        connection.last_seen = now
        kind = frame.WhichOneof("frame")
        try:
            if kind is None or kind == "hello":
                raise MessageError("frame: empty, or a second hello")
            if kind == "goodbye":
                return []
            if kind == "leaving":
                self._keep_soon(run for run in self.runs.values() if connection.site in run.roster)
                return []
            steps = self._of_a_job(connection, kind, getattr(frame, kind), now)
        except MessageError as error:
            note = Note("warning", "message refused", {"site": connection.site, "reason": str(error)})
            steps = [note, Close(session, error)]
        connection.closed = any(isinstance(step, Close) and step.session == session for step in steps)
        return self._after(steps, now)

    def computed(self, job: str, epoch: int, result: Any, now: float) -> list[Instruction]:
        """Work that a `Compute` asked for has ended, with a result or an exception."""
        run = self.runs.get(job)
        if run is None or run.epoch != epoch:
            return []
        return self._after(_guarded(run, lambda: run.computed(result, now), now), now)

    def store_failed(self, job: str, error: CeError, now: float) -> list[Instruction]:
        """A transition of a job could not be written: nobody has heard of it, and the job is over. Those that wait in
        line stay there until the store works again: none of them would get further."""
        self._store_works = False
        run = self.runs.get(job)
        return [] if run is None else self._after(run.store_failed(error, now), now)

    def store_works_again(self, now: float) -> list[Instruction]:
        """All that could not be written is."""
        self._store_works = True
        return self._admit(now)

    # Stopping.

    def drain(self) -> None:
        """No more jobs; those under way keep their states as soon as they can."""
        self.draining = True
        self._keep_soon(self.runs.values())

    @property
    def kept(self) -> bool:
        """Whether all that was to be kept is."""
        return not any(run.keeping for run in self.runs.values())

    # Operators.

    def know(self, issued: Mapping[str, str]) -> None:
        """Sites that have a certificate, with its fingerprint, are known before they first connect."""
        for name, fingerprint in issued.items():
            self.sites.setdefault(name, SiteRecord(name, fingerprint, 0.0, 0.0))

    def forget(self, name: str) -> None:
        """A job that could not be recorded was never submitted."""
        self.records.pop(name, None)
        self.runs.pop(name, None)
        self._line = deque(record for record in self._line if record.name != name)

    def submit(self, definition: bytes, token: str, operator: str, now: float) -> tuple[JobRecord, list[Instruction]]:
        """A job, as JSON. The same token and definition again change nothing."""
        if self.draining:
            raise Unreachable("the coordinator is stopping: submit again when it runs again")
        job = Job.from_definition(definition)
        definition = job.definition()
        if not 0 < len(token) <= _LONGEST_TOKEN:
            raise InputError("a token is a text of 1 to 100 characters")
        for record in self.records.values():
            if record.token == token:
                if record.definition == definition:
                    return record, []
                raise AlreadyExists("this token was used for another job: choose a new one")
        if job.name in self.records:
            raise AlreadyExists(f"a job named {job.name!r} exists: give this one another name")
        self._check(job)
        if len(self._line) >= self.limits.jobs_waiting:
            raise LimitReached(f"{len(self._line):,} jobs are waiting (limits.jobs_waiting): submit again later")
        record = JobRecord(job.name, token, operator, definition, "submitted", 0, now, now)
        self.records[job.name] = record
        self._line.append(record)
        note = Note("info", "job submitted", {"job": job.name, "operator": operator, "model": job.model})
        steps = [SaveJob(record), note, *self._admit(now)]
        return self.records[job.name], steps

    def cancel(self, name: str, operator: str, now: float) -> list[Instruction]:
        record = self.record(name)
        if record.ended:
            return []
        if name in self.runs:
            return self._after(self.runs[name].cancel(operator, now), now)
        self._line.remove(record)
        run = JobRun(record, self._setting, self._sessions)
        steps = run.cancel(operator, now)
        self.records[name] = run.record
        return steps

    def record(self, name: str) -> JobRecord:
        if name not in self.records:
            raise UnknownJob(
                f"no job is named {name[:100]!r}{_hint(name, self.records)}: ce-coordinator list shows all jobs"
            )
        return self.records[name]

    def whole_record(self, name: str) -> JobRecord:
        """A job's record with its result."""
        record = self.record(name)
        found = self._archive(name) if record.state == "done" and self._archive is not None else None
        return record if found is None else found

    def result(self, name: str) -> bytes:
        record = self.whole_record(name)
        if record.state != "done":
            raise NotDone(
                f"job {name!r} is {record.state}; only a job that is done has a result: ce-coordinator show says more"
            )
        return record.result

    # How.

    def _seen(self, site: str, fingerprint: str, now: float) -> list[Instruction]:
        """A site has come or gone. One that does so all the time must not keep the disk busy and others waiting."""
        known = self.sites.get(site)
        record = SiteRecord(site, fingerprint, now if known is None else known.first_seen or now, now)
        self.sites[site] = record
        saved = self._saved.get(site)
        if saved is not None and saved.fingerprint == fingerprint and now - saved.last_seen < SEEN_S:
            return []
        self._saved[site] = record
        return [SaveSite(record)]

    def _check(self, job: Job) -> None:
        """What a job over a network needs beyond being a job."""
        if not job.sites:
            raise ConfigError('sites is missing: name the sites that take part, like sites = ["north", "south"]')
        if len(job.sites) > self.limits.sites_per_job:
            raise ConfigError(f"sites names more than {self.limits.sites_per_job} sites (limits.sites_per_job)")
        for site in job.sites:
            check_name(site)
            if site not in self.sites:
                raise InputError(
                    f"site {site!r} is not known here{_hint(site, self.sites)}: sites become known when their "
                    "certificate is signed (ce-coordinator sign)"
                )
        model_without_labels(job)

    def _of_a_job(self, connection: Connection, kind: str, message: Any, now: float) -> list[Instruction]:
        run = self.runs.get(message.job)
        if run is None:
            if kind == "more":
                return []
            return [Send(connection.session, [self._over(connection.site, message.job, message.epoch)])]
        if connection.site not in run.roster:
            if connection.site in run.job.sites:  # it was
                return [Send(connection.session, [self._over(connection.site, message.job, message.epoch)])]
            raise MessageError("job: this site is not in it")
        if message.epoch < run.epoch:
            return []  # was on its way when the epoch ended
        if message.epoch > run.epoch:
            raise MessageError("epoch: has not begun")
        site, fingerprint = connection.site, connection.fingerprint
        return _guarded(run, lambda: run.received(site, fingerprint, kind, message, now), now)

    def _over(self, site: str, job: str, epoch: int) -> pb.CoordinatorFrame:
        record = self.records.get(job)
        if record is not None and site not in Job.from_definition(record.definition).sites:
            record = None  # and so nothing of it is known to this site
        if record is not None and site in record.left_behind:
            return left_behind_frame(record)
        if record is not None and record.ended:
            return ended_frame(record)
        if record is not None:  # waits in line; whatever the site has of it is of a former coordinator
            return pb.CoordinatorFrame(ended=pb.Ended(job=job, epoch=epoch, state="waits", reason="begins again"))
        reason = "the coordinator does not know this job"
        return pb.CoordinatorFrame(ended=pb.Ended(job=job[:100], epoch=epoch, state="cancelled", reason=reason))

    def _admit(self, now: float) -> list[Instruction]:
        steps: list[Instruction] = []
        while self._store_works and self._line and len(self.runs) < self.limits.jobs_at_once:
            record = self._line.popleft()
            run = self.runs[record.name] = JobRun(record, self._setting, self._sessions)
            steps += run.begin(now)
            self.records[record.name] = run.record
        return steps

    def _light(self, record: JobRecord) -> JobRecord:
        return record if self._archive is None else replace(record, result=b"")

    def _keep_soon(self, runs: Iterable[JobRun]) -> None:
        for run in runs:
            run.keep_soon()

    def _after(self, steps: list[Instruction], now: float) -> list[Instruction]:
        """Take over what runs have recorded; a job that ended makes room for the next."""
        for name, run in list(self.runs.items()):
            self.records[name] = self._light(run.record)
            if run.record.ended:
                del self.runs[name]
        return steps + self._admit(now)


def _guarded(run: JobRun, event: Callable[[], list[Instruction]], now: float) -> list[Instruction]:
    """A defect of ours ends the job that meets it, with a word in the log; no other job, and not the coordinator."""
    try:
        return event()
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rsplit('/', 1)[-1]}:{place.lineno}"
        named = {"job": run.job.name, "error": type(error).__name__, "where": where}
        failed = JobFailed("an unexpected error at the coordinator; its log says more")
        return [Note("error", "unexpected error", named), *run.fail(failed, now)]


def _hint(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""


def _printable(text: str) -> str:
    return "".join(c for c in text if c.isprintable())
