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
from typing import Any

import grpc

from ce import __version__
from ce.errors import CeError, ConfigError, MessageError, Unreachable
from ce.job import Job
from ce.logs import fields
from ce.transport.explain import explain
from ce.transport.tls import open_channel
from ce.transport.wire import PROTOCOL
from ce_client.greeting import ended, say_hello
from ce_client.journal import Entry, Journal
from ce_client.participant import Participant
from ce_client.resources import Resources
from ce_proto.v1 import site_pb2 as pb
from ce_proto.v1 import site_pb2_grpc

log = logging.getLogger("ce_client")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
#: The same reason for not being connected is logged again after this long.
REPEAT_REASON_S = 60.0
#: A coordinator that has heard a goodbye ends the stream; this long it may take.
GOODBYE_S = 1.0
#: Clocks that differ by more than this are pointed out.
CLOCK_SLACK_S = 60.0
#: Frames of one job that may wait to be worked on.
WAITING_FRAMES = 16
#: Jobs that this site is in at the same time; a coordinator that offers more is refused.
MOST_JOBS = 100


class Worker:
    """One job at this site: its participant, and the messages that wait for it."""

    def __init__(self, participant: Participant, daemon: Daemon) -> None:
        self.participant = participant
        self.messages: asyncio.Queue[tuple[str, Any]] = asyncio.Queue(WAITING_FRAMES)
        self._daemon = daemon
        self._working = False
        self._task = asyncio.create_task(self._work())

    def stop(self) -> None:
        self._task.cancel()
        self.participant.close()

    @property
    def working(self) -> bool:
        """Whether a thread is at it."""
        return self._working

    async def take(self, kind: str, message: Any) -> None:
        """A message has come. Light work is done at once, the rest waits its turn for a thread."""
        if self.participant.light and self.messages.empty() and not self._working:
            frames = self.participant.receive(kind, message)
            self._daemon.note(self.participant)
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
            frames = await loop.run_in_executor(self._daemon.pool, self.participant.receive, kind, message)
            self._working = False
            self._daemon.note(self.participant)
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

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.settings = resources.settings
        self.stream: Stream | None = None
        self.pool = ThreadPoolExecutor(4, thread_name_prefix="ce job")
        self._journal = Journal(self.settings.state)
        self._workers: dict[str, Worker] = {}
        self._answered: dict[str, int] = {}  # rounds by job, over its attempts
        self._noted: dict[str, Entry] = {}
        self._instance = os.urandom(16)
        self._stopping = asyncio.Event()
        self._reason, self._reason_at = "", 0.0
        self._coordinator = ""

    def stop(self) -> None:
        self._stopping.set()

    @property
    def busy(self) -> bool:
        """Whether a computation is still under way."""
        return any(worker.working for worker in self._workers.values())

    async def run(self) -> None:
        """Until stopped: connect, serve, and after a pause connect again."""
        pause = FIRST_PAUSE_S
        while not self._stopping.is_set():
            connected = False
            try:
                connected = await self._serve()
            except CeError as error:
                self._say_why(error)
            pause = FIRST_PAUSE_S if connected else min(pause * 2, LONGEST_PAUSE_S)
            await self._pause(pause * random.uniform(0.7, 1.0))
        for worker in self._workers.values():
            worker.stop()
        self.pool.shutdown(wait=False, cancel_futures=True)

    # One connection.

    async def _serve(self) -> bool:
        """One stream, from Hello to its end. True: it was open, so the next try need not wait."""
        address = self.settings.coordinator
        channel = open_channel(address, self.resources.credentials)
        tasks: set[asyncio.Task[Any]] = set()
        welcomed = False
        try:
            call = site_pb2_grpc.SiteServiceStub(channel).Connect()
            self._welcome(await say_hello(call, address, self._hello()))
            welcomed = True
            stream = self.stream = Stream(call)
            stopping = asyncio.create_task(self._stopping.wait())
            tasks = {asyncio.create_task(self._read(call)), asyncio.create_task(stream.broken.wait()), stopping}
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if stopping in done:
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
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for worker in self._workers.values():
                _drop_waiting(worker)
            await channel.close(None)
            if welcomed:
                log.info("disconnected", extra=fields(coordinator=self._coordinator))

    def _hello(self) -> pb.Hello:
        held = [pb.Held(job=name, epoch=worker.participant.epoch) for name, worker in self._workers.items()]
        return pb.Hello(
            site=self.settings.name, protocol=PROTOCOL, software=__version__, instance=self._instance, held=held
        )

    def _welcome(self, welcome: pb.Welcome) -> None:
        self._coordinator = welcome.coordinator
        self._reason = ""
        log.info("connected", extra=fields(coordinator=self._coordinator, address=self.settings.coordinator))
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
        worker = self._workers.get(message.job)
        if kind == "ended":
            if worker is not None:
                self._end(message)
            return
        if kind == "offer" and (worker is None or worker.participant.epoch < message.epoch):
            worker = self._begin(message, worker)
        if worker is None or worker.participant.epoch != message.epoch:
            return  # of an attempt that is over
        await worker.take(kind, message)

    # Jobs.

    def _begin(self, offer: pb.Offer, former: Worker | None) -> Worker:
        if former is not None:
            self._answered[offer.job] = former.participant.rounds_answered
            former.stop()
        elif len(self._workers) >= MOST_JOBS:
            raise MessageError("offer: more jobs than this site takes part in at once")
        answered = self._answered.get(offer.job, 0)
        participant = Participant(offer, self._coordinator, self.resources, answered)
        worker = self._workers[offer.job] = Worker(participant, self)
        log.info("job offered", extra=fields(job=offer.job, epoch=offer.epoch, sites=len(offer.roster)))
        self._note(self._entry(participant, "offered"))
        return worker

    def _end(self, over: pb.Ended) -> None:
        worker = self._workers.pop(over.job)
        self._answered.pop(over.job, None)
        worker.stop()
        if worker.participant.refusal is None:
            self._note(self._entry(worker.participant, over.state, over.reason, over.rule))
        else:
            # Why this site refused it knows better than it told anybody: that is what stays written down.
            self.note(worker.participant)
        self._noted.pop(over.job, None)
        level = logging.INFO if over.state == "done" else logging.WARNING
        named = {"job": over.job, "state": over.state}
        if over.reason:
            named["reason"] = over.reason
        if worker.participant.finished:
            named["results"] = str(self.settings.results / over.job)
        log.log(level, "job over", extra=fields(**named))

    def note(self, participant: Participant) -> None:
        """Write down where a job stands, when that has changed."""
        if participant.refusal is not None:
            error = participant.refusal
            if self._noted.get(participant.job, Entry("", "", 0)).state != "refused":
                log.error("job refused", exc_info=error, extra=fields(job=participant.job))
            self._note(self._entry(participant, "refused", str(error), getattr(error, "rule", "")))
        elif participant.rounds_answered and self._noted[participant.job].state == "offered":
            self._note(self._entry(participant, "running"))

    def _entry(self, participant: Participant, state: str, reason: str = "", rule: str = "") -> Entry:
        attempt = participant.attempt
        model = privacy = ""
        try:
            job = Job.from_definition(attempt.definition)
            model, privacy = job.model, job.privacy
        except ConfigError:
            pass
        rounds = participant.rounds_answered if state != "running" else 0
        sites, coordinator = attempt.roster, self._coordinator
        return Entry(attempt.job, state, attempt.epoch, model, privacy, sites, coordinator, 0.0, reason, rule, rounds)

    def _note(self, entry: Entry) -> None:
        if self._noted.get(entry.job) != entry:
            self._noted[entry.job] = entry
            self._journal.write(entry)

    # Waiting.

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
