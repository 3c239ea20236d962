"""Between the brain and the world: passes events in, one at a time, and carries out what comes back.

Runs on one event loop. Only large computations leave it, to a pool of threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ce.errors import CeError, JobFailed, LimitReached
from ce.logs import fields
from ce_coordinator.core.instructions import (
    Changed,
    Close,
    Compute,
    Instruction,
    Note,
    SaveJob,
    SaveSite,
    Send,
    Session,
)
from ce_coordinator.core.machine import Machine
from ce_coordinator.store.interface import Store
from ce_proto.v1 import site_pb2 as pb

log = logging.getLogger("ce_coordinator")

#: Numbers that may be gone over on the event loop itself: less than a millisecond, which changing threads costs too.
INLINE_SIZE = 20_000
#: Messages that may wait to go down one stream: more than a site in as many jobs as it may name is ever owed.
MOST_WAITING = 20_000


class Outgoing:
    """What waits to go down one stream, and why it was closed, if it was."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[Iterable[pb.CoordinatorFrame]] = asyncio.Queue()
        self.closed: asyncio.Future[CeError] = asyncio.get_running_loop().create_future()
        self.writing = False  # a frame is under way
        self.ending = False  # none may follow it

    def send(self, frames: Iterable[pb.CoordinatorFrame]) -> None:
        """Put frames in the queue, which has an end: a site that asks and asks and never reads is cut off."""
        if self.frames.qsize() < MOST_WAITING:
            self.frames.put_nowait(frames)
        else:
            self.close(LimitReached("this site does not read what it is sent"))

    def close(self, error: CeError) -> None:
        if not self.closed.done():
            self.closed.set_result(error)


class Conductor:
    """The machine, with its store, its clock and its streams."""

    def __init__(self, machine: Machine, store: Store, threads: int = 2) -> None:
        self.machine = machine
        self._store = store
        self._streams: dict[Session, Outgoing] = {}
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ce compute")
        self._changed: dict[str, asyncio.Event] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._working: set[asyncio.Task[None]] = set()
        # Wall time that never jumps: deadlines must not fire because somebody set the clock.
        self._begin = time.time() - time.monotonic()
        self._stopped = False

    def now(self) -> float:
        return self._begin + time.monotonic()

    def start(self) -> None:
        self.carry_out(self.machine.start(self.now()))

    async def stop(self, reason: CeError) -> None:
        """Close every stream and forget the timers; what is under way begins again with the next start."""
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
        stream = self._streams[session] = Outgoing()
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
        """In order; small computations at once, with all that follows from them."""
        todo = deque(steps)
        while todo:
            step = todo.popleft()
            match step:
                case Send(session, frames):
                    if session in self._streams:
                        self._streams[session].send(frames)
                case Compute(job, epoch, size, work):
                    if size <= INLINE_SIZE:
                        todo.extend(self.machine.computed(job, epoch, _result(work), self.now()))
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
                case SaveJob(record):
                    self._save(self._store.save_job, record)
                case SaveSite(record):
                    self._save(self._store.save_site, record)
        self._set_timer()

    def _save(self, save: Callable[[Any], None], record: Any) -> None:
        try:
            save(record)
        except JobFailed as error:
            # The job goes on in memory; what cannot be kept is said, loudly, and the next transition tries again.
            log.error("store failed", extra=fields(reason=str(error)))

    def _compute(self, job: str, epoch: int, work: Callable[[], Any]) -> None:
        async def run() -> None:
            result = await asyncio.get_running_loop().run_in_executor(self._pool, _result, work)
            if not self._stopped:
                self.carry_out(self.machine.computed(job, epoch, result, self.now()))

        task = asyncio.get_running_loop().create_task(run())
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    def _set_timer(self) -> None:
        due = self.machine.next_deadline
        if self._stopped or due == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, due
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(max(due - self.now(), 0.0), self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_at = None, None
        self.carry_out(self.machine.tick(self.now()))


def _result(work: Callable[[], Any]) -> Any:
    """What the work returns, or the error that it raises."""
    try:
        return work()
    except CeError as error:
        return error
    except Exception as error:
        log.exception("unexpected error in a computation")
        return error
