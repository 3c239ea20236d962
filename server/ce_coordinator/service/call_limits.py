"""The way in: how many calls may be open, in all and of one certificate, and how long one may take to say what for.

gRPC counts calls, too, but not by whom: one certificate could keep all others out. And a call with one question takes
a place before the question is there, for as long as the caller likes. So every call is taken as a stream, which on the
wire is the same: it is counted first, then its question is awaited, not for long.
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

#: A call must say what it wants within this: a site its Hello, an operator its question.
HELLO_S = 10.0
#: That a certificate calls too often is logged once in this time.
REPEAT_S = 60.0


class CallLimits(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Counts the calls that are open; refuses those that are too many."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: Counter[bytes] = Counter()  # by certificate
        self._all = 0
        self._told: dict[bytes, float] = {}  # by certificate: when the log was told that it calls too often

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
            with contextlib.suppress(grpc.aio.InternalError):  # the caller is gone, and hears nothing any more
                await self._serve(handler, serve, requests, context)

        return enter

    async def _serve(self, handler: Any, serve: Callable[..., Any], requests: Any, context: Any) -> None:
        try:
            with self._entered(context):
                given = requests if handler.request_streaming else await _question(context)
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
        """Raises LimitReached when there are too many."""
        own = next(iter(context.auth_context().get("x509_pem_cert", ())), b"")
        try:
            self._refuse_too_many(own)
        except LimitReached as error:
            now = time.monotonic()
            if now - self._told.get(own, -math.inf) > REPEAT_S:  # a crowd must not fill the log
                self._told[own] = now
                log.warning("call refused", extra=fields(peer=context.peer(), reason=str(error)))
            raise
        self._open[own] += 1
        self._all += 1
        try:
            yield
        finally:
            self._all -= 1
            self._open[own] -= 1
            if not self._open[own]:
                del self._open[own]

    def _refuse_too_many(self, own: bytes) -> None:
        limits = self._limits
        if self._open[own] >= limits.streams_per_certificate:
            raise LimitReached(
                f"{self._open[own]:,} calls with this certificate are open, and no more may be "
                "(limits.streams_per_certificate): end some of them"
            )
        if self._all >= limits.streams:
            raise LimitReached(f"{self._all:,} calls are open, and no more may be (limits.streams): try again later")


async def read_frame(context: Any) -> Any:
    """The next message of a call, or EOF."""
    try:
        return await context.read()
    except DecodeError as error:
        raise MessageError("frame: cannot be read") from error


async def read_in_time(context: Any, what: str) -> Any:
    """The first one, which may not take long."""
    try:
        return await asyncio.wait_for(read_frame(context), HELLO_S)
    except TimeoutError as error:
        raise MessageError(f"{what}: did not come in time") from error


async def _question(context: Any) -> Any:
    question = await read_in_time(context, "question")
    if question is grpc.aio.EOF:
        raise MessageError("question: did not come")
    return question


async def _write_all(answers: AsyncIterator[Any], context: Any) -> None:
    async for answer in answers:
        await context.write(answer)
