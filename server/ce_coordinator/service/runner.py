"""Between the coordinator's core and the world: passes events in, one at a time, and carries out the instructions.

Runs on one event loop. All work on checkpoint files, and computations that may take longer than a millisecond, leave
it, to pools of threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from ce.cancellation import Cancellation, ComputationCancelled, cancellable
from ce.errors import CeError, JobFailed, LimitReached
from ce.service.checkpoints import CheckpointFailed, Checkpoints
from ce.service.logs import fields
from ce.transport.frames import Frame
from ce_coordinator.core.events import (
    CheckpointLoaded,
    CheckpointNotSaved,
    CheckpointSaved,
    Computed,
    CoordinatorStarted,
    DeadlineReached,
    DrainRequested,
    Event,
    RecordNotSaved,
    SiteDisconnected,
    StoreRecovered,
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
    Session,
)
from ce_coordinator.core.machine import Machine
from ce_coordinator.core.records import JobRecord
from ce_coordinator.service.metrics import CoordinatorMetrics
from ce_coordinator.store.interface import Store

log = logging.getLogger("ce_coordinator")

#: Numbers that a small computation reads. Small ones have threads of their own: they need not wait for large ones.
SMALL_SIZE = 20_000
#: Numbers of a computation that is done at once, on the event loop: it takes less time than to wake a thread and to
#: be woken by it, and no more than 1 ms.
SHORT_SIZE = 1_000
#: Threads for small computations.
SMALL_THREADS = 2
#: Seconds until a record that could not be written is tried again.
RETRY_S = 5.0
#: Seconds that the coordinator waits for checkpoints before it stops.
DRAIN_S = 4.0


class Outgoing:
    """Frames that wait to go down one stream, and the error that it was closed with, if it was."""

    def __init__(self, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self.frames: deque[Iterable[Frame]] = deque()
        self._wanted: asyncio.Future[None] | None = None  # by the handler of the stream, which has sent all there was
        self.closed: asyncio.Future[CeError] = asyncio.get_running_loop().create_future()
        self.writing = False  # a frame is being written
        self.ending = False  # no frame may follow it

    def send(self, frames: Iterable[Frame]) -> None:
        """Put frames in the queue. When it is full, the site does not read what it asked for: its stream is closed."""
        if len(self.frames) >= self._most_waiting:
            self.close(LimitReached("this site does not read what it is sent (limits.messages_waiting)"))
            return
        self.frames.append(frames)
        if self._wanted is not None and not self._wanted.done():
            self._wanted.set_result(None)

    async def next(self) -> Iterable[Frame]:
        """The next frames, once there are some. One task calls it: asyncio's queue is for many, and costs more."""
        while not self.frames:
            self._wanted = asyncio.get_running_loop().create_future()
            await self._wanted
        return self.frames.popleft()

    def close(self, error: CeError) -> None:
        if not self.closed.done():
            self.closed.set_result(error)


@dataclass(frozen=True)
class _Unsaved:
    """A record that could not be written, and the instructions that follow once it is."""

    record: JobRecord
    then: list[Instruction]


class _Threads:
    """The threads that carry out instructions. What they compute for a job that is over ends at its next check."""

    def __init__(self, threads: int) -> None:
        self.working = 0  # instructions that wait or are carried out
        self._stopped = False
        self._loop = asyncio.get_running_loop()
        self._small = ThreadPoolExecutor(SMALL_THREADS, thread_name_prefix="ce small")
        self._large = ThreadPoolExecutor(threads, thread_name_prefix="ce large")
        self._cancellations: dict[str, tuple[int, Cancellation]] = {}  # by job: of the present epoch

    def run(
        self,
        step: Compute | SaveCheckpoint | LoadCheckpoint,
        work: Callable[[], Event],
        then: Callable[[Event], None],
    ) -> None:
        """Call `work` on a thread, and `then` with its event on the event loop, unless the attempt is over by then."""
        if self._stopped:
            return
        epoch, cancellation = self._cancellations.get(step.job, (0, None))
        if cancellation is None or epoch != step.epoch:
            self.cancel(step.job)
            cancellation = Cancellation()
            self._cancellations[step.job] = step.epoch, cancellation
        pool = self._small if isinstance(step, Compute) and step.size <= SMALL_SIZE else self._large
        self.working += 1
        pool.submit(self._work, cancellation, work, then)

    def cancel(self, job: str) -> None:
        """The job is over, or its attempt is."""
        _, cancellation = self._cancellations.pop(job, (0, None))
        if cancellation is not None:
            cancellation.request()

    def stop(self) -> None:
        """Begin nothing more, and end what is computed."""
        self._stopped = True
        for job in list(self._cancellations):
            self.cancel(job)
        for pool in (self._small, self._large):
            pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, cancellation: Cancellation, work: Callable[[], Event], then: Callable[[Event], None]) -> None:
        event: Event | None = None
        with contextlib.suppress(ComputationCancelled), cancellable(cancellation):
            cancellation.check()
            event = work()
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._done, event, then)

    def _done(self, event: Event | None, then: Callable[[Event], None]) -> None:
        self.working -= 1
        if event is not None:
            then(event)


