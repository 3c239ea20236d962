"""The beginning of every stream: Hello up, Welcome down."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

import grpc

from ce import __version__
from ce.errors import CeError, MessageError, Unreachable
from ce.transport.call_errors import explain
from ce.transport.frames import PROTOCOL
from ce.transport.tls import open_channel
from ce_client.daemon.site_files import SiteFiles
from ce_proto.v1 import site_pb2 as pb
from ce_proto.v1 import site_pb2_grpc

#: The coordinator must answer Hello within this.
WELCOME_S = 10.0


async def say_hello(call: Any, address: str, hello: pb.Hello, dial_s: float = WELCOME_S) -> pb.Welcome:
    """The coordinator's answer; raises what it ended the stream with. The connection must be there within `dial_s`."""
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
    if frame.WhichOneof("frame") != "welcome":
        raise MessageError("welcome: must be the first frame")
    return frame.welcome  # type: ignore[no-any-return]


async def ended(call: Any, address: str) -> CeError:
    """Why the coordinator ended a stream."""
    code, details, trailer = await call.code(), await call.details(), await call.trailing_metadata()
    if code == grpc.StatusCode.OK:
        return Unreachable(f"{address} closed the stream")
    return explain(address, grpc.aio.AioRpcError(code, await call.initial_metadata(), trailer, details))


async def greet(site_files: SiteFiles) -> float:
    """Whether the coordinator lets this site in. A daemon that is connected meanwhile is not disturbed: it is a probe.

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
