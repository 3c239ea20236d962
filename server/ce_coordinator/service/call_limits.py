"""How many calls may be open, in all and per certificate, and how long a caller may take to send its first message.

gRPC limits calls, too, but not per certificate: one certificate could use up all of them. And a unary call counts as
open before its request has arrived, however long that takes. So every call is served as a stream, which on the wire is
the same: it is counted first, then its request is awaited for at most HELLO_S.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ce.errors import CeError, LimitReached, MessageError
from ce.service.logs import fields
from ce.transport.grpc_errors import to_status
from ce_coordinator.core.limits import Limits

log = logging.getLogger("ce_coordinator")

#: Seconds within which a caller must send its first message: a site its Hello, an operator its request.
HELLO_S = 10.0
#: Seconds between two log entries about calls of one certificate that are refused.
REPEAT_S = 60.0


class CallLimits(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Counts open calls, and refuses those that exceed a limit."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: Counter[bytes] = Counter()  # by certificate
        self._all = 0
        self._logged: dict[bytes, float] = {}  # by certificate: when a refused call was logged last

    async def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        return grpc.stream_stream_rpc_method_handler(
            self._behind(handler), handler.request_deserializer, handler.response_serializer
        )

    def _behind(self, handler: Any) -> Callable[[Any, Any], Any]:
        serve = handler.stream_stream or handler.unary_stream or handler.unary_unary

        async def enter(requests: Any, context: Any) -> None:
            with contextlib.suppress(grpc.aio.InternalError):  # the caller has disconnected
                await self._serve(handler, serve, requests, context)

        return enter

    async def _serve(self, handler: Any, serve: Callable[..., Any], requests: Any, context: Any) -> None:
        try:
            with self._entered(context):
                given = requests if handler.request_streaming else await _request(context)
                if inspect.isasyncgenfunction(serve):
                    await _write_all(serve(given, context), context)
                elif handler.response_streaming:
                    await serve(given, context)
                else:
                    await context.write(await serve(given, context))
        except CeError as error:
            await context.abort(*to_status(error))

    @contextmanager
    def _entered(self, context: Any) -> Iterator[None]:
        """Counts a call while it is open. Raises LimitReached when there are too many."""
        certificate = next(iter(context.auth_context().get("x509_pem_cert", ())), b"")
        try:
            self._refuse_too_many(certificate)
        except LimitReached as error:
            now = time.monotonic()
            if now - self._logged.get(certificate, -math.inf) > REPEAT_S:  # many refused calls must not fill the log
                self._logged[certificate] = now
                log.warning("call refused", extra=fields(peer=context.peer(), reason=str(error)))
            raise
        self._open[certificate] += 1
        self._all += 1
        try:
            yield
        finally:
            self._all -= 1
            self._open[certificate] -= 1
            if not self._open[certificate]:
                del self._open[certificate]

    def _refuse_too_many(self, certificate: bytes) -> None:
        limits = self._limits
        if self._open[certificate] >= limits.streams_per_certificate:
            raise LimitReached(
                f"{self._open[certificate]:,} calls with this certificate are open, which is the limit "
                "(limits.streams_per_certificate): end some of them"
            )
        if self._all >= limits.streams:
            raise LimitReached(f"{self._all:,} calls are open, which is the limit (limits.streams): try again later")


@contextmanager
def readable_frames() -> Iterator[None]:
    """While messages of a call are read: MessageError where one is not of its type."""
    try:
        yield
    except DecodeError as error:
        raise MessageError("frame: cannot be read") from error


async def read_in_time(context: Any, what: str) -> Any:
    """The first message of a call, or EOF. Raises MessageError when it does not arrive within HELLO_S."""
    try:
        with readable_frames():
            return await asyncio.wait_for(context.read(), HELLO_S)
    except TimeoutError as error:
        raise MessageError(f"{what}: did not arrive within {HELLO_S:g} seconds") from error


async def _request(context: Any) -> Any:
    request = await read_in_time(context, "request")
    if request is grpc.aio.EOF:
        raise MessageError("request: missing")
    return request


async def _write_all(answers: AsyncIterator[Any], context: Any) -> None:
    async for answer in answers:
        await context.write(answer)
