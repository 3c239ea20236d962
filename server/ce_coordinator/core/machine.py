"""The coordinator's state: sites and jobs. `handle` takes an event and returns instructions.

Nothing here waits, connects, reads a clock or opens a file. When an event is refused (a job that cannot be run, a Hello
that cannot be accepted), a CeError is raised before anything has changed; a frame that a site must not send leads to
`Close`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ce.errors import MessageError, NotAllowed, Unreachable, VersionMismatch
from ce.protocol.messages.rooms import MemoryRoom, Rooms
from ce.transport.frames import MOST_HELD, PROTOCOL
from ce_coordinator.core import events
from ce_coordinator.core.checkpoint_schedule import CheckpointInterval
from ce_coordinator.core.instructions import Close, Instruction, Note, Send, Session
from ce_coordinator.core.job_run import JobRun, not_running_frame
from ce_coordinator.core.jobs import Archive, Jobs
from ce_coordinator.core.limits import JobSettings, Limits
from ce_coordinator.core.records import JobRecord, JobState, SiteRecord
from ce_coordinator.core.site_directory import Connection, SiteDirectory, read_lacks
from ce_proto.v1 import site_pb2 as pb

_INSTANCE_SIZE = 16


@dataclass(frozen=True)
class Census:
    """How many jobs and sites there are."""

    jobs: Mapping[JobState, int]
    jobs_in_line: int
    sites_known: int
    sites_connected: int
    sites_awaited: int


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
        checkpoint_interval: CheckpointInterval | None = None,
        archive: Archive | None = None,
        rooms: Rooms = MemoryRoom,
    ) -> None:
        """`archive` returns records with their results; with it, results of ended jobs take no memory here. `rooms`:
        where sealed jobs put what they only pass on."""
        self.name = name
        self.limits = limits
        self.directory = SiteDirectory(sites)
        settings = JobSettings(limits, min_cluster, checkpoint_interval or CheckpointInterval(), rooms)
        self.jobs = Jobs(jobs, settings, self.directory, archive)
        self.draining = False
        self._software = software

    def handle(self, event: events.Event, now: float) -> list[Instruction]:
        """What is to be done about an event. Raises CeError when the event is refused; then nothing has changed."""
        jobs = self.jobs
        match event:
            case events.FrameReceived(session, frame):
                return self.received(session, frame, now)
            case events.Computed(job, epoch, result):
                return jobs.computed(job, epoch, result, now)
            case events.CheckpointSaved(job, epoch):
                return jobs.checkpoint_saved(job, epoch, now)
            case events.CheckpointNotSaved(job, epoch, reason):
                return jobs.of_attempt(job, epoch, lambda run: run.checkpoint_not_saved(reason), now)
            case events.CheckpointLoaded(job, epoch, checkpoint_id, snapshot):
                return jobs.of_attempt(job, epoch, lambda run: run.checkpoint_loaded(checkpoint_id, snapshot), now)
            case events.SiteConnected(session, site, fingerprint, hello):
                return self.connected(session, site, fingerprint, hello, now)
            case events.SiteDisconnected(session, reason):
                return self.disconnected(session, reason, now)
            case events.JobSubmitted(definition, token, operator):
                return self.submit(definition, token, operator, now)
            case events.JobCancelled(job, operator):
                return jobs.cancel(job, operator, now)
            case events.RecordNotSaved(job, error):
                return jobs.record_not_saved(job, error, now)
            case events.StoreRecovered():
                return jobs.store_recovered(now)
            case events.CertificatesIssued(fingerprints):
                return self.know(fingerprints)
            case events.DeadlineReached():
                return jobs.tick(now)
            case events.DrainRequested():
                return self.drain()
            case events.CoordinatorStarted():
                return jobs.start(now)

    # State.

    @property
    def records(self) -> dict[str, JobRecord]:
        """By job."""
        return self.jobs.records

    @property
    def runs(self) -> dict[str, JobRun]:
        """By job: those that run."""
        return self.jobs.runs

    @property
    def sites(self) -> dict[str, SiteRecord]:
        """By site."""
        return self.directory.records

    @property
    def connections(self) -> dict[str, Connection]:
        """By site: those that are connected."""
        return self.directory.connections

    @property
    def next_deadline(self) -> float | None:
        """When `DeadlineReached` is due, if nothing happens before."""
        return self.jobs.next_deadline

    @property
    def checkpoints_pending(self) -> bool:
        """Whether a requested checkpoint is not yet at all sites of its job."""
        return any(run.checkpoint_pending for run in self.runs.values())

    def census(self) -> Census:
        return Census(
            Counter(record.state for record in self.records.values()),
            len(self.jobs.line),
            len(self.sites),
            len(self.connections),
            len(set().union(*(run.awaited for run in self.runs.values()))),
        )

    # Operators.

    def submit(self, definition: bytes, token: str, operator: str, now: float) -> list[Instruction]:
        """A job, as JSON."""
        if self.draining:
            raise Unreachable("the coordinator is stopping: submit again when it runs again")
        return self.jobs.submit(definition, token, operator, self.sites, now)

    def drain(self) -> list[Instruction]:
        """Accept no more jobs; request a checkpoint of each that runs."""
        self.draining = True
        return _request_checkpoints(self.runs.values())

    # Sites.

    def know(self, fingerprints: Mapping[str, str]) -> list[Instruction]:
        """Sites that have a certificate are known before they first connect."""
        self.directory.add_issued(fingerprints)
        return []

    def connected(
        self, session: Session, site: str, fingerprint: str, hello: pb.Hello, now: float
    ) -> list[Instruction]:
        """A site has sent Hello; `site` and `fingerprint` are those of its certificate."""
        welcome = self.probed(site, hello, now)
        software, lacks = _printable(hello.software[:50]), read_lacks(hello)
        steps = self.directory.connect(session, site, fingerprint, software, lacks, now)
        steps += [
            Note("info", "site connected", {"site": site, "fingerprint": fingerprint}),
            Send(session, [welcome]),
        ]
        held = {entry.job: entry.epoch for entry in hello.held}
        for job, epoch in held.items():
            if job not in self.runs or site not in self.runs[job].roster:
                steps.append(Send(session, [not_running_frame(self.records.get(job), site, job, epoch)]))
        runs = [run for run in self.runs.values() if site in run.roster]
        return steps + self.jobs.each(runs, lambda run: run.connected(site, held.get(run.job.name), now), now)

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
            raise MessageError(
                f"hello: expected an instance of {_INSTANCE_SIZE} bytes and at most {MOST_HELD:,} jobs in held, "
                f"got {len(hello.instance):,} and {len(hello.held):,}"
            )
        read_lacks(hello)
        welcome = pb.Welcome(coordinator=self.name, protocol=PROTOCOL, software=self._software, time_s=now)
        return pb.CoordinatorFrame(welcome=welcome)

    def disconnected(self, session: Session, reason: str, now: float) -> list[Instruction]:
        """A stream has ended, at either end."""
        ended = self.directory.disconnect(session, now)
        if ended is None:
            return []
        site, steps = ended
        steps.append(Note("info", "site disconnected", {"site": site, "reason": reason}))
        return steps + [step for run in self.runs.values() if site in run.roster for step in run.disconnected()]

    def received(self, session: Session, frame: pb.SiteFrame, now: float) -> list[Instruction]:
        """A frame after Hello."""
        connection = self.directory.by_session.get(session)
        if connection is None or connection.closed:
            return []  # from a stream that was replaced or closed
        connection.last_seen = now
        kind = frame.WhichOneof("frame")
        try:
            if kind is None or kind == "hello":
                raise MessageError("frame: empty, or a second hello")
            if kind == "goodbye":
                return []
            if kind == "leaving":
                return _request_checkpoints(run for run in self.runs.values() if connection.site in run.roster)
            steps = self._received_of_job(connection, kind, getattr(frame, kind), now)
        except MessageError as error:
            note = Note("warning", "message refused", {"site": connection.site, "reason": str(error)})
            steps = [note, Close(session, error)]
        if steps:  # most answers lead to nothing
            connection.closed = any(isinstance(step, Close) and step.session == session for step in steps)
        return steps

    def _received_of_job(self, connection: Connection, kind: str, message: Any, now: float) -> list[Instruction]:
        site, fingerprint, job = connection.site, connection.fingerprint, message.job
        run = self.runs.get(job)
        if run is None and kind == "more":
            return []
        if run is not None and site not in run.job.sites:
            raise MessageError("job: this site is not in it")
        if run is None or site not in run.roster:
            frame = not_running_frame(self.records.get(job), site, job, message.epoch)
            return [Send(connection.session, [frame])]
        if message.epoch < run.epoch:
            return []  # was on its way when the attempt ended
        if message.epoch > run.epoch:
            raise MessageError(f"epoch: expected {run.epoch}, got {message.epoch}")
        return self.jobs.each([run], lambda run: run.received(site, fingerprint, kind, message, now), now)


def _request_checkpoints(runs: Iterable[JobRun]) -> list[Instruction]:
    for run in runs:
        run.request_checkpoint()
    return []


def _printable(text: str) -> str:
    return "".join(c for c in text if c.isprintable())
