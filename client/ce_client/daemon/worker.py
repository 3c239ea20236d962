"""One job at this site: the messages that wait, and the thread that processes them in order.

Nothing is computed on the event loop: it must answer signs of life, cancellations and signals while a job computes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Any

from ce.cancellation import Cancellation, ComputationCancelled, cancellable
from ce_client.attempt.attempt import SiteAttempt
from ce_client.daemon.connection import Connection
from ce_client.daemon.metrics import MessageOutcome, SiteMetrics
from ce_proto.v1 import site_pb2 as pb

#: Frames of one job that may wait; then the daemon stops reading from the stream.
WAITING_FRAMES = 16
#: Seconds that a stopped worker may take to end what it computes: a pass over some labels takes milliseconds.
END_S = 0.5

Message = tuple[str, Any]


class Worker:
    """Passes messages to one attempt, one at a time, on a thread of its own, and sends its answers."""

    def __init__(
        self,
        site_attempt: SiteAttempt,
        metrics: SiteMetrics,
        connection: Callable[[], Connection | None],
        processed: Callable[[SiteAttempt], None],
    ) -> None:
        """`connection` returns the open stream; `processed` is called after each message, on the event loop."""
        self.site_attempt = site_attempt
        self._metrics = metrics
        self._connection = connection
        self._processed = processed
        self._loop = asyncio.get_running_loop()
        self._cancellation = Cancellation()
        self._waiting: deque[Message] = deque()
        self._room = asyncio.Semaphore(WAITING_FRAMES)
        self._busy = False  # from the moment that the thread is given a message until its answer is sent
        self._ended = asyncio.Event()
        #: A message and the connection that it came from; None ends the thread.
        self._inbox: SimpleQueue[tuple[Message, Connection | None] | None] = SimpleQueue()
        # A daemon that has ended does not wait for it: it ends at its next check, but may be reading a large file.
        self._thread = Thread(target=self._work, name=f"ce job {site_attempt.epoch}", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Start no further message, and end the computation; returns when the thread has ended, or after `END_S`."""
        self._cancellation.request()
        self._waiting.clear()
        self._room.release()  # for somebody who waits with a message, which is dropped
        self._inbox.put(None)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), END_S)
            self._thread.join()

    @property
    def working(self) -> bool:
        """True while the thread is processing a message."""
        return self._thread.is_alive() and self._busy

    async def take(self, kind: str, message: Any) -> None:
        """Process a message, after those that wait."""
        await self._room.acquire()
        self._waiting.append((kind, message))
        self._next()

    def disconnected(self) -> None:
        """Drop the messages that wait: the coordinator sends again, on the next stream, what is still needed."""
        for kind, _ in self._waiting:
            if kind != "disconnected":  # which took no room
                self._room.release()
        self._waiting.clear()
        self._waiting.append(("disconnected", None))
        self._next()

    def _next(self) -> None:
        """Give the thread the next message, if it is idle."""
        if self._waiting and not self._busy and not self._cancellation.requested:
            self._busy = True
            message = self._waiting.popleft()
            if message[0] != "disconnected":
                self._room.release()
            self._inbox.put((message, self._connection()))

    # On the thread.

    def _work(self) -> None:
        try:
            with cancellable(self._cancellation):
                while (item := self._inbox.get()) is not None:
                    (kind, message), connection = item
                    frames = self._receive(kind, message)
                    self._cancellation.check()
                    self._tell(self._answered, frames, connection)
        except ComputationCancelled:
            pass
        finally:
            self._tell(self._ended.set)

    def _tell(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Have something done on the event loop, unless that has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)

    def _receive(self, kind: str, message: Any) -> Iterator[pb.SiteFrame]:
        """Let the attempt process a message, and report the outcome to the metrics."""
        attempt, begin = self.site_attempt, time.perf_counter()
        rounds, failed = attempt.rounds_answered, attempt.failed_checkpoints
        checkpoint_round, refused = attempt.checkpoint_round, attempt.refusal is not None
        frames = attempt.receive(kind, message)
        refusal = None if refused else attempt.refusal
        self._metrics.processed(
            MessageOutcome(
                seconds=time.perf_counter() - begin,
                # An offer restores the number of rounds that were answered in earlier attempts.
                rounds=0 if kind == "offer" else attempt.rounds_answered - rounds,
                saved_checkpoints=int(attempt.checkpoint_round > checkpoint_round),
                failed_checkpoints=max(0, attempt.failed_checkpoints - failed),
                refused_by=None if refusal is None else getattr(refusal, "rule", ""),
            )
        )
        return frames

    # On the event loop.

    def _answered(self, frames: Iterator[pb.SiteFrame], connection: Connection | None) -> None:
        """The thread has processed a message: send the answer, then give it the next one."""
        if self._cancellation.requested:
            return
        self._processed(self.site_attempt)
        if connection is not None and connection is self._connection():
            connection.send_answer(frames, self._idle)
        else:
            self._idle()

    def _idle(self) -> None:
        self._busy = False
        self._next()
