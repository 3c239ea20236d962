"""A coordinator and its sites in one process, with a clock that only moves from event to event, and faults.

The coordinator's brain, the sites' desks and participants, their files and the frames are the real ones; what is played
is the network, the event loops and the processes themselves. Frames of a stream arrive in order, each after a while of
its own; a stream that breaks loses what is on its way, in one direction or in both, or lets it arrive too late.
Processes are killed between any two events, or at any write to a disk, before or after it happened. What is on a disk
stays.

All that happens follows from a seed.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import ce
import ce.privacy.masks
import ce.service.atomic_files
import ce.service.checkpoints
from ce.errors import CeError, MessageError
from ce.identity.certificates import fingerprint
from ce.protocol.messages.task import array_hash
from ce.service.checkpoints import CheckpointId, MemoryCheckpoints
from ce.transport.array_chunks import Collector
from ce.transport.frames import PROTOCOL
from ce_client.config import ClientSettings
from ce_client.state.ledger import FILE_NAME as LEDGER
from ce_client.state.ledger import Ledger, entries, verify
from ce_coordinator.core.checkpoint_schedule import CheckpointInterval
from ce_coordinator.core.events import (
    CheckpointLoaded,
    CheckpointSaved,
    Computed,
    CoordinatorStarted,
    DeadlineReached,
    DrainRequested,
    Event,
    FrameReceived,
    JobSubmitted,
    SiteConnected,
    SiteDisconnected,
)
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
from ce_coordinator.core.records import JobRecord
from ce_coordinator.store.memory import MemoryStore
from ce_proto.v1 import site_pb2 as pb
from support.tabletop import Seat, seat_of

HUB = "the coordinator"
#: A stream that is cut without a word is noticed after this long.
KEEPALIVE_S = 2.5
#: Events of one job after which something must be wrong.
MOST_EVENTS = 60_000


class Killed(BaseException):
    """The process that is at work is killed. Not an Exception: nobody may catch it."""


class Violation(BaseException):
    """An invariant does not hold. Not an Exception: no defence of the code under test may catch it."""


@dataclass
class Stream:
    """One connection of one site; each end may know or not know that it is over."""

    number: int
    site: str
    open_here: bool = True  # as the site sees it
    open_there: bool = True  # as the coordinator sees it
    stalled_until: float = 0.0
    last: dict[str, float] = field(default_factory=lambda: {"up": 0.0, "down": 0.0})
    lost: set[str] = field(default_factory=set)  # directions in which nothing arrives any more


class World:
    """`run` lets everything happen until the job is over and nothing moves any more."""

    def __init__(
        self,
        seed: int,
        sites: Mapping[str, ClientSettings],
        definition: bytes,
        watch: Watch,
        interval: CheckpointInterval,
    ) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.clock = 1_700_000_000.0  # what the coordinator's wall clock is ahead of `now`
        self.store = MemoryStore()
        self.checkpoints = HubCheckpoints(self)
        self.settings = dict(sites)
        self.seats: dict[str, Seat | None] = dict.fromkeys(sites)
        self.machine: Machine | None = None
        self.streams: dict[int, Stream] = {}
        self.current: dict[str, Stream | None] = dict.fromkeys(sites)
        self.definition = definition
        self.job = ce.Job.from_definition(definition).name
        self.watch = watch
        self.interval = interval
        self.happened: list[str] = []
        self.resumed = 0
        self.attempts = 0
        self.writes_left: dict[str, tuple[int, bool]] = {}  # by process: killed at the so-manieth write, before it?
        self.dead_for: dict[str, float] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count(1)
        self._lives: dict[str, int] = dict.fromkeys((HUB, *sites), 0)
        watch.world = self

    # Time.

    def at(self, delay: float, what: Callable[[], None], process: str | None = None) -> None:
        """After a while; not if the process that it belongs to has ended by then."""
        life = None if process is None else self._lives[process]

        def event() -> None:
            if process is None or self._lives[process] == life:
                what()

        heapq.heappush(self._events, (self.now + delay, next(self._numbers), event))

    def run(self, until: float) -> None:
        """Until the job is over, or `until`: then it is late."""
        for _ in range(MOST_EVENTS):
            if not self._events or self._events[0][0] > until:
                return
            self.now, _, event = heapq.heappop(self._events)
            event()
            if self.over and not self._events:
                return
        raise Violation("nothing comes to rest")

    def global_step(self, seconds: float) -> None:
        """Let everybody hear of the end."""
        self.run(self.now + seconds)

    @property
    def wall(self) -> float:
        return self.now + self.clock

    @property
    def record(self) -> JobRecord:
        found = self.store.job(self.job)
        assert found is not None
        return found

    @property
    def over(self) -> bool:
        found = self.store.job(self.job)
        return found is not None and found.ended

    def _latency(self) -> float:
        return self.random.uniform(0.001, 0.02)

    # Processes.

    def start(self, process: str) -> None:
        if process == HUB:
            self.as_process(HUB, self._start_hub)
        elif self.seats.get(process) is None:
            self.seats[process] = self.as_process(process, lambda: seat_of(self.settings[process]))
            self._dial(process)

    def _start_hub(self) -> None:
        self.machine = Machine(
            "table",
            "test",
            Limits(),
            1,
            self.store.jobs(),
            self.store.sites(),
            self.interval,
        )
        for name, settings in self.settings.items():
            self.machine.know({name: self.watch.fingerprints[settings.name]})
        self._pass(CoordinatorStarted())
        if self.store.job(self.job) is None:  # the operator tries until it is taken
            self._pass(JobSubmitted(self.definition, "token", "olga"))
        self._tick_later()

    def kill(self, process: str) -> None:
        self._lives[process] += 1
        self.writes_left.pop(process, None)
        if process == HUB:
            self.machine = None
            for stream in self.streams.values():
                stream.open_there = False
        else:
            seat = self.seats.get(process)
            if seat is not None:
                seat.ledger.close()
            self.seats[process] = None
            if (stream := self.current[process]) is not None:
                stream.open_here = False
                self.current[process] = None
        for stream in self.streams.values():
            if process in (HUB, stream.site):
                self._break(stream)

    def as_process(self, process: str, work: Callable[[], Any]) -> Any:
        """Do something as this process, which may be killed while it does; it comes back after a while."""
        before, self.watch.at_work = self.watch.at_work, process
        try:
            return work()
        except Killed:
            self.happened.append(f"{self.now:.3f} {process} is killed at a write")
            self.kill(process)
            self.at(self.dead_for.pop(process, 0.3), lambda: self.start(process))
            return None
        finally:
            self.watch.at_work = before

    # Streams.

    def _dial(self, site: str) -> None:
        if self.seats[site] is None or self.current[site] is not None:
            return
        if self.machine is None or self.random.random() < 0.05:
            self.at(self.random.uniform(0.05, 0.3), lambda: self._dial(site), site)
            return
        stream = Stream(next(self._numbers), site)
        self.streams[stream.number] = self.current[site] = stream  # type: ignore[assignment]
        seat = self.seats[site]
        assert seat is not None
        hello = pb.Hello(site=site, protocol=PROTOCOL, instance=bytes(16), held=seat.site_jobs.held())
        for site_attempt in seat.site_attempts.values():
            site_attempt.disconnected()

        def arrives() -> None:
            if stream.open_there and self.machine is not None:
                self.handle(SiteConnected(stream.number, site, self.watch.fingerprints[site], hello))

        self.at(self._latency(), arrives, HUB)

    def _break(self, stream: Stream) -> None:
        """Both ends find out, each in its own time, those that do not know already."""
        stream.lost |= {"up", "down"}
        if stream.open_here:
            self.at(self._latency(), lambda: self._ended_here(stream), stream.site)
        if stream.open_there:
            self.at(self._latency(), lambda: self._ended_there(stream), HUB)

    def _ended_here(self, stream: Stream) -> None:
        stream.open_here = False
        if self.current[stream.site] is stream:
            self.current[stream.site] = None
            self.at(self.random.uniform(0.05, 0.2), lambda: self._dial(stream.site), stream.site)

    def _ended_there(self, stream: Stream) -> None:
        if stream.open_there and self.machine is not None:
            stream.open_there = False
            self.handle(SiteDisconnected(stream.number, "broke"))

    def _carry(self, stream: Stream, direction: str, frame: bytes, times: int = 1) -> None:
        """One frame on its way."""
        arrival = max(self.now + self._latency(), stream.last[direction] + 1e-6, stream.stalled_until)
        stream.last[direction] = arrival

        def arrives() -> None:
            if direction in stream.lost:
                return
            for _ in range(times):
                (self._reach_site if direction == "down" else self._reach_hub)(stream, frame)

        self.at(arrival - self.now, arrives)

    def send_up(self, stream: Stream, frame: pb.SiteFrame) -> None:
        content = frame.SerializeToString()
        self.watch.sent(stream.site, frame)
        twice = self.random.random() < self.duplicates
        self._carry(stream, "up", content, 2 if twice else 1)

    duplicates = 0.0

    def _reach_hub(self, stream: Stream, frame: bytes) -> None:
        if self.machine is None:
            return
        self.handle(FrameReceived(stream.number, pb.SiteFrame.FromString(frame)))

    def _reach_site(self, stream: Stream, content: bytes) -> None:
        site = stream.site
        seat = self.seats[site]
        if seat is None or not stream.open_here:
            return
        frame = pb.CoordinatorFrame.FromString(content)
        kind = frame.WhichOneof("frame")
        assert kind is not None
        message = getattr(frame, kind)
        if kind == "welcome":
            return

        def work() -> None:
            if kind == "ended":
                seat.site_jobs.ended(message)
                return
            site_attempt = seat.site_jobs.addressed(kind, message)
            if site_attempt is None:
                return
            replies = site_attempt.receive(kind, message)
            seat.site_jobs.note(site_attempt)
            for reply in replies:
                if stream.open_here and self.seats[site] is seat:
                    self.send_up(stream, reply)

        self.as_process(site, work)

    # The coordinator's events and instructions.

    def handle(self, event: Event) -> None:
        """An event at the coordinator, which may be killed while it deals with it."""
        self.as_process(HUB, lambda: self._pass(event))

    def _pass(self, event: Event) -> None:
        assert self.machine is not None
        self.do(self.machine.handle(event, self.wall))

    def do(self, steps: Iterable[Instruction]) -> None:
        steps = list(steps)
        for step in steps:
            if isinstance(step, SaveJob):
                self.watch.write(HUB, lambda step=step: self.store.save_job(step.record))  # type: ignore[misc]
                self.watch.saved(step.record)
        for step in steps:
            match step:
                case Send(session, frames):
                    stream = self.streams[session]
                    if stream.open_there:
                        for content in (frame.SerializeToString() for frame in frames):
                            self.watch.told(stream.site, pb.CoordinatorFrame.FromString(content))
                            twice = self.random.random() < self.duplicates
                            self._carry(stream, "down", content, 2 if twice else 1)
                case Close(session, error):
                    stream = self.streams[session]
                    self.happened.append(f"{self.now:.3f} {stream.site} is cut off: {error}")
                    stream.open_there = False
                    self._pass(SiteDisconnected(session, "closed"))
                    self._break(stream)
                case Compute():
                    self._on_a_thread(lambda step=step: self._computed(step))  # type: ignore[misc]
                case SaveCheckpoint():
                    self._on_a_thread(lambda step=step: self._saved(step))  # type: ignore[misc]
                case LoadCheckpoint():
                    self._on_a_thread(lambda step=step: self._loaded(step))  # type: ignore[misc]
                case SaveSite(record):
                    self.store.save_site(record)
                case RemoveCheckpoints(job):
                    self.checkpoints.remove(job)
                case Note(_, event, _):
                    self.resumed += event == "job goes on from a checkpoint"
                case Changed():
                    pass
        self._tick_later()

    def _on_a_thread(self, work: Callable[[], Event]) -> None:
        """Later; and its event is passed on later still: the process may be killed in between."""

        def run() -> None:
            event = self.as_process(HUB, work)
            if event is not None:
                self.at(self._latency() / 4, lambda: self.handle(event), HUB)

        self.at(self._latency() / 4, run, HUB)

    def _computed(self, step: Compute) -> Event:
        try:
            return Computed(step.job, step.epoch, step.work())
        except CeError as error:
            return Computed(step.job, step.epoch, error)

    def _saved(self, step: SaveCheckpoint) -> Event:
        self.checkpoints.save(step.job, step.context, step.checkpoint_id, step.snapshot)
        return CheckpointSaved(step.job, step.epoch, step.checkpoint_id)

    def _loaded(self, step: LoadCheckpoint) -> Event:
        saved = self.checkpoints.ids(step.job, step.context)
        found = next((checkpoint_id for checkpoint_id in step.checkpoint_ids if checkpoint_id in saved), None)
        if found is None:
            return CheckpointLoaded(step.job, step.epoch)
        return CheckpointLoaded(step.job, step.epoch, found, self.checkpoints.load(step.job, step.context, found))

    def _tick_later(self) -> None:
        if self.machine is not None and (due := self.machine.next_deadline) is not None:
            self.at(max(due - self.wall, 0.0) + 1e-3, self._tick, HUB)

    def _tick(self) -> None:
        if self.machine is not None:
            due = self.machine.next_deadline
            if due is not None and due <= self.wall:
                self.handle(DeadlineReached())

    # Faults.

    def crash(self, process: str, dead_for: float) -> None:
        if (self.machine if process == HUB else self.seats.get(process)) is None:
            return
        self.happened.append(f"{self.now:.3f} {process} is killed, for {dead_for:.2f} s")
        self.kill(process)
        self.at(dead_for, lambda: self.start(process))

    def kill_at_write(self, process: str, count: int, before: bool, dead_for: float) -> None:
        self.happened.append(f"{self.now:.3f} {process} will be killed {'before' if before else 'after'} write {count}")
        self.writes_left[process] = (count, before)
        self.dead_for[process] = dead_for

    def cut(self, site: str, how: str) -> None:
        """`how`: what is on its way up, down or in both directions is lost; or all of it arrives, too late."""
        stream = self.current[site]
        if stream is None:
            return
        self.happened.append(f"{self.now:.3f} the stream of {site} breaks, {how} lost")
        self._break(stream)
        stream.lost = {"up": {"up"}, "down": {"down"}, "both": {"up", "down"}, "nothing": set()}[how]

    def stall(self, site: str, seconds: float) -> None:
        """Nothing gets through for a while. When that is long, both ends give the stream up, one before the other."""
        stream = self.current[site]
        if stream is None:
            return
        self.happened.append(f"{self.now:.3f} nothing gets through to {site} for {seconds:.2f} s")
        stream.stalled_until = self.now + seconds
        if seconds > KEEPALIVE_S:
            stream.lost |= {"up", "down"}
            here, there = (self.random.uniform(KEEPALIVE_S, seconds + KEEPALIVE_S) for _ in range(2))
            self.at(here, lambda: self._ended_here(stream), site)
            self.at(there, lambda: self._ended_there(stream), HUB)

    def jump(self, seconds: float) -> None:
        """Somebody sets the coordinator's clock. It notices when it starts again."""
        self.happened.append(f"{self.now:.3f} the clock jumps by {seconds:.0f} s while the coordinator is down")
        self.crash(HUB, 0.2)
        self.clock += seconds

    def leave(self, site: str) -> None:
        """SIGTERM at a site: it lets states be kept, says goodbye, and comes back later."""
        stream, seat = self.current[site], self.seats[site]
        if stream is None or seat is None:
            return
        self.happened.append(f"{self.now:.3f} {site} stops, and starts again")
        self.send_up(stream, pb.SiteFrame(leaving=pb.Leaving()))

        def goes() -> None:
            if self.seats[site] is not seat:
                return
            self.as_process(site, seat.site_jobs.stopped)
            if self.seats[site] is seat:  # it was not killed at that
                if stream.open_here:
                    self.send_up(stream, pb.SiteFrame(goodbye=pb.Goodbye()))
                self.kill(site)
                self.at(0.3, lambda: self.start(site))

        self.at(self.random.uniform(0.05, 0.3), goes, site)

    def drain(self) -> None:
        """SIGTERM at the coordinator."""
        if self.machine is None:
            return
        self.happened.append(f"{self.now:.3f} the coordinator drains, and starts again")
        self.handle(DrainRequested())
        self.at(self.random.uniform(0.05, 0.5), lambda: self.crash(HUB, 0.3), HUB)


