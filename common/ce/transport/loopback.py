"""Sites in the same process, but over real gRPC streams and mutual TLS on the loopback interface.

For `ce.simulate(transport="grpc")` and tests: certificates are made on the spot and thrown away.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from ce.errors import MessageError, Unreachable
from ce.identity.authority import Authority
from ce.identity.keys import make_key, pem
from ce.identity.names import Identity
from ce.protocol.messages.task import Answer, Task
from ce.transport.in_process import Endpoint, Gather, Handler, encoded
from ce.transport.tls import TlsCredentials, make_server, open_channel
from ce_proto.v1 import site_pb2 as pb
from ce_proto.v1 import site_pb2_grpc

#: Nothing on one machine takes this long to connect.
CONNECT_S = 30.0
#: Handlers of calls end within this after their server has stopped.
GRACE_S = 2.0


class Loopback:
    """A server and one client stream per site, on a thread of their own. A context manager."""

    def __init__(self, sites: Mapping[str, Handler]) -> None:
        self._sites = dict(sites)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ce loopback", daemon=True)
        self._outgoing: dict[str, asyncio.Queue[Iterator[bytes] | None]] = {}  # None: nothing follows
        self._answers: queue.SimpleQueue[tuple[str, Answer | BaseException]] = queue.SimpleQueue()
        self._connected: dict[str, asyncio.Event] = {}
        self._streams: list[asyncio.Task[None]] = []
        self._channels: list[Any] = []
        self._server: Any = None
        self.bytes_sent = 0

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(CONNECT_S)
        except TimeoutError as error:
            self._close()
            raise Unreachable("the loopback interface of this machine does not answer") from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def exchange(self, tasks: Mapping[str, Task]) -> Iterator[tuple[str, Answer]]:
        for site, frames in encoded(tasks).items():
            self._loop.call_soon_threadsafe(self._outgoing[site].put_nowait, frames)
        for _ in tasks:
            site, answer = self._answers.get()
            if isinstance(answer, BaseException):
                raise answer
            yield site, answer

    # On the loop.

    async def _open(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            credentials = _throw_away(Path(directory), sorted(self._sites))
        self._outgoing = {site: asyncio.Queue() for site in self._sites}
        self._connected = {site: asyncio.Event() for site in self._sites}
        self._server, port = make_server(credentials[""], "127.0.0.1:0")
        site_pb2_grpc.add_SiteServiceServicer_to_server(self, self._server)
        await self._server.start()
        for site in self._sites:
            channel = open_channel(f"127.0.0.1:{port}", credentials[site])
            self._channels.append(channel)
            self._streams.append(asyncio.create_task(self._be_site(site, channel)))
        await asyncio.gather(*(event.wait() for event in self._connected.values()))

    async def Connect(self, frames: AsyncIterator[pb.SiteFrame], context: Any) -> None:
        """The home's end of one stream."""
        site = (await anext(frames)).hello.site
        self._connected[site].set()
        while (outgoing := await self._outgoing[site].get()) is not None:
            for frame in outgoing:
                self.bytes_sent += len(frame)
                await context.write(pb.CoordinatorFrame.FromString(frame))
            gather = Gather()
            answer: Answer | None = None
            while answer is None:
                reply = (await anext(frames)).SerializeToString()
                self.bytes_sent += len(reply)
                try:
                    answer = gather.receive(reply)
                except MessageError as error:  # raised to the caller of `exchange`, not to gRPC
                    self._answers.put((site, error))
                    return
            self._answers.put((site, answer))

    async def _be_site(self, site: str, channel: Any) -> None:
        """A site's end of its stream."""
        endpoint = Endpoint(self._sites[site])
        try:
            stream = site_pb2_grpc.SiteServiceStub(channel).Connect()
            await stream.write(pb.SiteFrame(hello=pb.Hello(site=site)))
            async for frame in stream:
                for reply in endpoint.receive(frame.SerializeToString()):
                    await stream.write(pb.SiteFrame.FromString(reply))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._answers.put((site, error))

    def _close(self) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(CONNECT_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CONNECT_S)
            self._loop.close()

    async def _shut(self) -> None:
        for outgoing in self._outgoing.values():
            outgoing.put_nowait(None)
        for stream in self._streams:
            stream.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        for channel in self._channels:
            await channel.close()
        if self._server is not None:
            await self._server.stop(None)
        # A server that has stopped has ended its calls, but not their handlers: they must not outlive the event loop.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                while left := asyncio.all_tasks() - {asyncio.current_task()}:
                    await asyncio.wait(left)


def _throw_away(directory: Path, sites: list[str]) -> dict[str, TlsCredentials]:
    """Credentials of the server (under the name "") and of every site, numbered: sites here may have any name."""
    authority = Authority.create(directory, datetime.now(UTC))
    roots = authority.certificate.public_bytes(Encoding.PEM)

    def credentials(identity: Identity) -> TlsCredentials:
        key = make_key()
        certificate: x509.Certificate = authority.issue(identity, key, datetime.now(UTC))
        return TlsCredentials(pem(key), certificate.public_bytes(Encoding.PEM), roots)

    named = {site: credentials(Identity("site", f"site-{at}")) for at, site in enumerate(sites)}
    return named | {"": credentials(Identity("coordinator", "loopback"))}
