"""A coordinator's brain and its sites on one table: the whole protocol, frame by frame, without a socket.

Frames are serialised and parsed on the way, like on a stream. A `Table` can lose a site's stream, or its memory.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding

from ce.identity.authority import Authority
from ce.identity.certificates import fingerprint
from ce.identity.keys import make_key, write_key
from ce.identity.names import Identity
from ce.identity.peers import Peers
from ce.service.checkpoints import CheckpointFailed, MemoryCheckpoints
from ce.transport.frames import PROTOCOL
from ce_client.attempt.attempt import SiteAttempt
from ce_client.config import ClientSettings
from ce_client.daemon.jobs import SiteJobs
from ce_client.daemon.site_files import SiteFiles
from ce_client.state.ledger import FILE_NAME as LEDGER
from ce_client.state.ledger import Ledger
from ce_coordinator.core.checkpoint_schedule import CheckpointInterval
from ce_coordinator.core.events import CheckpointLoaded, CheckpointSaved, Computed, Event
from ce_coordinator.core.instructions import (
    Changed,
    Close,
    Compute,
    Instruction,
    LoadCheckpoint,
    Note,
    RemoveCheckpoints,
    SaveCheckpoint,
    SaveJob,
    SaveSite,
    Send,
)
from ce_coordinator.core.limits import Limits
from ce_coordinator.core.machine import Machine
from ce_coordinator.store.memory import MemoryStore
from ce_proto.v1 import site_pb2 as pb

#: A policy under which a site takes part in anything.
PERMISSIVE = """weakest_privacy = "plain"
min_sites = 1
min_objects = 1
min_foreign_columns = 0
min_classifiers = 0
min_cluster = 1
"""


def make_sites(
    directory: Path,
    label_files: Mapping[str, Path],
    secrets: Mapping[str, bytes] | None = None,
    *,
    authority: Authority | None = None,
    policy: str = PERMISSIVE,
    coordinator: str = "localhost:1",
) -> dict[str, ClientSettings]:
    """Directories of sites with keys, certificates, pins and a permissive policy."""
    now = datetime.now(UTC)
    authority = authority or Authority.create(directory / "authority", now)
    settings: dict[str, ClientSettings] = {}
    prints: dict[str, str] = {}
    for site, labels in label_files.items():
        home = directory / site
        home.mkdir()
        key = make_key()
        write_key(home / "site.key", key)
        certificate = authority.issue(Identity("site", site), key, now)
        (home / "site.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
        (home / "ca.pem").write_bytes(authority.certificate.public_bytes(Encoding.PEM))
        (home / "policy.toml").write_text(policy)
        secret = (secrets or {}).get(site, os.urandom(32))
        (home / "secret").touch(mode=0o600)
        (home / "secret").write_text(secret.hex())
        prints[site] = fingerprint(certificate)
        (home / "client.toml").write_text(
            f'name = "{site}"\ncoordinator = "{coordinator}"\n[labels]\nfile = "{labels}"\n'
        )
        settings[site] = ClientSettings.read(home / "client.toml")
    for site in label_files:
        peers = Peers.read(directory / site / "peers.toml")
        for peer, own in prints.items():
            if peer != site:
                peers.trust(peer, own)
    return settings


@dataclass
class Seat:
    """A site at the table."""

    settings: ClientSettings
    site_files: SiteFiles
    ledger: Ledger
    site_jobs: SiteJobs
    session: int | None = None

    @property
    def site_attempts(self) -> dict[str, SiteAttempt]:
        return self.site_jobs.site_attempts


class _Ledger(Ledger):
    """Closed when nobody has it any more: tests sit down at very many tables, and select() knows few open files."""

    def __del__(self) -> None:
        self.close()


def seat_of(settings: ClientSettings) -> Seat:
    site_files = SiteFiles.open(settings)
    ledger = _Ledger(settings.state / LEDGER, settings.name)
    site_jobs = SiteJobs(site_files, ledger)
    site_jobs.coordinator = "table"
    return Seat(settings, site_files, ledger, site_jobs)


class Table:
    """Coordinator and sites. `step` passes one frame on; `run` goes on until nothing moves."""

    def __init__(
        self,
        sites: Mapping[str, ClientSettings],
        limits: Limits | None = None,
        interval: CheckpointInterval | None = None,
    ) -> None:
        self.now = 1000.0
        self.store = MemoryStore()
        self.checkpoints = MemoryCheckpoints()
        self.machine = Machine("table", "test", limits or Limits(), 1, checkpoint_interval=interval)
        self.seats = {name: seat_of(settings) for name, settings in sites.items()}
        self.machine.know({name: fingerprint(seat.site_files.certificate) for name, seat in self.seats.items()})
        self.down: dict[str, deque[bytes]] = {name: deque() for name in self.seats}
        self.up: deque[tuple[int, bytes]] = deque()
        self.notes: list[Note] = []
        self.closed: list[tuple[str, str]] = []
        self.up_recording: list[bytes] = []
        self._sessions: dict[int, str] = {}
        self._numbers = 0
        self.do(self.machine.jobs.start(self.now))

    def connect(self, *sites: str) -> None:
        for site in sites or self.seats:
            seat = self.seats[site]
            self._numbers += 1
            seat.session = self._numbers
            self._sessions[seat.session] = site
            self.down[site].clear()
            hello = pb.Hello(site=site, protocol=PROTOCOL, instance=bytes(16), held=seat.site_jobs.held())
            for site_attempt in seat.site_attempts.values():
                site_attempt.disconnected()
            own = fingerprint(seat.site_files.certificate)
            self.do(self.machine.connected(seat.session, site, own, hello, self.now))

    def lose_stream(self, site: str) -> None:
        session = self.seats[site].session
        assert session is not None
        self.up = deque((s, frame) for s, frame in self.up if s != session)
        self.down[site].clear()
        self.seats[site].session = None
        self.do(self.machine.disconnected(session, "lost", self.now))

    def lose_memory(self, site: str) -> None:
        """As if its process was killed: what is not on its disk is gone."""
        seat = self.seats[site]
        seat.ledger.close()
        self.seats[site] = seat_of(seat.settings)
        self.seats[site].session = seat.session

    def submit(self, definition: bytes, token: str = "token") -> None:
        self.do(self.machine.submit(definition, token, "olga", self.now))

    def do(self, steps: list[Instruction]) -> None:
        for step in steps:
            match step:
                case Send(session, frames):
                    site = self._sessions[session]
                    if self.seats[site].session == session:
                        self.down[site].extend(frame.SerializeToString() for frame in frames)
                case Close(session, error):
                    site = self._sessions[session]
                    self.closed.append((site, str(error)))
                    if self.seats[site].session == session:
                        self.lose_stream(site)
                case Compute() | SaveCheckpoint() | LoadCheckpoint():
                    self.do(self.machine.handle(self.answer_of(step), self.now))
                case SaveJob(record):
                    self.store.save_job(record)
                case SaveSite(record):
                    self.store.save_site(record)
                case RemoveCheckpoints(job):
                    self.checkpoints.remove(job)
                case Note():
                    self.notes.append(step)
                case Changed():
                    pass

    def answer_of(self, step: Compute | SaveCheckpoint | LoadCheckpoint) -> Event:
        """Carry out what a runner carries out on a thread; the event that answers it."""
        match step:
            case Compute():
                try:
                    result: Any = step.work()
                except Exception as error:
                    result = error
                return Computed(step.job, step.epoch, result)
            case SaveCheckpoint():
                self.checkpoints.save(step.job, step.context, step.checkpoint_id, step.snapshot)
                return CheckpointSaved(step.job, step.epoch, step.checkpoint_id)
            case LoadCheckpoint():
                for checkpoint_id in step.checkpoint_ids:
                    try:
                        snapshot = self.checkpoints.load(step.job, step.context, checkpoint_id)
                    except CheckpointFailed:
                        continue
                    return CheckpointLoaded(step.job, step.epoch, checkpoint_id, snapshot)
                return CheckpointLoaded(step.job, step.epoch)

    def deliver_down(self, site: str) -> None:
        """One frame reaches a site, which may answer."""
        seat = self.seats[site]
        frame = pb.CoordinatorFrame.FromString(self.down[site].popleft())
        kind = frame.WhichOneof("frame")
        assert kind is not None
        message = getattr(frame, kind)
        if kind == "welcome":
            return
        if kind == "ended":
            seat.site_jobs.ended(message)
            return
        site_attempt = seat.site_jobs.addressed(kind, message)
        if site_attempt is None:
            return
        replies = site_attempt.receive(kind, message)
        seat.site_jobs.note(site_attempt)
        for reply in replies:
            assert seat.session is not None
            self.up.append((seat.session, reply.SerializeToString()))

    def deliver_up(self) -> None:
        session, frame = self.up.popleft()
        self.up_recording.append(frame)
        self.do(self.machine.received(session, pb.SiteFrame.FromString(frame), self.now))

    def step(self) -> bool:
        """Whether anything was on its way."""
        if self.up:
            self.deliver_up()
            return True
        for site, frames in self.down.items():
            if frames and self.seats[site].session is not None:
                self.deliver_down(site)
                return True
        return False

    def run(self, most: int = 100_000) -> None:
        for _ in range(most):
            if not self.step():
                return
        raise AssertionError("the table never came to rest")
