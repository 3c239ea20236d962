"""The daemon: connects to the coordinator, passes messages to jobs, and connects again when the stream breaks.

Messages of one job are processed in order; those of different jobs concurrently. All queues are bounded: a busy site
stops reading, and so the coordinator stops sending.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from itertools import cycle
from typing import Any

from ce import __version__
from ce.errors import CeError, Unreachable
from ce.job import LONGEST_NAME
from ce.service.logs import fields
from ce.service.metrics_http import MetricsServer
from ce.transport.frames import PROTOCOL, one_line
from ce_client.attempt.attempt import SiteAttempt
from ce_client.daemon.back_off import BackOff
from ce_client.daemon.connection import Connection, connect
from ce_client.daemon.jobs import SiteJobs
from ce_client.daemon.metrics import SiteMetrics
from ce_client.daemon.site_files import SiteFiles
from ce_client.daemon.worker import Worker
from ce_client.state.ledger import FILE_NAME as LEDGER
from ce_client.state.ledger import Ledger
from ce_proto.v1 import site_pb2 as pb

log = logging.getLogger("ce_client")

#: Seconds after which a connection that is not there is tried anew: the system itself would retry less and less often,
#: and notice late that a link works again. Every third try waits longer, for slow links.
DIAL_S = (1.5, 1.5, 10.0)
#: Seconds by which the clocks of site and coordinator may differ without a warning.
CLOCK_SLACK_S = 60.0
#: Seconds that a daemon that stops waits for checkpoints of its jobs; it ends within 2 s.
DRAIN_S = 1.0


class Daemon:
    """A site's daemon. `run` returns when `stop` is called."""

    def __init__(self, site_files: SiteFiles) -> None:
        self._site_files = site_files
        self._settings = site_files.settings
        self._connection: Connection | None = None
        self._was_connected = False
        self._ledger = Ledger(self._settings.state / LEDGER, self._settings.name)
        self._site_jobs = SiteJobs(site_files, self._ledger)
        self._metrics = SiteMetrics()
        self._metrics.show_jobs(self._site_jobs.states)
        self._metrics_server = MetricsServer(self._metrics.registry.text, self._health)
        self._workers: dict[str, Worker] = {}
        self._reconsidering: set[asyncio.Future[None]] = set()
        self._instance = os.urandom(16)
        self._stopping = asyncio.Event()
        self._drain = _Drain()
        self._back_off = BackOff()

    def stop(self) -> None:
        self._stopping.set()

    def reconsider(self) -> None:
        """A job was approved or declined here: jobs that wait for consent check again."""
        for worker in self._workers.values():
            if worker.site_attempt.waits_for_consent:
                self._reconsidering.add(task := asyncio.ensure_future(worker.take("reconsider", None)))
                task.add_done_callback(self._reconsidering.discard)

    @property
    def busy(self) -> bool:
        """True while the thread of a job is processing a message."""
        return any(worker.working for worker in self._workers.values())

    async def run(self) -> None:
        """Until stopped: connect, serve the jobs, and after a pause connect again."""
        if self._settings.metrics:
            await self._metrics_server.start(self._settings.metrics)
        dial_s = cycle(DIAL_S)
        while not self._stopping.is_set():
            try:
                await self._serve(next(dial_s))
            except CeError as error:
                await self._pause(self._back_off.failed(error))
        await self._metrics_server.close()
        await asyncio.gather(*(worker.stop() for worker in self._workers.values()))
        self._site_jobs.stopped()
        self._ledger.close()

    # One connection.

    async def _serve(self, dial_s: float) -> None:
        """One stream, from Hello until this daemon stops. Raises CeError if it ends before."""
        metrics = self._metrics
        async with connect(self._site_files, self._hello(), dial_s, metrics.sent, metrics.received) as opened:
            self._connection, welcome = opened
            tasks: set[asyncio.Task[Any]] = set()
            try:
                self._welcomed(welcome)
                stopping = asyncio.create_task(self._stopping.wait())
                broken = asyncio.create_task(self._connection.broken.wait())
                tasks = {asyncio.create_task(self._read(self._connection)), broken, stopping}
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if stopping in done:
                    await self._save_checkpoints(self._connection, tasks - {stopping})
                    await self._connection.say_goodbye("the site's daemon stops")
                    return
                for task in done:
                    if task.cancelled():  # by gRPC
                        raise Unreachable(f"the stream to {self._settings.coordinator} was given up")
                    task.result()
                raise await self._connection.end_error()
            finally:
                self._connection = None
                metrics.connected.set(0)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for worker in self._workers.values():
                    worker.disconnected()
                log.info("disconnected", extra=fields(coordinator=self._site_jobs.coordinator))

    async def _save_checkpoints(self, connection: Connection, tasks: set[asyncio.Task[Any]]) -> None:
        """Request a checkpoint of every job under way before this daemon stops; waits `DRAIN_S` for them."""
        rounds = {
            job: attempt.checkpoint_round for job, attempt in self._site_jobs.site_attempts.items() if attempt.under_way
        }
        if not rounds:
            return
        await connection.send([pb.SiteFrame(leaving=pb.Leaving())])
        self._drain.begin(rounds)
        drained = asyncio.create_task(self._drain.finished.wait())
        await asyncio.wait({drained, *tasks}, timeout=DRAIN_S, return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()

    def _processed(self, site_attempt: SiteAttempt) -> None:
        """An attempt has processed a message."""
        self._site_jobs.note(site_attempt)
        self._drain.processed(site_attempt)

    def _hello(self) -> pb.Hello:
        return pb.Hello(
            site=self._settings.name,
            protocol=PROTOCOL,
            software=__version__,
            instance=self._instance,
            held=self._site_jobs.held(),
        )

    def _welcomed(self, welcome: pb.Welcome) -> None:
        coordinator = self._site_jobs.coordinator = one_line(welcome.coordinator, LONGEST_NAME)
        self._metrics.welcomed(self._was_connected)
        self._was_connected = True
        self._back_off.connected()
        log.info("connected", extra=fields(coordinator=coordinator, address=self._settings.coordinator))
        difference_s = welcome.time_s - time.time()
        if abs(difference_s) > CLOCK_SLACK_S:
            log.warning(
                "the clocks of this site and of the coordinator differ: set the wrong one, or certificates may "
                "seem invalid",
                extra=fields(seconds=round(difference_s)),
            )

    async def _read(self, connection: Connection) -> None:
        while (received := await connection.receive()) is not None:
            await self._dispatch(connection, *received)

    async def _dispatch(self, connection: Connection, kind: str, message: Any) -> None:
        """Pass a message to the worker of its job; a new attempt gets a new worker."""
        worker = self._workers.get(message.job)
        if worker is not None and (kind == "ended" or (kind == "offer" and worker.site_attempt.epoch < message.epoch)):
            # What it computes is of no use any more; files are written when it has ended.
            del self._workers[message.job]
            await worker.stop()
        if kind == "ended":
            if message.job in self._site_jobs.site_attempts:
                self._metrics.ended(message.state)
            self._site_jobs.ended(message)
            return
        site_attempt = self._site_jobs.addressed(kind, message)
        if site_attempt is None:
            return
        if not self._site_jobs.engaged(site_attempt):
            await connection.send(site_attempt.receive(kind, message))
            return
        worker = self._workers.get(message.job)
        if worker is None:
            worker = self._workers[message.job] = self._new_worker(site_attempt)
        await worker.take(kind, message)

    def _new_worker(self, site_attempt: SiteAttempt) -> Worker:
        self._metrics.attempts.inc()
        return Worker(site_attempt, self._metrics, lambda: self._connection, self._processed)

    # Without a connection.

    def _health(self) -> tuple[bool, str]:
        """A daemon that answers is healthy, also while its coordinator is away."""
        return True, "ok: connected" if self._connection is not None else "ok: not connected"

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


class _Drain:
    """The jobs whose checkpoints a daemon that stops waits for."""

    def __init__(self) -> None:
        self.finished = asyncio.Event()
        self._rounds: dict[str, int] = {}  # by job: the round of the last checkpoint before

    def begin(self, rounds: dict[str, int]) -> None:
        self._rounds = rounds

    def processed(self, site_attempt: SiteAttempt) -> None:
        """An attempt has processed a message: it may have a new checkpoint, or be over."""
        before = self._rounds.get(site_attempt.job)
        if before is not None and (site_attempt.checkpoint_round > before or not site_attempt.under_way):
            del self._rounds[site_attempt.job]
            if not self._rounds:
                self.finished.set()
