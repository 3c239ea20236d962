"""The daemon: dials the coordinator, keeps one stream, lets each job's participant work, dials again when it breaks.

Messages of one job are worked on in order, on a thread; those of different jobs side by side. All queues are bounded:
a site that is busy stops reading, and so the coordinator stops sending.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any

import grpc

from ce import __version__
from ce.errors import CeError, MessageError, Unreachable
from ce.job import LONGEST_NAME
from ce.service.logs import fields
from ce.service.metrics_http import MetricsServer
from ce.transport.byte_counters import CountedChannel
from ce.transport.call_errors import explain
from ce.transport.frames import PROTOCOL, one_line
from ce.transport.tls import open_channel
from ce_client.attempt.attempt import SiteAttempt
from ce_client.daemon.connection import ended, say_hello
from ce_client.daemon.jobs import SiteJobs
from ce_client.daemon.metrics import SiteMetrics
from ce_client.daemon.site_files import SiteFiles
from ce_client.state.ledger import FILE_NAME as LEDGER
from ce_client.state.ledger import Ledger
from ce_proto.v1 import site_pb2 as pb
from ce_proto.v1 import site_pb2_grpc

log = logging.getLogger("ce_client")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0
#: A connection that is not there within this is dialled anew: the system itself would try again less and less often,
#: and find out late that a link is there again. Now and then longer, for links that are slow.
DIAL_S = (1.5, 1.5, 10.0)
#: The same reason for not being connected is logged again after this long.
REPEAT_REASON_S = 60.0
#: A coordinator that has heard a goodbye ends the stream; this long it may take.
GOODBYE_S = 1.0
#: Clocks that differ by more than this are pointed out.
CLOCK_SLACK_S = 60.0
#: Frames of one job that may wait to be worked on.
WAITING_FRAMES = 16
#: Before it stops, a site waits this long for the states of its jobs to be kept.
DRAIN_S = 3.0


class Worker:
    """One job at this site: its participant, and the messages that wait for it."""

    def __init__(self, site_attempt: SiteAttempt, daemon: Daemon) -> None:
        self.site_attempt = site_attempt
        self.messages: asyncio.Queue[tuple[str, Any]] = asyncio.Queue(WAITING_FRAMES)
        self._daemon = daemon
        self._working = False
        self._task = asyncio.create_task(self._work())

    def stop(self) -> None:
        self._task.cancel()

    @property
    def working(self) -> bool:
        """Whether a thread is at it."""
        return self._working

    async def take(self, kind: str, message: Any) -> None:
        """A message has come. Light work is done at once, the rest waits its turn for a thread."""
        if self.site_attempt.light and self.messages.empty() and not self._working:
            frames = self._daemon.meter.receive(self.site_attempt, kind, message)
            self._daemon.worked(self.site_attempt)
            if self._daemon.stream is not None:
                await self._daemon.stream.send(frames)
        else:
            await self.messages.put((kind, message))

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            kind, message = await self.messages.get()
            self._working = True
            stream = self._daemon.stream
            receive = self._daemon.meter.receive
            frames = await loop.run_in_executor(self._daemon.pool, receive, self.site_attempt, kind, message)
            self._working = False
            self._daemon.worked(self.site_attempt)
            if stream is not None and stream is self._daemon.stream:
                await stream.send_whole(frames)


class Stream:
    """One connection; the frames of one answer go up together, those of different jobs one answer after the other."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._turn = asyncio.Lock()
        self.broken = asyncio.Event()

    async def send(self, frames: Iterable[pb.SiteFrame]) -> None:
        """Returns when they are on their way."""
        async with self._turn:
            try:
                for frame in frames:
                    await self._call.write(frame)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                self.broken.set()  # whoever reads finds out why

    async def send_whole(self, frames: Iterable[pb.SiteFrame]) -> None:
        """The same for whoever may be told to stop, because its job is over: what has begun goes on. gRPC takes a
        write that is cancelled for the end of the call, and with it of the stream of all jobs."""
        await asyncio.shield(self.send(frames))


