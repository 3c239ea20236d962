"""One job at this site: the messages that wait, and the thread that processes them in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ce_client.attempt.attempt import SiteAttempt
from ce_client.daemon.connection import Connection
from ce_client.daemon.metrics import MessageOutcome, SiteMetrics
from ce_proto.v1 import site_pb2 as pb

#: Frames of one job that may wait; then the daemon stops reading from the stream.
WAITING_FRAMES = 16


class Worker:
    """Passes messages to one attempt, one at a time, and sends its answers."""

    def __init__(
        self,
        site_attempt: SiteAttempt,
        pool: ThreadPoolExecutor,
        metrics: SiteMetrics,
        connection: Callable[[], Connection | None],
        processed: Callable[[SiteAttempt], None],
    ) -> None:
        """`connection` returns the open stream; `processed` is called after each message, on the event loop."""
        self.site_attempt = site_attempt
        self._pool = pool
        self._metrics = metrics
        self._connection = connection
        self._processed = processed
        self._waiting: asyncio.Queue[tuple[str, Any]] = asyncio.Queue(WAITING_FRAMES)
        self._working = False
        self._task = asyncio.create_task(self._work())

    def stop(self) -> None:
        """Start no further message."""
        self._task.cancel()

    @property
    def working(self) -> bool:
        """True while a pool thread is processing a message."""
        return self._working

    async def take(self, kind: str, message: Any) -> None:
        """Process a message: at once if it takes about a millisecond, else on a pool thread, after those that wait."""
        if self.site_attempt.light and self._waiting.empty() and not self._working:
            frames = self._receive(kind, message)
            self._processed(self.site_attempt)
            if (connection := self._connection()) is not None:
                await connection.send(frames)
        else:
            await self._waiting.put((kind, message))

    def disconnected(self) -> None:
        """Drop the messages that wait: the coordinator sends again, on the next stream, what is still needed."""
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._waiting.put_nowait(("disconnected", None))

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            kind, message = await self._waiting.get()
            self._working = True
            connection = self._connection()
            frames = await loop.run_in_executor(self._pool, self._receive, kind, message)
            self._working = False
            self._processed(self.site_attempt)
            if connection is not None and connection is self._connection():
                await connection.send_uncancelled(frames)

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
