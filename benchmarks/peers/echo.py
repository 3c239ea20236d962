"""Limits of an exchange: processes that send back what they are sent, over gRPC or over a raw TLS socket.

As many processes as a job has sites, with the keys and certificates of a deployment, over mutual TLS 1.3. The gRPC
channel is opened as the product opens it. `once` sends so many bytes to each process at the same time, and returns when
all of them have come back.

A process begins to send back when it has received everything, as a site answers when it has read its task.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

METHOD = "/bench.Echo/Echo"
#: Bytes of one gRPC message: large ones travel in several.
MESSAGE = 2**20
_LENGTH = 8
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_READ = 2**18


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time that these processes have had, of users and of the system."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks * _TICK_S


class _Echoes:
    """Child processes of this file, one for each site, and the time of rounds with all of them."""

    def __init__(self, directory: Path, sites: Sequence[str]) -> None:
        self.directory, self.sites = directory, tuple(sites)
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self, kind: str, port: int) -> None:
        for site in self.sites:
            command = [sys.executable, __file__, kind, str(self.directory / site), str(port)]
            self.children.append(subprocess.Popen(command))

    def stop(self) -> None:
        for child in self.children:
            child.terminate()
        for child in self.children:
            child.wait(10)

    @property
    def pids(self) -> list[int]:
        """Of both ends."""
        return [os.getpid(), *(child.pid for child in self.children)]

    def costs(self, begin: float, before: float, rounds: int) -> dict[str, float]:
        """Seconds of a round, on average: wall time, and CPU time of all processes."""
        wall, cpu = time.perf_counter() - begin, cpu_seconds(self.pids) - before
        return {"wall": wall / rounds, "CPU": cpu / rounds}


class GrpcEchoes:
    """The same over gRPC. The end that sends is a process of its own: one process has one event loop for gRPC."""

    def __init__(self, directory: Path, sites: Sequence[str]) -> None:
        self._command = [sys.executable, __file__, "grpc-hub", str(directory), *sites]

    def __enter__(self) -> Self:
        self._hub = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self._ask("") != "ready":
            raise RuntimeError("the echoes over gRPC did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._hub.stdin is not None
        self._hub.stdin.close()
        self._hub.wait(60)

    def once(self, size: int, rounds: int = 1) -> dict[str, float]:
        """Seconds of a round, on average: wall time, and CPU time of all processes."""
        found: dict[str, float] = json.loads(self._ask(f"{size} {rounds}\n"))
        return found

    def _ask(self, line: str) -> str:
        assert self._hub.stdin is not None
        assert self._hub.stdout is not None
        self._hub.stdin.write(line)
        self._hub.stdin.flush()
        return self._hub.stdout.readline().strip()


class _GrpcHub(_Echoes):
    """One bidirectional stream to each process."""

    async def serve(self) -> None:
        """Answer each line "BYTES ROUNDS" of standard input with what `once` returns, until its end."""
        import grpc

        from ce.identity.keys import pem, read_key
        from ce.transport.tls import TlsCredentials, make_server

        hub = self.directory / "hub"
        credentials = TlsCredentials(
            pem(read_key(hub / "coordinator.key")),
            (hub / "coordinator.pem").read_bytes(),
            (hub / "authority" / "ca.pem").read_bytes(),
        )
        self._streams: list[Any] = []
        over, here = asyncio.Event(), asyncio.Event()

        async def hold(_: Any, context: Any) -> None:
            self._streams.append(context)
            if len(self._streams) == len(self.sites):
                here.set()
            await over.wait()

        class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
            def service(self, details: Any) -> Any:
                return grpc.stream_stream_rpc_method_handler(hold) if details.method == METHOD else None

        server, port = make_server(credentials, "127.0.0.1:0")
        server.add_generic_rpc_handlers((Handler(),))
        await server.start()
        self.start("grpc", port)
        try:
            await asyncio.wait_for(here.wait(), 60)
            print("ready", flush=True)
            while line := await asyncio.to_thread(sys.stdin.readline):
                size, rounds = map(int, line.split())
                begin, before = time.perf_counter(), cpu_seconds(self.pids)
                await self._send(size, rounds)
                print(json.dumps(self.costs(begin, before, rounds)), flush=True)
        finally:
            over.set()
            await server.stop(None)
            self.stop()

    async def _send(self, size: int, rounds: int) -> None:
        first = size.to_bytes(_LENGTH, "big")
        whole = memoryview(bytes(size))
        messages = [bytes(whole[at : at + MESSAGE]) for at in range(0, size, MESSAGE)]
        messages[0] = first + messages[0][_LENGTH:]

        async def once(stream: Any) -> None:
            for message in messages:
                await stream.write(message)
            received = 0
            while received < size:
                received += len(await stream.read())

        for _ in range(rounds):
            await asyncio.gather(*map(once, self._streams))


class TlsEchoes(_Echoes):
    """One socket to each process, each served by a thread: TLS computes without the interpreter's lock."""

    def __enter__(self) -> Self:
        hub = self.directory / "hub"
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=hub / "authority" / "ca.pem")
        context.load_cert_chain(hub / "coordinator.pem", hub / "coordinator.key")
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(60)
            self.start("tls", listener.getsockname()[1])
            self._sockets = []
            for _ in self.sites:
                plain, _ = listener.accept()
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets.append(context.wrap_socket(plain, server_side=True))
        self._pool = ThreadPoolExecutor(len(self.sites))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()
        for one in self._sockets:
            one.close()
        self.stop()

    def once(self, size: int, rounds: int = 1) -> dict[str, float]:
        """As for gRPC."""
        payload = size.to_bytes(_LENGTH, "big") + bytes(size)
        rooms = [bytearray(size) for _ in self._sockets]

        def exchange(one: ssl.SSLSocket, room: bytearray) -> None:
            one.sendall(payload)
            _receive(one, memoryview(room))

        begin, before = time.perf_counter(), cpu_seconds(self.pids)
        for _ in range(rounds):
            list(self._pool.map(exchange, self._sockets, rooms))
        return self.costs(begin, before, rounds)


