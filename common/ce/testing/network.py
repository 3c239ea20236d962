"""The played network: one stream per site, frames that arrive in order after a delay, and streams that break."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ce.testing.clock import FakeClock
from ce.testing.disks import Killed
from ce.transport.frames import PROTOCOL
from ce_coordinator.core.events import FrameReceived, SiteConnected, SiteDisconnected
from ce_proto.v1 import site_pb2 as pb

if TYPE_CHECKING:
    from ce.testing.world import PlayedWorld

#: The name of the coordinator's process; every other process has the name of its site.
COORDINATOR = "the coordinator"


@dataclass
class Stream:
    """One connection of one site. Each end may or may not know that it is over."""

    number: int
    site: str
    open_at_site: bool = True  # as the site knows it
    open_at_coordinator: bool = True  # as the coordinator knows it
    stalled_until: float = 0.0
    last: dict[str, float] = field(default_factory=lambda: {"up": 0.0, "down": 0.0})
    lost: set[str] = field(default_factory=set)  # directions in which nothing arrives any more


class Network:
    """Streams between the sites and the coordinator of a world.

    duplicates: the probability that a frame arrives twice.
    """

    def __init__(self, world: PlayedWorld, clock: FakeClock) -> None:
        self.duplicates = 0.0
        self.streams: dict[int, Stream] = {}
        self.current: dict[str, Stream | None] = dict.fromkeys(world.settings)
        self._world = world
        self._clock = clock
        self._random = world.random
        self._numbers = itertools.count(1)

    def latency(self) -> float:
        """Seconds that one frame takes."""
        return self._random.uniform(0.001, 0.02)

    def dial(self, site: str) -> None:
        """A site opens a stream; it tries again when the coordinator is down."""
        world = self._world
        played = world.sites[site]
        if played is None or self.current[site] is not None:
            return
        if world.machine is None or self._random.random() < 0.05:
            self._clock.at(self._random.uniform(0.05, 0.3), lambda: self.dial(site), site)
            return
        stream = Stream(next(self._numbers), site)
        self.streams[stream.number] = self.current[site] = stream
        hello = pb.Hello(site=site, protocol=PROTOCOL, instance=bytes(16), held=played.site_jobs.held())
        for site_attempt in played.site_attempts.values():
            site_attempt.disconnected()

        def arrives() -> None:
            if stream.open_at_coordinator:
                world.handle(SiteConnected(stream.number, site, world.fingerprints[site], hello))

        self._clock.at(self.latency(), arrives, COORDINATOR)

    def process_ended(self, process: str) -> None:
        """A process is gone: its ends of streams are closed, and the other ends will notice."""
        if process == COORDINATOR:
            for stream in self.streams.values():
                stream.open_at_coordinator = False
        elif (current := self.current[process]) is not None:
            current.open_at_site = False
            self.current[process] = None
        for stream in self.streams.values():
            if process in (COORDINATOR, stream.site):
                self.break_stream(stream)

    def break_stream(self, stream: Stream) -> None:
        """Lose what is on its way. Each end that does not know yet finds out after a delay of its own."""
        stream.lost |= {"up", "down"}
        if stream.open_at_site:
            self._clock.at(self.latency(), lambda: self.ended_at_site(stream), stream.site)
        if stream.open_at_coordinator:
            self._clock.at(self.latency(), lambda: self.ended_at_coordinator(stream), COORDINATOR)

    def ended_at_site(self, stream: Stream) -> None:
        """The site notices that its stream is over; it dials again soon."""
        stream.open_at_site = False
        if self.current[stream.site] is stream:
            self.current[stream.site] = None
            self._clock.at(self._random.uniform(0.05, 0.2), lambda: self.dial(stream.site), stream.site)

    def ended_at_coordinator(self, stream: Stream) -> None:
        """The coordinator notices that a stream is over."""
        world = self._world
        if stream.open_at_coordinator and world.machine is not None:
            stream.open_at_coordinator = False
            world.handle(SiteDisconnected(stream.number, "broke"))

    def send_up(self, stream: Stream, frame: pb.SiteFrame) -> None:
        """A site sends a frame."""
        content = frame.SerializeToString()
        if self._world.faults.at_step(stream.site, frame, sent=False):
            raise Killed
        self._world.checks.sent_up(stream.site, frame)
        self._carry(stream, "up", content)
        if self._world.faults.at_step(stream.site, frame, sent=True):
            raise Killed

    def send_down(self, stream: Stream, content: bytes) -> None:
        """The coordinator sends a frame, if it does not know that the stream is over."""
        self._world.checks.sent_down(stream.site, pb.CoordinatorFrame.FromString(content))
        self._carry(stream, "down", content)

    def _carry(self, stream: Stream, direction: str, frame: bytes) -> None:
        times = 2 if self._random.random() < self.duplicates else 1
        now = self._clock.now
        arrival = max(now + self.latency(), stream.last[direction] + 1e-6, stream.stalled_until)
        stream.last[direction] = arrival

        def arrives() -> None:
            if direction in stream.lost:
                return
            for _ in range(times):
                (self._reach_site if direction == "down" else self._reach_coordinator)(stream, frame)

        self._clock.at(arrival - now, arrives)

    def _reach_coordinator(self, stream: Stream, frame: bytes) -> None:
        """A frame arrives at the coordinator, if it runs."""
        arrived = pb.SiteFrame.FromString(frame)
        if self._world.faults.at_step(COORDINATOR, arrived, sent=True):
            self._world.faults.crash(COORDINATOR, self._world.dead_for_s.pop(COORDINATOR))
            return
        self._world.handle(FrameReceived(stream.number, arrived))

    def _reach_site(self, stream: Stream, content: bytes) -> None:
        site = stream.site
        played = self._world.sites[site]
        if played is None or not stream.open_at_site:
            return
        frame = pb.CoordinatorFrame.FromString(content)
        kind = frame.WhichOneof("frame")
        assert kind is not None
        message = getattr(frame, kind)
        if kind == "welcome":
            return

        def work() -> None:
            if kind == "ended":
                played.site_jobs.ended(message)
                return
            site_attempt = played.site_jobs.addressed(kind, message)
            if site_attempt is None:
                return
            replies = site_attempt.receive(kind, message)
            played.site_jobs.note(site_attempt)
            for reply in replies:
                if stream.open_at_site and self._world.sites[site] is played:
                    self.send_up(stream, reply)

        self._world.as_process(site, work)
