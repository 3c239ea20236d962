"""A small HTTP server for metrics and health: GET /metrics, GET /healthz, nothing else.

It runs on the daemon's own event loop, so that whoever gets an answer knows that the daemon is alive, and it must not
be a way to disturb the daemon: a request has a few kilobytes, a connection a few seconds, and when too many are open
the oldest is cut off. Every connection is good for one request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from http import HTTPStatus

from ce.errors import ConfigError
from ce.service.logs import fields
from ce.service.metrics import CONTENT_TYPE

log = logging.getLogger("ce.metrics")

#: Bytes of a request: its line and its headers.
LARGEST_REQUEST = 8 * 1024
#: Seconds that a connection may last.
LONGEST_S = 5.0
#: Connections that may be open at the same time.
MOST_CONNECTIONS = 20

#: Whether all is well, and a line that says so.
Health = Callable[[], tuple[bool, str]]


class MetricsServer:
    """Until it is closed. `metrics` is called for every scrape."""

    def __init__(self, metrics: Callable[[], bytes], health: Health) -> None:
        self._metrics = metrics
        self._health = health
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # connections, the oldest first
        self._server: asyncio.Server | None = None

    async def start(self, address: str) -> int:
        """Listen there (host:port; port 0 takes a free one); returns the port. Raises ConfigError."""
        host, _, port = address.rpartition(":")
        try:
            self._server = await asyncio.start_server(self._accept, host.strip("[]"), int(port), limit=LARGEST_REQUEST)
        except OSError as error:
            # asyncio says it at length; of a name that cannot be found it keeps what the system says.
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise ConfigError(
                f"cannot listen at {address}: {reason}: stop what is there, or change metrics in the configuration"
            ) from error
        listening = int(self._server.sockets[0].getsockname()[1])
        log.info("metrics", extra=fields(address=address, port=listening))
        return listening

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        open_ = list(self._open)
        for task in open_:
            self._cut_off(task)
        await asyncio.gather(*open_, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MOST_CONNECTIONS:
            self._cut_off(next(iter(self._open)))
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._open[task] = writer
        task.add_done_callback(lambda done: self._open.pop(done, None))

    def _cut_off(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        self._open.pop(task).transport.abort()  # here: a task that is cancelled before it began does nothing

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # What a caller does wrong, it is not told about at length, and the log not at all.
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                async with asyncio.timeout(LONGEST_S):
                    writer.write(self._answer(await _request(reader)))
                    await writer.drain()
                    writer.write_eof()
                    await reader.read(LARGEST_REQUEST)  # until the caller has closed, too: else it may lose the answer
        finally:
            writer.transport.abort()

    def _answer(self, request: bytes | None) -> bytes:
        if request is None:
            return _response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path not in (b"/metrics", b"/healthz"):
            return _response(HTTPStatus.NOT_FOUND)
        if method != b"GET":
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, more="Allow: GET\r\n")
        if path == b"/metrics":
            return _response(HTTPStatus.OK, self._metrics(), CONTENT_TYPE)
        well, line = self._health()
        return _response(HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE, f"{line}\n".encode())


async def _request(reader: asyncio.StreamReader) -> bytes | None:
    """The first line of a request; None: it is too long."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return None
    return head.partition(b"\r\n")[0]


def _response(
    status: HTTPStatus, body: bytes | None = None, kind: str = "text/plain; charset=utf-8", *, more: str = ""
) -> bytes:
    body = f"{status.phrase}\n".encode() if body is None else body
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}{more}Connection: close\r\n\r\n".encode() + body