class HubCheckpoints(MemoryCheckpoints):
    """The coordinator's disk."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def save(self, job: str, context: bytes, checkpoint_id: CheckpointId, snapshot: Mapping[str, Any]) -> None:
        self._world.watch.write(HUB, lambda: super(HubCheckpoints, self).save(job, context, checkpoint_id, snapshot))

    def all_ids(self, job: str) -> set[CheckpointId]:
        return set(self._saved.get(job, {}))


class Watch:
    """What must hold at every moment, whatever happens; and where processes are killed at a write."""

    def __init__(self, fingerprints: Mapping[str, str], patch: pytest.MonkeyPatch) -> None:
        self.fingerprints = fingerprints
        self.world: World
        self.at_work = HUB
        self.keys: dict[str, set[bytes]] = {}  # by site: of all keystreams that it has hidden words with
        self.shares: dict[tuple[str, int], bytes] = {}  # by site and epoch: the key that the others were shown
        self.answers: dict[str, set[tuple[int, int, str]]] = {}  # by site: (epoch, round, hash) of what has left
        self._states: dict[str, str] = {}
        self._patch(patch)

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        watch = self
        atomic_write = ce.service.atomic_files.atomic_write
        append, mask = Ledger._append, ce.privacy.masks.Masks.mask
        save = ce.service.checkpoints.CheckpointFiles.save
        keystream = ce.privacy.masks.Keystream
        hiding: list[str] = []

        class Whole:
            """A file that is written as a whole is one write: it happens, or it does not."""

            def __init__(self, path: Path) -> None:
                self._inner = atomic_write(path)

            def __enter__(self) -> Any:
                watch.maybe_killed(before=True)
                return self._inner.__enter__()

            def __exit__(self, *exception: Any) -> Any:
                found = self._inner.__exit__(*exception)
                watch.maybe_killed(before=False)
                return found

        def appended(ledger: Ledger, *line: Any) -> bytes:
            found: list[bytes] = []
            watch.write(watch.at_work, lambda: found.append(append(ledger, *line)))
            return found[0]

        def saved(files: Any, job: str, context: bytes, checkpoint_id: CheckpointId, snapshot: Any) -> None:
            hub = watch.world.checkpoints.all_ids(job)
            if not watch.world.over and checkpoint_id not in hub:
                raise Violation(f"a site saves {checkpoint_id}, which the coordinator has not saved: {sorted(hub)}")
            save(files, job, context, checkpoint_id, snapshot)

        def hidden(masks: Any, *rest: Any) -> Any:
            hiding.append(masks._site)
            try:
                return mask(masks, *rest)
            finally:
                hiding.pop()

        class Noted(keystream):  # type: ignore[misc, valid-type]
            def __init__(self, key: bytes) -> None:
                if hiding:
                    used = watch.keys.setdefault(hiding[-1], set())
                    if key in used:
                        raise Violation(f"{hiding[-1]} uses a keystream twice")
                    used.add(key)
                super().__init__(key)

        patch.setattr("os.fsync", lambda _: None)  # processes are killed here, not machines
        for module in ("ce.service.checkpoints", "ce_client.state.files"):
            patch.setattr(f"{module}.atomic_write", Whole)
        patch.setattr(Ledger, "_append", appended)
        patch.setattr(ce.service.checkpoints.CheckpointFiles, "save", saved)
        patch.setattr(ce.privacy.masks.Masks, "mask", hidden)
        patch.setattr(ce.privacy.masks, "Keystream", Noted)

    def write(self, process: str, work: Callable[[], None]) -> None:
        self.maybe_killed(before=True)
        work()
        self.maybe_killed(before=False)

    def maybe_killed(self, before: bool) -> None:
        process = self.at_work
        left = self.world.writes_left.get(process)
        if left is None or left[1] != before:
            return
        count = left[0] - 1
        self.world.writes_left[process] = (count, before)
        if count <= 0:
            del self.world.writes_left[process]
            raise Killed

    def saved(self, record: JobRecord) -> None:
        """States go forward, and an end is an end."""
        before = self._states.get(record.name, "submitted")
        if before in ("done", "failed", "cancelled") and record.state != before:
            raise Violation(f"a job that was {before} is {record.state}")
        self._states[record.name] = record.state

    def told(self, site: str, frame: pb.CoordinatorFrame) -> None:
        """What the coordinator announces is what it has written down."""
        kind = frame.WhichOneof("frame")
        if kind == "offer":
            record = self.world.record
            self.world.attempts = max(self.world.attempts, frame.offer.epoch)
            if record.epoch < frame.offer.epoch:
                raise Violation("an epoch is offered that is not written down")
        if kind == "peers":
            for peer in frame.peers.peers:
                known = self.shares.setdefault((peer.site, frame.peers.epoch), peer.public_key)
                if known != peer.public_key:
                    raise Violation(f"{peer.site} is shown with two keys in one epoch")
        written = ("waits", self.world.record.state)
        if kind == "ended" and frame.ended.state not in written and site not in self.world.record.left_behind:
            raise Violation("an end is announced that is not written down")

    def sent(self, site: str, frame: pb.SiteFrame) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "answer":
            answer = frame.answer
            collector = Collector(2**30)
            if not collector.feed(answer.chunks):
                raise MessageError("jobs of this world fit in one frame")
            own = self.answers.setdefault(site, set())
            for array in collector.arrays.values():
                own.add((answer.epoch, answer.round, array_hash(array).hex()))

    def check_ledgers(self, rosters: set[tuple[str, ...]]) -> None:
        """All that has left is in the ledger, which is whole; and was contributed under these rosters only."""
        for site, settings in self.world.settings.items():
            path = settings.state / LEDGER
            if not path.exists():
                continue
            seat = self.world.seats[site]
            assert seat is not None
            found = verify(path, seat.site_files.certificate)
            if not found.ok:
                raise Violation(f"the ledger of {site}: {found.sentence}")
            recorded = set()
            for line in entries(path):
                if line["kind"] == "begin" and tuple(line["roster"]) not in rosters:
                    raise Violation(f"{site} contributed under the roster {line['roster']}")
                for array in line.get("arrays", {}).values():
                    recorded.add((line["epoch"], line["round"], array["sha256"]))
            missing = self.answers.get(site, set()) - recorded
            if missing:
                raise Violation(f"{len(missing)} arrays of {site} are not in its ledger")


def fingerprints_of(sites: Mapping[str, ClientSettings]) -> dict[str, str]:
    return {name: fingerprint(seat_of(settings).site_files.certificate) for name, settings in sites.items()}