class Daemon:
    """A site's daemon. `run` returns when `stop` is called."""

    def __init__(self, site_files: SiteFiles) -> None:
        self.site_files = site_files
        self.settings = site_files.settings
        self.stream: Stream | None = None
        self.pool = ThreadPoolExecutor(4, thread_name_prefix="ce job")
        self._ledger = Ledger(self.settings.state / LEDGER, self.settings.name)
        self.site_jobs = SiteJobs(site_files, self._ledger)
        self.meter = SiteMetrics()
        self.meter.show(self.site_jobs.states)
        self._scraping = MetricsServer(self.meter.registry.text, self._health)
        self._was_connected = False
        self._workers: dict[str, Worker] = {}
        self._considering: set[asyncio.Future[None]] = set()
        self._instance = os.urandom(16)
        self._stopping = asyncio.Event()
        self._leaving: dict[
            str, int
        ] = {}  # before stopping: jobs that are to keep their state, and the last round kept
        self._kept = asyncio.Event()
        self._reason, self._reason_at = "", 0.0

    def stop(self) -> None:
        self._stopping.set()

    def reconsider(self) -> None:
        """Somebody has approved or declined a job: those that wait for it look again."""
        for worker in self._workers.values():
            if worker.site_attempt.waits_for_consent:
                self._considering.add(task := asyncio.ensure_future(worker.take("reconsider", None)))
                task.add_done_callback(self._considering.discard)

    @property
    def busy(self) -> bool:
        """Whether a computation is still under way."""
        return any(worker.working for worker in self._workers.values())

    async def run(self) -> None:
        """Until stopped: connect, serve, and after a pause connect again."""
        if self.settings.metrics:
            await self._scraping.start(self.settings.metrics)
        pause = FIRST_PAUSE_S
        patience = cycle(DIAL_S)
        while not self._stopping.is_set():
            connected = False
            try:
                connected = await self._serve(next(patience))
            except CeError as error:
                self._say_why(error)
            pause = FIRST_PAUSE_S if connected else min(pause * 2, LONGEST_PAUSE_S)
            await self._pause(pause * random.uniform(0.7, 1.0))
        await self._scraping.close()
        for worker in self._workers.values():
            worker.stop()
        self.site_jobs.stopped()
        self._ledger.close()
        self.pool.shutdown(wait=False, cancel_futures=True)

    # One connection.

    async def _serve(self, dial_s: float) -> bool:
        """One stream, from Hello to its end. True: it was open, so the next try need not wait."""
        address = self.settings.coordinator
        channel = open_channel(address, self.site_files.credentials)
        tasks: set[asyncio.Task[Any]] = set()
        welcomed = False
        try:
            counted = CountedChannel(channel, self.meter.sent, self.meter.received)
            call = site_pb2_grpc.SiteServiceStub(counted).Connect()
            self._welcome(await say_hello(call, address, self._hello(), dial_s))
            welcomed = True
            stream = self.stream = Stream(call)
            stopping = asyncio.create_task(self._stopping.wait())
            tasks = {asyncio.create_task(self._read(call)), asyncio.create_task(stream.broken.wait()), stopping}
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if stopping in done:
                await self._keep_states(stream, tasks - {stopping})
                await stream.send([pb.SiteFrame(goodbye=pb.Goodbye(reason="the site's daemon stops"))])
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(call.code(), GOODBYE_S)
                return True
            for task in done:
                if task.cancelled():  # by gRPC, not by us
                    raise Unreachable(f"the stream to {address} was given up")
                task.result()
            raise await ended(call, address)
        except grpc.aio.AioRpcError as error:
            raise explain(address, error) from error
        except asyncio.InvalidStateError as error:  # written to a stream that has just ended
            raise await ended(call, address) from error
        finally:
            self.stream = None
            self.meter.connected.set(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for worker in self._workers.values():
                _drop_waiting(worker)
            await channel.close(None)
            if welcomed:
                log.info("disconnected", extra=fields(coordinator=self.site_jobs.coordinator))

    async def _keep_states(self, stream: Stream, tasks: set[asyncio.Task[Any]]) -> None:
        """Ask the coordinator to let this site keep the states of its jobs before it goes; not for long."""
        waiting = {name: own.checkpoint_round for name, own in self.site_jobs.site_attempts.items() if own.under_way}
        if not waiting:
            return
        await stream.send([pb.SiteFrame(leaving=pb.Leaving())])
        self._leaving = waiting
        done = asyncio.create_task(self._kept.wait())
        await asyncio.wait({done, *tasks}, timeout=DRAIN_S, return_when=asyncio.FIRST_COMPLETED)
        done.cancel()

    def worked(self, site_attempt: SiteAttempt) -> None:
        """A participant has done its work on a message."""
        self.site_jobs.note(site_attempt)
        before = self._leaving.get(site_attempt.job)
        if before is not None and (site_attempt.checkpoint_round > before or not site_attempt.under_way):
            del self._leaving[site_attempt.job]
            if not self._leaving:
                self._kept.set()

    def _hello(self) -> pb.Hello:
        return pb.Hello(
            site=self.settings.name,
            protocol=PROTOCOL,
            software=__version__,
            instance=self._instance,
            held=self.site_jobs.held(),
        )

    def _welcome(self, welcome: pb.Welcome) -> None:
        self.site_jobs.coordinator = one_line(welcome.coordinator, LONGEST_NAME)
        self.meter.welcomed(self._was_connected)
        self._was_connected = True
        self._reason = ""
        log.info("connected", extra=fields(coordinator=self.site_jobs.coordinator, address=self.settings.coordinator))
        apart = welcome.time_s - time.time()
        if abs(apart) > CLOCK_SLACK_S:
            log.warning(
                "the clocks of this site and of the coordinator differ: set the wrong one, or certificates may "
                "seem invalid",
                extra=fields(seconds=round(apart)),
            )

    async def _read(self, call: Any) -> None:
        while (frame := await call.read()) is not grpc.aio.EOF:
            kind = frame.WhichOneof("frame")
            if kind is None or kind == "welcome":
                raise MessageError("frame: empty, or a second welcome")
            if kind == "goodbye":
                return
            await self._dispatch(kind, getattr(frame, kind))

    async def _dispatch(self, kind: str, message: Any) -> None:
        if kind == "ended":
            if (worker := self._workers.pop(message.job, None)) is not None:
                worker.stop()
            if message.job in self.site_jobs.site_attempts:
                self.meter.ended(message.state)
            self.site_jobs.ended(message)
            return
        site_attempt = self.site_jobs.addressed(kind, message)
        if site_attempt is None:
            return
        if not self.site_jobs.engaged(site_attempt):
            assert self.stream is not None
            await self.stream.send(site_attempt.receive(kind, message))
            return
        worker = self._workers.get(message.job)
        if worker is None or worker.site_attempt is not site_attempt:
            if worker is not None:
                worker.stop()
            worker = self._workers[message.job] = Worker(site_attempt, self)
            self.meter.attempts.inc()
        await worker.take(kind, message)

    # Waiting.

    def _health(self) -> tuple[bool, str]:
        """A daemon that answers is well, also while its coordinator is away."""
        return True, "ok: connected" if self.stream is not None else "ok: not connected"

    def _say_why(self, error: CeError) -> None:
        """Log why there is no connection: once, and again only when it changes or much later."""
        now = time.monotonic()
        if str(error) != self._reason or now - self._reason_at > REPEAT_REASON_S:
            self._reason, self._reason_at = str(error), now
            level = logging.WARNING if isinstance(error, Unreachable) else logging.ERROR
            log.log(level, "not connected; trying again", extra=fields(reason=str(error)))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


def _drop_waiting(worker: Worker) -> None:
    """Messages that came down a stream that is gone; the coordinator sends again what still matters."""
    while not worker.messages.empty():
        worker.messages.get_nowait()
    worker.messages.put_nowait(("disconnected", None))
