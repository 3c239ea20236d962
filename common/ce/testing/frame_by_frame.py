"""`FrameByFrame`: a coordinator's machine and its sites; the whole protocol, one frame at a time, without a socket.

Frames are serialised and parsed on the way, as on a stream. A site can lose its stream, or its memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from ce.identity.certificates import fingerprint
from ce.service.checkpoints import CheckpointFailed, MemoryCheckpoints
from ce.testing.sites import COORDINATOR_NAME, open_site
from ce.transport.frames import PROTOCOL
from ce_client.config import ClientSettings
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


class FrameByFrame:
    """A coordinator and its sites. `step` delivers one frame; `run` delivers frames until none is on its way.

    Frames on their way are in `up` (to the coordinator, with the number of the stream) and in `down` (by site), as
    bytes: a test may inspect, change, repeat or remove them. `store` has the records of jobs, `notes` the lines of the
    log, `closed` the streams that the coordinator ended (site, reason), `up_recording` every frame that reached the
    coordinator. Time is `now`, in seconds; only the test moves it.
    """

    def __init__(
        self,
        sites: Mapping[str, ClientSettings],
        limits: Limits | None = None,
        interval: CheckpointInterval | None = None,
    ) -> None:
        self.now = 1000.0
        self.store = MemoryStore()
        self.checkpoints = MemoryCheckpoints()
        self.machine = Machine(COORDINATOR_NAME, "test", limits or Limits(), 1, checkpoint_interval=interval)
        self.sites = {name: open_site(settings) for name, settings in sites.items()}
        self.machine.know({name: fingerprint(played.site_files.certificate) for name, played in self.sites.items()})
        self.down: dict[str, deque[bytes]] = {name: deque() for name in self.sites}
        self.up: deque[tuple[int, bytes]] = deque()
        self.notes: list[Note] = []
        self.closed: list[tuple[str, str]] = []
        self.up_recording: list[bytes] = []
        self._sessions: dict[int, str] = {}
        self._numbers = 0
        self.do(self.machine.jobs.start(self.now))

    def connect(self, *sites: str) -> None:
        """Open a stream for each of these sites, or for all; what is on its way to them is lost."""
        for site in sites or self.sites:
            played = self.sites[site]
            self._numbers += 1
            played.session = self._numbers
            self._sessions[played.session] = site
            self.down[site].clear()
            hello = pb.Hello(site=site, protocol=PROTOCOL, instance=bytes(16), held=played.site_jobs.held())
            for site_attempt in played.site_attempts.values():
                site_attempt.disconnected()
            print_ = fingerprint(played.site_files.certificate)
            self.do(self.machine.connected(played.session, site, print_, hello, self.now))

    def lose_stream(self, site: str) -> None:
        """End a site's stream. All frames on their way up and down are lost, and the coordinator notices."""
        session = self.sites[site].session
        assert session is not None
        self.up = deque((s, frame) for s, frame in self.up if s != session)
        self.down[site].clear()
        self.sites[site].session = None
        self.do(self.machine.disconnected(session, "lost", self.now))

    def lose_memory(self, site: str) -> None:
        """Open a site again from its directory, as if its process had been killed; its stream stays."""
        played = self.sites[site]
        played.ledger.close()
        self.sites[site] = open_site(played.settings)
        self.sites[site].session = played.session

    def submit(self, definition: bytes, token: str = "token") -> None:
        """Submit a job, `ce.Job(...).definition()`, as the operator."""
        self.do(self.machine.submit(definition, token, "olga", self.now))

    def do(self, steps: list[Instruction]) -> None:
        """Carry out what the coordinator's machine instructs."""
        for step in steps:
            match step:
                case Send(session, frames):
                    site = self._sessions[session]
                    if self.sites[site].session == session:
                        self.down[site].extend(frame.SerializeToString() for frame in frames)
                case Close(session, error):
                    site = self._sessions[session]
                    self.closed.append((site, str(error)))
                    if self.sites[site].session == session:
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
        """Deliver the next frame of a site to it; its replies go up."""
        played = self.sites[site]
        frame = pb.CoordinatorFrame.FromString(self.down[site].popleft())
        kind = frame.WhichOneof("frame")
        assert kind is not None
        message = getattr(frame, kind)
        if kind == "welcome":
            return
        if kind == "ended":
            played.site_jobs.ended(message)
            return
        site_attempt = played.site_jobs.addressed(kind, message)
        if site_attempt is None:
            return
        replies = site_attempt.receive(kind, message)
        played.site_jobs.note(site_attempt)
        for reply in replies:
            assert played.session is not None
            self.up.append((played.session, reply.SerializeToString()))

    def deliver_up(self) -> None:
        """Deliver the next frame to the coordinator."""
        session, frame = self.up.popleft()
        self.up_recording.append(frame)
        self.do(self.machine.received(session, pb.SiteFrame.FromString(frame), self.now))

    def step(self) -> bool:
        """Deliver one frame, up before down. False when none is on its way."""
        if self.up:
            self.deliver_up()
            return True
        for site, frames in self.down.items():
            if frames and self.sites[site].session is not None:
                self.deliver_down(site)
                return True
        return False

    def run(self, most: int = 100_000) -> None:
        """Deliver frames until none is on its way, at most so many."""
        for _ in range(most):
            if not self.step():
                return
        raise AssertionError("frames are still on their way after the largest number of steps")
