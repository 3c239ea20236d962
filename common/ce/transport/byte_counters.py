"""Bytes of messages, counted where gRPC encodes and decodes them: exact, and no message is encoded twice for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from ce.transport.frames import Encoded

#: Called with the size of a message, in bytes.
Count = Callable[[int], object]


class CountedChannel:
    """As much of a channel as a stub of streams needs. The caller closes the underlying channel."""

    def __init__(self, channel: grpc.aio.Channel, sent: Count, received: Count) -> None:
        self._channel = channel
        self._sent = sent
        self._received = received

    def stream_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **more: Any
    ) -> Any:
        return self._channel.stream_stream(
            method,
            request_serializer=_encoding(request_serializer, self._sent),
            response_deserializer=_decoding(response_deserializer, self._received),
            **more,
        )


class CountingInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """For a server: all methods of all services."""

    def __init__(self, sent: Count, received: Count) -> None:
        self._sent = sent
        self._received = received

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:  # no such method
            return None
        return handler._replace(
            request_deserializer=_decoding(handler.request_deserializer, self._received),
            response_serializer=_encoding(handler.response_serializer, self._sent),
        )


def _encoding(encode: Callable[[Any], bytes], count: Count) -> Callable[[Any], bytes]:
    def encoded(message: Any) -> bytes:
        wire = message.wire if isinstance(message, Encoded) else encode(message)
        count(len(wire))
        return wire

    return encoded


def _decoding(decode: Callable[[bytes], Any], count: Count) -> Callable[[bytes], Any]:
    def decoded(wire: bytes) -> Any:
        count(len(wire))
        return decode(wire)

    return decoded