class Runner:
    """The machine, with its store, its checkpoints, its clock and its streams."""

    def __init__(self, machine: Machine, store: Store, checkpoints: Checkpoints, threads: int = 2) -> None:
        self.machine = machine
        self.metrics = CoordinatorMetrics()
        self.metrics.show(machine.census, self._waiting)
        self.stopping = asyncio.Event()  # a signal or an operator has asked the coordinator to stop
        self.drained = asyncio.Event()  # it accepts no more jobs, and has saved the checkpoints that it could
        self._store = store
        self._checkpoints = checkpoints
        self._unsaved: dict[str, _Unsaved] = {}
        self._checkpoints_done: asyncio.Event | None = None  # while it drains
        self._streams: dict[Session, Outgoing] = {}
        self._threads = _Threads(threads)
        self._changed: dict[str, asyncio.Event] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        # Wall time that never jumps: no deadline must pass because the system clock was set.
        self._begin = time.time() - time.monotonic()
        self._stopped: CeError | None = None  # why all streams were closed

    def now(self) -> float:
        return self._begin + time.monotonic()

    def handle(self, event: Event) -> None:
        """Pass an event to the machine, and carry out its instructions. Raises CeError when the event is refused."""
        if steps := self._instructions(event):  # most answers of sites lead to none
            self.carry_out(steps)

    def start(self) -> None:
        self.handle(CoordinatorStarted())

    async def drain(self) -> None:
        """Accept no more jobs, and wait at most DRAIN_S until all sites have the checkpoints that this requests."""
        self.handle(DrainRequested())
        self._checkpoints_done = asyncio.Event()
        if self.machine.checkpoints_pending:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._checkpoints_done.wait(), DRAIN_S)
        self.drained.set()

    async def stop(self, reason: CeError) -> None:
        """Close every stream and cancel the timer; running jobs begin another attempt with the next start."""
        self._save_again()
        self._stopped = reason
        if self._timer is not None:
            self._timer.cancel()
        for stream in self._streams.values():
            stream.close(reason)
        self._threads.stop()

    # Streams.

    def opened(self, session: Session) -> Outgoing:
        stream = self._streams[session] = Outgoing(self.machine.limits.messages_waiting)
        if self._stopped is not None:
            stream.close(self._stopped)
        return stream

    def ended(self, session: Session, reason: str) -> None:
        self._streams.pop(session, None)
        self.handle(SiteDisconnected(session, reason))

    # Watching.

    async def changed(self, job: str, timeout_s: float) -> None:
        """Wait until this job changes, at most so long."""
        waiting = self._changed.setdefault(job, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(waiting.wait(), timeout_s)

    # Instructions.

    def carry_out(self, steps: Iterable[Instruction]) -> None:
        """In order, records first."""
        for step in self._saved(list(steps)):
            self.metrics.carried_out(step)
            match step:
                case Send(session, frames):
                    if session in self._streams:
                        self._streams[session].send(frames)
                case Compute(at_once=True) if step.size <= SHORT_SIZE:
                    asyncio.get_running_loop().call_soon(self._worked, _computed(step))
                case Compute():
                    self._threads.run(step, partial(_computed, step), self._worked)
                case SaveCheckpoint():
                    self._threads.run(step, partial(self._checkpoint_saved, step), self._worked)
                case LoadCheckpoint():
                    self._threads.run(step, partial(self._checkpoint_loaded, step), self._worked)
                case Changed(job):
                    if job in self._changed:
                        self._changed.pop(job).set()
                case Note(level, event, named):
                    log.log(getattr(logging, level.upper()), event, extra=fields(**named))
                case Close(session, error):
                    if session in self._streams:
                        self._streams[session].close(error)
                case RemoveCheckpoints(job):
                    self._threads.cancel(job)
                    self._checkpoints.remove(job)
                case SaveSite(record):
                    with contextlib.suppress(JobFailed):  # logged when the record of a job cannot be written, either
                        self._store.save_site(record)
        self._set_timer()
        if self._checkpoints_done is not None and not self.machine.checkpoints_pending:
            self._checkpoints_done.set()

    def _instructions(self, event: Event) -> list[Instruction]:
        steps = self.machine.handle(event, self.now())
        self.metrics.happened(event)
        return steps

    def _saved(self, steps: list[Instruction]) -> list[Instruction]:
        """Write all records; the instructions that remain. A job whose record cannot be written fails, and only that is
        announced of it; how a job ended is announced once it is written. Raises the error of a new job's record."""
        failed: dict[str, JobRecord] = {}
        for step in steps:
            if isinstance(step, SaveJob):
                name = step.record.name
                try:
                    self._store.save_job(step.record)
                    self.metrics.saved(step.record)
                except CeError as error:
                    if step.new:
                        self.machine.jobs.forget(name)
                        raise
                    log.error("store failed", extra=fields(job=name, reason=str(error)))
                    failed[name] = step.record
        rest: list[Instruction] = [step for step in steps if not isinstance(step, SaveJob)]
        for job, record in failed.items():
            about = [step for step in rest if _about(step) == job]
            rest = [step for step in rest if _about(step) != job]
            cannot = JobFailed("the coordinator could not write down where this job stands: its disk may be full")
            rest += self._saved(self._instructions(RecordNotSaved(job, cannot)))
            # The record of an ended job as it is: with its result, which the machine does not hold.
            unsaved = _Unsaved(record, about) if record.ended else _Unsaved(self.machine.records[job], [])
            self._unsaved[job] = unsaved
            self.metrics.not_saved(unsaved.record)
        return rest

    def _save_again(self) -> None:
        """Write the records that could not be written: how a job ended must be known when the coordinator restarts."""
        if not self._unsaved:
            return
        for name, unsaved in list(self._unsaved.items()):
            try:
                self._store.save_job(unsaved.record)
            except JobFailed:
                return
            del self._unsaved[name]
            log.info("store works again", extra=fields(job=name))
            self.carry_out(unsaved.then)
        self.handle(StoreRecovered())

    # Threads.

    def _worked(self, event: Event) -> None:
        """A thread has carried out an instruction: pass in the event that answers it."""
        if not self._stopped:
            self.handle(event)

    def _checkpoint_saved(self, step: SaveCheckpoint) -> Event:
        try:
            self._checkpoints.save(step.job, step.context, step.checkpoint_id, step.snapshot)
        except CheckpointFailed as error:
            return CheckpointNotSaved(step.job, step.epoch, str(error))
        except ComputationCancelled:
            raise
        except Exception as error:
            log.exception("unexpected error while a checkpoint was saved")
            return CheckpointNotSaved(step.job, step.epoch, f"an unexpected error ({type(error).__name__})")
        return CheckpointSaved(step.job, step.epoch, step.checkpoint_id)

    def _checkpoint_loaded(self, step: LoadCheckpoint) -> Event:
        for checkpoint_id in step.checkpoint_ids:
            try:
                snapshot = self._checkpoints.load(step.job, step.context, checkpoint_id)
            except CheckpointFailed:
                continue
            except Exception as error:
                log.exception("unexpected error while a checkpoint was loaded")
                return Computed(step.job, step.epoch, error)
            return CheckpointLoaded(step.job, step.epoch, checkpoint_id, snapshot)
        return CheckpointLoaded(step.job, step.epoch)

    # Time.

    def _waiting(self) -> tuple[int, int]:
        """Entries in the queues of all streams, and instructions that threads carry out."""
        return sum(len(stream.frames) for stream in self._streams.values()), self._threads.working

    def _set_timer(self) -> None:
        """A timer that goes off too early stays as it is: deadlines move on with every round, and its tick sets the
        next."""
        due = self.machine.next_deadline
        if self._unsaved:
            due = min(due or math.inf, math.floor(self.now() / RETRY_S) * RETRY_S + RETRY_S)
        if self._stopped or due is None or due >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = asyncio.get_running_loop().call_later(max(due - self.now(), 0.0), self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._save_again()
        self.handle(DeadlineReached())
        self._set_timer()


def _about(step: Instruction) -> object:
    """The job that an instruction is about, if the record of that job must be written before it is carried out."""
    if isinstance(step, Note):
        return step.fields.get("job")
    waits = Send | Compute | SaveCheckpoint | LoadCheckpoint | RemoveCheckpoints
    return step.job if isinstance(step, waits) else None


def _computed(step: Compute) -> Computed:
    """With what the work returns, or with the error that it raises."""
    try:
        result = step.work()
    except ComputationCancelled:
        raise
    except CeError as error:
        result = error
    except Exception as error:
        log.exception("unexpected error in a computation")
        result = error
    return Computed(step.job, step.epoch, result)