def _receive(one: ssl.SSLSocket, room: memoryview) -> bool:
    """Fill the room; False if the other end has closed."""
    at = 0
    while at < len(room):
        read = one.recv_into(room[at : at + _READ])
        if read == 0:
            return False
        at += read
    return True


# The other end.


async def _grpc_child(site: Path, port: int) -> None:
    import grpc

    from ce.identity.keys import pem, read_key
    from ce.transport.tls import TlsCredentials, open_channel

    credentials = TlsCredentials(
        pem(read_key(site / "site.key")), (site / "site.pem").read_bytes(), (site / "ca.pem").read_bytes()
    )
    async with open_channel(f"127.0.0.1:{port}", credentials) as channel:
        call = channel.stream_stream(METHOD)()
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                size = int.from_bytes(message[:_LENGTH], "big")
                messages = [message]
                received = len(message)
                while received < size:
                    messages.append(await call.read())
                    received += len(messages[-1])
                for one in messages:
                    await call.write(one)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the server has stopped


def _tls_child(site: Path, port: int) -> None:
    from ce.identity.names import COORDINATOR_SERVER_NAME

    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=site / "ca.pem")
    context.load_cert_chain(site / "site.pem", site / "site.key")
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname=COORDINATOR_SERVER_NAME) as one,
    ):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = memoryview(bytearray(_LENGTH))
        room = bytearray()
        while _receive(one, head):
            size = int.from_bytes(head, "big")
            if len(room) != size:
                room = bytearray(size)
            _receive(one, memoryview(room))
            one.sendall(room)


CHILDREN: dict[str, Callable[[Path, int], object]] = {
    "grpc": lambda site, port: asyncio.run(_grpc_child(site, port)),
    "tls": _tls_child,
}

if __name__ == "__main__":
    if sys.argv[1] == "grpc-hub":
        asyncio.run(_GrpcHub(Path(sys.argv[2]), sys.argv[3:]).serve())
    else:
        CHILDREN[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
