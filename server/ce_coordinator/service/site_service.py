"""SiteService: one handler per stream, which passes frames from gRPC to the runner and back."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import grpc

from ce.errors import CeError, LimitReached, MessageError, Unreachable
from ce.service.logs import fields
from ce.transport.frames import Frame
from ce.transport.grpc_errors import to_status
from ce_coordinator.core.events import FrameReceived, SiteConnected
from ce_coordinator.service.authorisation import Authorisation, Caller
from ce_coordinator.service.call_limits import read_in_time, readable_frames
from ce_coordinator.service.runner import Outgoing, Runner
from ce_proto.v1 import site_pb2 as pb
from ce_proto.v1 import site_pb2_grpc

log = logging.getLogger("ce_coordinator.service.site_service")

#: Seconds that a stream that is to be closed may take to write the frame that is being written.
LAST_FRAME_S = 5.0
#: Seconds for which a stream that was let in stays so without another look at the deny list: a job's frames arrive
#: within milliseconds of each other.
CHECK_AGAIN_S = 0.05

#: In so many seconds a refusal for the same reason is logged so often; all are counted in a metric.
REPEAT_REASON_S, LOGGED = 60.0, 10
#: Reasons that are remembered for that.
MOST_REASONS = 1000


class RefusalLog:
    """Logs refused streams: for each reason, which names the site, `LOGGED` times in `REPEAT_REASON_S`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[float, int]] = {}  # by reason: when it came first, and how often it came since

    def refused(self, peer: str, code: str, reason: str) -> None:
        now = self._clock()
        since, times = self._seen.pop(reason, (now, 0))
        left_out = 0
        if now - since >= REPEAT_REASON_S:
            since, times, left_out = now, 0, max(0, times - LOGGED)
        if len(self._seen) >= MOST_REASONS:
            del self._seen[next(iter(self._seen))]
        self._seen[reason] = since, times + 1
        if times < LOGGED:
            more = {"not_logged": left_out} if left_out else {}
            log.warning("site refused", extra=fields(peer=peer, code=code, reason=reason, **more))


class SiteService(site_pb2_grpc.SiteServiceServicer):
    """See proto/ce_proto/v1/site.proto."""

    def __init__(self, runner: Runner, access: Authorisation) -> None:
        self._runner = runner
        self._access = access
        self._numbers = itertools.count(1)
        self._refusals = RefusalLog()

    async def Connect(self, frames: Any, context: Any) -> None:
        try:
            # A site is refused only after its Hello: while it still writes, gRPC for Python may lose the reason.
            hello = await self._hello(context)
            caller = self._access.admit(context, "site")
            if hello.probe:
                await context.write(self._runner.machine.probed(caller.name, hello, self._runner.now()))
                return
            session = next(self._numbers)
            stream = self._runner.opened(session)
            reason = "the stream broke"
            try:
                self._runner.handle(SiteConnected(session, caller.name, caller.fingerprint, hello))
                reason = await self._carry(session, stream, caller, context)
            except CeError as error:
                reason = str(error)
                raise
            finally:
                self._runner.ended(session, reason)
        except CeError as error:
            await self._refuse(error, context)

    async def _hello(self, context: Any) -> pb.Hello:
        frame = await read_in_time(context, "hello")
        if frame is grpc.aio.EOF or frame.WhichOneof("frame") != "hello":
            raise MessageError("hello: must be the first frame")
        return frame.hello  # type: ignore[no-any-return]

    async def _carry(self, session: int, stream: Outgoing, caller: Caller, context: Any) -> str:
        """Pass frames on until the stream ends; returns why, or raises the error that it is to be closed with."""
        reading = asyncio.create_task(self._read(session, caller, context))
        writing = asyncio.create_task(self._write(stream, context))
        try:
            ends: set[asyncio.Future[Any]] = {reading, writing, stream.closed}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if stream.closed.done():
                raise stream.closed.result()
            if reading.done():
                return reading.result()
            writing.result()
            return "the stream broke"
        finally:
            reading.cancel()
            # gRPC for Python loses the status of a stream that is ended while it writes, and the site would wait for
            # ever on a stream that is not served: a frame that is being written is waited for.
            stream.ending = True
            try:
                if stream.writing:
                    await asyncio.wait({writing}, timeout=LAST_FRAME_S)
            finally:  # also when gRPC cancels this handler meanwhile
                writing.cancel()
                await asyncio.gather(reading, writing, return_exceptions=True)

    async def _read(self, session: int, caller: Caller, context: Any) -> str:
        checked = time.monotonic()
        with readable_frames():
            while (frame := await context.read()) is not grpc.aio.EOF:
                if (now := time.monotonic()) - checked >= CHECK_AGAIN_S:
                    self._access.check(caller)
                    checked = now
                self._runner.handle(FrameReceived(session, frame))
                if frame.HasField("goodbye"):
                    return "the site said goodbye"
        return "the site closed the stream"

    async def _write(self, stream: Outgoing, context: Any) -> None:
        while not stream.ending:
            await self._write_all(await stream.next(), stream, context)

    async def _write_all(self, frames: Iterable[Frame], stream: Outgoing, context: Any) -> None:
        """A function of its own, so that no frame that was sent stays in memory while the stream waits for the next."""
        for frame in frames:
            stream.writing = True
            await context.write(frame)
            stream.writing = False
            if stream.ending:
                return

    async def _refuse(self, error: CeError, context: Any) -> None:
        code, details, trailer = to_status(error)
        if isinstance(error, LimitReached) or not isinstance(error, Unreachable):
            self._runner.metrics.streams_refused.inc()
            self._refusals.refused(context.peer(), code.name, details)
        await context.abort(code, details, trailer)
