"""One stream to the coordinator: Hello and Welcome at its beginning, frames in both directions, Goodbye at its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc

from ce import __version__
from ce.errors import CeError, MessageError, Unreachable, VersionMismatch
from ce.transport.byte_counters import Count, CountedChannel
from ce.transport.call_errors import explain
from ce.transport.frames import PROTOCOL
from ce.transport.tls import open_channel
from ce_client.daemon.site_files import SiteFiles
from ce_proto.v1 import site_pb2 as pb
from ce_proto.v1 import site_pb2_grpc

#: Seconds within which the coordinator must answer Hello.
WELCOME_S = 10.0
#: Seconds that the coordinator has to end the stream after Goodbye.
GOODBYE_S = 1.0


class Connection:
    """An open stream. The frames of one answer are sent together; answers of different jobs one after the other."""

    def __init__(self, call: Any, address: str) -> None:
        self._call = call
        self._address = address
        self._sending = asyncio.Lock()
        self._answers: set[asyncio.Task[None]] = set()  # that are on their way
        self.broken = asyncio.Event()

    async def send(self, frames: Iterable[pb.SiteFrame]) -> None:
        """Send frames; returns when gRPC has taken them. If the stream is broken, sets `broken`."""
        async with self._sending:
            try:
                for frame in frames:
                    await self._call.write(frame)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                self.broken.set()  # the task that reads gets the reason

    def send_answer(self, frames: Iterable[pb.SiteFrame], sent: Callable[[], None]) -> None:
        """Send frames, to the last one even if their job is over meanwhile, then call `sent`.

        Nobody gets the task to cancel it: gRPC ends the call, and with it the stream of all jobs, when a write is
        cancelled.
        """

        async def send() -> None:
            try:
                await self.send(frames)
            finally:
                self._answers.discard(task)
                sent()

        task = asyncio.get_running_loop().create_task(send())
        self._answers.add(task)

    async def receive(self) -> tuple[str, Any] | None:
        """The coordinator's next frame: kind and message. None when the coordinator ends the stream.

        Raises the CeError that says why, if the stream breaks.
        """
        try:
            frame = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise explain(self._address, error) from error
        except asyncio.InvalidStateError as error:
            raise await self.end_error() from error
        if frame is grpc.aio.EOF:
            return None
        kind = frame.WhichOneof("frame")
        if kind is None or kind == "welcome":
            raise MessageError("frame: empty, or a second welcome")
        return None if kind == "goodbye" else (kind, getattr(frame, kind))

    async def end_error(self) -> CeError:
        """The error that says why the coordinator ended the stream. Call it before a task that reads is cancelled."""
        return await ended(self._call, self._address)

    async def say_goodbye(self, reason: str) -> None:
        """Send Goodbye, and wait until the coordinator has ended the stream."""
        await self.send([pb.SiteFrame(goodbye=pb.Goodbye(reason=reason))])
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._call.code(), GOODBYE_S)


@contextlib.asynccontextmanager
async def connect(
    site_files: SiteFiles, hello: pb.Hello, dial_s: float, sent: Count, received: Count
) -> AsyncIterator[tuple[Connection, pb.Welcome]]:
    """Open a stream, say Hello, and close the channel at the end.

    Raises Unreachable if there is no connection within `dial_s` seconds.
    """
    address = site_files.settings.coordinator
    channel = open_channel(address, site_files.credentials)
    try:
        call = site_pb2_grpc.SiteServiceStub(CountedChannel(channel, sent, received)).Connect()
        welcome = await say_hello(call, address, hello, dial_s)
        yield Connection(call, address), welcome
    finally:
        await channel.close(None)


async def say_hello(call: Any, address: str, hello: pb.Hello, dial_s: float = WELCOME_S) -> pb.Welcome:
    """Send Hello, and return the coordinator's Welcome. Raises the error with which it ended the stream instead."""
    try:
        await asyncio.wait_for(call.write(pb.SiteFrame(hello=hello)), dial_s)
        frame = await asyncio.wait_for(call.read(), WELCOME_S)
    except TimeoutError as error:
        raise Unreachable(f"{address} did not answer in time") from error
    except asyncio.InvalidStateError as error:  # written to a stream that has just ended
        raise await ended(call, address) from error
    except grpc.aio.AioRpcError as error:
        raise explain(address, error) from error
    if frame is grpc.aio.EOF:
        raise await ended(call, address)
    if (kind := frame.WhichOneof("frame")) != "welcome":
        raise MessageError(f"frame: expected welcome first, got {kind}")
    if frame.welcome.protocol != PROTOCOL:
        raise VersionMismatch(
            f"the coordinator at {address} speaks version {frame.welcome.protocol} of the protocol, this site version "
            f"{PROTOCOL}: install the same release at both ends"
        )
    return frame.welcome  # type: ignore[no-any-return]


async def ended(call: Any, address: str) -> CeError:
    """The error that says why the coordinator ended a stream."""
    code, details, trailer = await call.code(), await call.details(), await call.trailing_metadata()
    if code == grpc.StatusCode.OK:
        return Unreachable(f"{address} closed the stream")
    return explain(address, grpc.aio.AioRpcError(code, await call.initial_metadata(), trailer, details))


async def probe(site_files: SiteFiles) -> float:
    """Check that the coordinator accepts this site, without disturbing a daemon that is connected.

    Returns the coordinator's clock, in seconds since 1970.
    """
    settings = site_files.settings
    channel = open_channel(settings.coordinator, site_files.credentials)
    try:
        call = site_pb2_grpc.SiteServiceStub(channel).Connect()
        hello = pb.Hello(
            site=settings.name, protocol=PROTOCOL, software=__version__, instance=os.urandom(16), probe=True
        )
        welcome = await say_hello(call, settings.coordinator, hello)
        await call.done_writing()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(call.code(), WELCOME_S)
        return welcome.time_s
    finally:
        await channel.close()
