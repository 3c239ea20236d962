"""Between the brain and the world: passes events in, one at a time, and carries out what comes back.

Runs on one event loop. Only large computations leave it, to a pool of threads.
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
from typing import Any

from ce.errors import CeError, JobFailed, LimitReached
from ce.service.checkpoints import Checkpoints
from ce.service.logs import fields
from ce.transport.frames import Frame
from ce_coordinator.core.instructions import (
    Changed,
    Close,
    Compute,
    Instruction,
    Note,
    RemoveCheckpoints,
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

#: Numbers that may be gone over on the event loop itself: less than a millisecond, which changing threads costs too.
INLINE_SIZE = 20_000
#: A record that the disk did not take is tried again this often.
RETRY_S = 5.0
#: Before it stops, the coordinator waits this long for states to be kept.
DRAIN_S = 4.0


class Outgoing:
    """What waits to go down one stream, and why it was closed, if it was."""

    def __init__(self, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self.frames: asyncio.Queue[Iterable[Frame]] = asyncio.Queue()
        self.closed: asyncio.Future[CeError] = asyncio.get_running_loop().create_future()
        self.writing = False  # a frame is under way
        self.ending = False  # none may follow it

    def send(self, frames: Iterable[Frame]) -> None:
        """Put frames in the queue, which has an end: a site that asks and asks and never reads is cut off."""
        if self.frames.qsize() < self._most_waiting:
            self.frames.put_nowait(frames)
        else:
            self.close(LimitReached("this site does not read what it is sent (limits.messages_waiting)"))

    def close(self, error: CeError) -> None:
        if not self.closed.done():
            self.closed.set_result(error)


@dataclass(frozen=True)
class _Unsaved:
    """A record that the disk did not take, and what is to be done once it has."""

    record: JobRecord
    then: list[Instruction]


class Runner:
    """The machine, with its store, its clock and its streams."""

    def __init__(self, machine: Machine, store: Store, checkpoints: Checkpoints, threads: int = 2) -> None:
        self.machine = machine
        self.meter = CoordinatorMetrics()
        self.meter.show(machine, self._waiting)
        self.stopping = asyncio.Event()  # somebody wants the coordinator to stop
        self.drained = asyncio.Event()  # it takes no more jobs, and has kept what it could
        self._store = store
        self._checkpoints = checkpoints
        self._unsaved: dict[str, _Unsaved] = {}
        self._kept: asyncio.Event | None = None
        self._streams: dict[Session, Outgoing] = {}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ce compute")
        self._changed: dict[str, asyncio.Event] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._working: set[asyncio.Task[None]] = set()
        # Wall time that never jumps: deadlines must not fire because somebody set the clock.
        self._begin = time.time() - time.monotonic()
        self._stopped = False

    def _waiting(self) -> tuple[int, int]:
        """Entries in the queues of all streams, and computations that have left the event loop."""
        return sum(stream.frames.qsize() for stream in self._streams.values()), len(self._working)

    def now(self) -> float:
        return self._begin + time.monotonic()

    def start(self) -> None:
        self.carry_out(self.machine.start(self.now()))

    async def drain(self) -> None:
        """Take no more jobs, and wait until the states of those under way are kept; not for long."""
        self.machine.drain()
        self._kept = asyncio.Event()
        if not self.machine.kept:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._kept.wait(), DRAIN_S)
        self.drained.set()

    async def stop(self, reason: CeError) -> None:
        """Close every stream and forget the timers; what is under way begins again with the next start."""
        self._save_again()
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for stream in self._streams.values():
            stream.close(reason)
        for task in list(self._working):
            task.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def submit(self, definition: bytes, token: str, operator: str) -> str:
        """Record a job, begin it, and return its name. A job that cannot be recorded is not begun."""
        record, steps = self.machine.submit(definition, token, operator, self.now())
        if steps:
            try:
                self._store.save_job(record)
            except JobFailed:
                self.machine.forget(record.name)
                raise
        self.carry_out(steps)
        return record.name

    # Streams.

    def opened(self, session: Session) -> Outgoing:
        stream = self._streams[session] = Outgoing(self.machine.limits.messages_waiting)
        return stream

    def ended(self, session: Session, reason: str) -> None:
        self._streams.pop(session, None)
        self.carry_out(self.machine.disconnected(session, reason, self.now()))

    # Watching.

    async def changed(self, job: str, timeout_s: float) -> None:
        """Wait until this job changes, or for so long."""
        waiting = self._changed.setdefault(job, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(waiting.wait(), timeout_s)

    # Instructions.

    def carry_out(self, steps: Iterable[Instruction]) -> None:
        """In order, records first; small computations at once, with all that follows from them."""
        todo = deque(self._saved(list(steps)))
        while todo:
            step = todo.popleft()
            match step:
                case Send(session, frames):
                    if session in self._streams:
                        self._streams[session].send(frames)
                case Compute(job, epoch, size, work):
                    self.meter.computing(job)
                    if size <= INLINE_SIZE:
                        todo.extend(self._saved(self._computed(job, epoch, _result(work))))
                    else:
                        self._compute(job, epoch, work)
                case Changed(job):
                    if job in self._changed:
                        self._changed.pop(job).set()
                case Note(level, what, named):
                    log.log(getattr(logging, level.upper()), what, extra=fields(**named))
                case Close(session, error):
                    if session in self._streams:
                        self._streams[session].close(error)
                case RemoveCheckpoints(job):
                    self._checkpoints.remove(job)
                case SaveSite(record):
                    with contextlib.suppress(JobFailed):  # said when a job's record meets the same
                        self._store.save_site(record)
        self._set_timer()
        if self._kept is not None and self.machine.kept:
            self._kept.set()

    def _saved(self, steps: list[Instruction]) -> list[Instruction]:
        """The steps that remain when all records are written. A job whose record cannot be written fails, and nothing
        of it is announced but that; how a job ended is announced when it is written."""
        failed: dict[str, JobRecord] = {}
        for step in steps:
            if isinstance(step, SaveJob):
                name = step.record.name
                try:
                    self._store.save_job(step.record)
                    self.meter.saved(step.record)
                except JobFailed as error:
                    log.error("store failed", extra=fields(job=name, reason=str(error)))
                    failed[name] = step.record
        rest: list[Instruction] = [step for step in steps if not isinstance(step, SaveJob)]
        for job, record in failed.items():
            about = [step for step in rest if _about(step) == job]
            rest = [step for step in rest if _about(step) != job]
            cannot = JobFailed("the coordinator could not write down where this job stands: its disk may be full")
            rest += self._saved(self.machine.store_failed(job, cannot, self.now()))
            over = record.ended  # whole: the machine does not keep results
            self._unsaved[job] = _Unsaved(record, about) if over else _Unsaved(self.machine.records[job], [])
            self.meter.store_failures.inc()
            self.meter.saved(self._unsaved[job].record)
        return rest

    def _save_again(self) -> None:
        """Records that the disk did not take: how a job ended must be there when the coordinator starts again."""
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
        self.carry_out(self.machine.store_works_again(self.now()))

    def _compute(self, job: str, epoch: int, work: Callable[[], Any]) -> None:
        async def run() -> None:
            result = await asyncio.get_running_loop().run_in_executor(self._pool, _result, work)
            if not self._stopped:
                self.carry_out(self._computed(job, epoch, result))

        task = asyncio.get_running_loop().create_task(run())
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    def _computed(self, job: str, epoch: int, result: Any) -> list[Instruction]:
        self.meter.computed(self.machine, job, epoch, result)
        return self.machine.computed(job, epoch, result, self.now())

    def _set_timer(self) -> None:
        due = self.machine.next_deadline
        if self._unsaved:
            due = min(due or math.inf, math.floor(self.now() / RETRY_S) * RETRY_S + RETRY_S)
        if self._stopped or due == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, due
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(max(due - self.now(), 0.0), self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, None
        self._save_again()
        self.carry_out(self.machine.tick(self.now()))


def _about(step: Instruction) -> object:
    """The job that a step is about, if it is one that must not be done before that job's record is written."""
    if isinstance(step, Note):
        return step.fields.get("job")
    return step.job if isinstance(step, Send | Compute | RemoveCheckpoints) else None


def _result(work: Callable[[], Any]) -> Any:
    """What the work returns, or the error that it raises."""
    try:
        return work()
    except CeError as error:
        return error
    except Exception as error:
        log.exception("unexpected error in a computation")
        return error
