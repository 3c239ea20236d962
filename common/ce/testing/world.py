"""A played world: a coordinator and its sites in one process, a clock that moves from event to event, and faults.

The coordinator's machine, the sites' jobs, their files and the frames are the real ones; the network, the event loops
and the processes are played. Frames of a stream arrive in order, each after a delay of its own. Processes are killed
between any two events, or at any write to a disk, before or after it happened. What is on a disk stays.

Everything that happens follows from the seed.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from ce.errors import CeError
from ce.job import Job
from ce.testing.checks import Checks
from ce.testing.clock import FakeClock
from ce.testing.disks import CoordinatorCheckpoints, Disks, Killed
from ce.testing.faults import Faults
from ce.testing.network import COORDINATOR, Network
from ce.testing.sites import COORDINATOR_NAME, PlayedSite, fingerprints_of, open_site
from ce_client.config import ClientSettings
from ce_coordinator.core.checkpoint_schedule import CheckpointInterval
from ce_coordinator.core.events import (
    CheckpointLoaded,
    CheckpointSaved,
    Computed,
    CoordinatorStarted,
    DeadlineReached,
    Event,
    JobSubmitted,
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


class PlayedWorld:
    """A context manager: while it is entered, disks and masks are observed.

        with PlayedWorld(seed=7, sites=make_sites(directory, tables), job=job) as world:
            world.start_all()
            world.clock.at(0.2, lambda: world.faults.crash("north", dead_for_s=1.0))
            world.run(until=400.0)
            assert world.record.state == "done", world.record.reason

    - `seed`: everything that is drawn at random (delays, which frames arrive twice) follows from it.
    - `fingerprints`: by site, of its certificate; read from the sites' directories where not given.
    """

    def __init__(
        self,
        seed: int,
        sites: Mapping[str, ClientSettings],
        job: Job,
        interval: CheckpointInterval | None = None,
        fingerprints: Mapping[str, str] | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.settings = dict(sites)
        self.fingerprints = fingerprints_of(sites) if fingerprints is None else fingerprints
        self.job = job
        self.clock = FakeClock((COORDINATOR, *sites))
        self.disks = Disks(COORDINATOR)
        self.store = MemoryStore()
        self.checkpoints = CoordinatorCheckpoints(self.disks)
        self.network = Network(self, self.clock)
        self.faults = Faults(self)
        self.checks = Checks(self)
        self.machine: Machine | None = None
        self.sites: dict[str, PlayedSite | None] = dict.fromkeys(sites)
        self.dead_for_s: dict[str, float] = {}  # by process that will be killed at a write
        self.events: list[str] = []  # what happened, one line each
        self.resumed = 0  # attempts that went on from a checkpoint
        self.attempts = 0
        self._interval = interval
        self._patches = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._patches.enter_context(self.disks.patched())
        self._patches.enter_context(self.checks.patched())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patches.close()

    # Time and state.

    def run(self, until: float) -> None:
        """Let everything happen until the clock shows `until`, in seconds, or no event is left."""
        self.clock.run(until)

    @property
    def wall(self) -> float:
        """The coordinator's wall clock, in seconds since 1970."""
        return self.clock.wall

    @property
    def record(self) -> JobRecord:
        """What the coordinator has saved of the job."""
        found = self.store.job(self.job.name)
        assert found is not None
        return found

    @property
    def over(self) -> bool:
        """True when the job has ended."""
        found = self.store.job(self.job.name)
        return found is not None and found.ended

    def note(self, event: str) -> None:
        """Add a line to `events`."""
        self.events.append(f"{self.clock.now:.3f} {event}")

    # Processes.

    def start_all(self) -> None:
        """Start the coordinator, then every site."""
        for process in (COORDINATOR, *self.settings):
            self.start(process)

    def start(self, process: str) -> None:
        """Start a process, a site's name or COORDINATOR, with what is on its disk."""
        if process == COORDINATOR:
            self.as_process(COORDINATOR, self._start_coordinator)
        elif self.sites.get(process) is None:
            self.sites[process] = self.as_process(process, lambda: open_site(self.settings[process]))
            self.network.dial(process)

    def _start_coordinator(self) -> None:
        self.machine = Machine(
            COORDINATOR_NAME,
            "test",
            Limits(),
            1,
            self.store.jobs(),
            self.store.sites(),
            self._interval,
        )
        self.machine.know({site: self.fingerprints[site] for site in self.settings})
        self._pass(CoordinatorStarted())
        if self.store.job(self.job.name) is None:  # the operator submits again until the job is saved
            self._pass(JobSubmitted(self.job.definition(), "token", "olga"))
        self._tick_later()

    def kill(self, process: str) -> None:
        """End a process at once. What is not on its disk is gone."""
        self.clock.end_process(process)
        self.disks.forget(process)
        if process == COORDINATOR:
            self.machine = None
        else:
            played = self.sites.get(process)
            if played is not None:
                played.ledger.close()
            self.sites[process] = None
        self.network.process_ended(process)

    def as_process(self, process: str, work: Callable[[], Any]) -> Any:
        """Do some work as this process. If it is killed at a write, it starts again after a while."""
        before, self.disks.at_work = self.disks.at_work, process
        try:
            return work()
        except Killed:
            self.note(f"{process} is killed at a write")
            self.kill(process)
            self.clock.at(self.dead_for_s.pop(process, 0.3), lambda: self.start(process))
            return None
        finally:
            self.disks.at_work = before

    # The coordinator.

    def handle(self, event: Event) -> None:
        """An event at the coordinator, which may be killed while it deals with it."""
        if self.machine is not None:
            self.as_process(COORDINATOR, lambda: self._pass(event))

    def _pass(self, event: Event) -> None:
        assert self.machine is not None
        self.do(self.machine.handle(event, self.wall))

    def do(self, steps: Iterable[Instruction]) -> None:
        """Carry out what the coordinator's machine instructs: records are saved before anything is sent."""
        steps = list(steps)
        for step in steps:
            if isinstance(step, SaveJob):
                self.disks.write(lambda step=step: self.store.save_job(step.record))  # type: ignore[misc]
                self.checks.saved(step.record)
        for step in steps:
            match step:
                case Send(session, frames):
                    stream = self.network.streams[session]
                    if stream.open_at_coordinator:
                        for content in (frame.SerializeToString() for frame in frames):
                            self.network.send_down(stream, content)
                case Close(session, error):
                    stream = self.network.streams[session]
                    self.note(f"{stream.site} is cut off: {error}")
                    stream.open_at_coordinator = False
                    self._pass(SiteDisconnected(session, "closed"))
                    self.network.break_stream(stream)
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
                case Changed() | SaveJob():
                    pass
        self._tick_later()

    def _on_a_thread(self, work: Callable[[], Event]) -> None:
        """Later; its event is passed on later still: the process may be killed in between."""

        def run() -> None:
            event = self.as_process(COORDINATOR, work)
            if event is not None:
                self.clock.at(self.network.latency() / 4, lambda: self.handle(event), COORDINATOR)

        self.clock.at(self.network.latency() / 4, run, COORDINATOR)

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
            self.clock.at(max(due - self.wall, 0.0) + 1e-3, self._tick, COORDINATOR)

    def _tick(self) -> None:
        if self.machine is not None:
            due = self.machine.next_deadline
            if due is not None and due <= self.wall:
                self.handle(DeadlineReached())
