"""More callers, or slower ones, than a coordinator has room for: they are refused by the limit's name, and nobody else
is."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.processes import Deployment
from support.slow_callers import Dripping

from ce.errors import CeError, LimitReached, Unreachable
from ce.identity.denied import DenyList
from ce.service.checkpoints import MemoryCheckpoints
from ce.transport import tls
from ce.transport.call_errors import explain
from ce.transport.frames import PROTOCOL
from ce.transport.tls import TlsCredentials, open_channel
from ce_client.daemon.site_files import SiteFiles
from ce_coordinator import daemon
from ce_coordinator.cli.operator_call import open_credentials as operators
from ce_coordinator.config import CoordinatorSettings
from ce_coordinator.core.limits import Limits
from ce_coordinator.core.machine import Machine
from ce_coordinator.daemon import open_credentials, raise_open_files
from ce_coordinator.service import call_limits as doors
from ce_coordinator.service import site_service as sites
from ce_coordinator.service.authorisation import Authorisation
from ce_coordinator.service.call_limits import CallLimits
from ce_coordinator.service.runner import Runner
from ce_coordinator.store.memory import MemoryStore
from ce_proto.v1 import operator_pb2 as operator_pb
from ce_proto.v1 import operator_pb2_grpc, site_pb2_grpc
from ce_proto.v1 import site_pb2 as pb

SITES = ("north", "west")
CONNECT = "/ce.v1.SiteService/Connect"
CHECK = "/grpc.health.v1.Health/Check"


@pytest.fixture(scope="module", name="deployment")
def _deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Keys and certificates; no process is started."""
    return Deployment(tmp_path_factory.mktemp("deployment"), SITES)


class WatchedDoors(CallLimits):
    """Somebody looks who comes and goes."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.changed = asyncio.Event()

    @contextmanager
    def _entered(self, context: Any) -> Iterator[None]:
        try:
            with super()._entered(context):
                self.changed.set()
                yield
        finally:
            self.changed.set()

    async def until_open(self, calls: int) -> None:
        while self._all != calls:
            self.changed.clear()
            await self.changed.wait()


class Hub:
    """A coordinator in this process, with its doors and all."""

    def __init__(self, deployment: Deployment, limits: Limits) -> None:
        settings: CoordinatorSettings = replace(deployment.settings, listen="127.0.0.1:0", limits=limits)
        name, credentials = open_credentials(settings)
        machine = Machine(name, "test", limits, 1)
        self.runner = Runner(machine, MemoryStore(), MemoryCheckpoints())
        self.doors = WatchedDoors(limits)
        with mock.patch.object(daemon, "CallLimits", return_value=self.doors):
            access = Authorisation(DenyList(settings.denied))
            self.server, self.port, _ = daemon._server(settings, credentials, self.runner, access)
        self.address = f"127.0.0.1:{self.port}"


@asynccontextmanager
async def running_hub(deployment: Deployment, **limits: int) -> AsyncIterator[Hub]:
    own = Hub(deployment, Limits(**limits))
    await own.server.start()
    try:
        yield own
    finally:
        await own.runner.stop(Unreachable("the end"))
        await own.server.stop(0)


def papers(deployment: Deployment, site: str) -> TlsCredentials:
    return SiteFiles.open(deployment.sites[site]).credentials


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(), 60))


async def error_of(address: str, call: Any) -> CeError:
    """What a caller is told when its call ends."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while await call.read() is not grpc.aio.EOF:
            pass
    details = (await call.code(), await call.initial_metadata(), await call.trailing_metadata(), await call.details())
    return explain(address, grpc.aio.AioRpcError(*details))


class Context:
    """A call, as far as the doors look at it."""

    def __init__(self, certificate: bytes) -> None:
        self._certificate = certificate

    def peer(self) -> str:
        return "somewhere"

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": [self._certificate]} if self._certificate else {}


@contextmanager
def entered(gate: CallLimits, *certificates: bytes) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for certificate in certificates:
            stack.enter_context(gate._entered(Context(certificate)))
        yield


@pytest.mark.promise("Crowds and slow callers do not keep others out.")
def test_as_many_calls_as_the_limits_say_and_no_more() -> None:
    gate = CallLimits(Limits(streams=4, streams_per_certificate=2))
    for _ in range(2):  # all that was taken is given back
        with entered(gate, b"a", b"a", b"b"):
            with pytest.raises(LimitReached, match=r"limits\.streams_per_certificate"), entered(gate, b"a"):
                pass
            with (
                entered(gate, b"c"),
                pytest.raises(LimitReached, match=r"\(limits\.streams\)"),
                entered(gate, b"d"),
            ):
                pass
            with entered(gate, b"d"):
                pass
    assert not gate._open


@pytest.mark.promise("Crowds and slow callers do not keep others out.")
def test_one_certificate_cannot_keep_the_others_out(deployment: Deployment) -> None:
    """Streams that say nothing, on many connections and on one, and calls whose question never comes."""

    async def scene() -> None:
        few = {"streams": 12, "streams_per_certificate": 8}
        async with running_hub(deployment, **few) as own, contextlib.AsyncExitStack() as stack:
            loud, quiet = papers(deployment, "west"), papers(deployment, "north")
            channels = [await stack.enter_async_context(open_channel(own.address, loud)) for _ in range(4)]
            calls = [channel.stream_stream(CONNECT)() for channel in channels[:3] for _ in range(2)]
            calls += [channels[3].stream_stream(CHECK)() for _ in range(2)]
            await own.doors.until_open(8)
            # One more of each kind.
            for path in (CONNECT, CHECK):
                more = channels[0].stream_stream(path)()
                refused = await error_of(own.address, more)
                assert isinstance(refused, LimitReached)
                assert "limits.streams_per_certificate" in str(refused)
            # Another site, and the operator, are let in.
            other = await stack.enter_async_context(open_channel(own.address, quiet))
            stream = site_pb2_grpc.SiteServiceStub(other).Connect()
            hello = pb.Hello(site="north", protocol=PROTOCOL, instance=bytes(16))
            await stream.write(pb.SiteFrame(hello=hello))
            assert (await stream.read()).WhichOneof("frame") == "welcome"
            olga = await stack.enter_async_context(open_channel(own.address, operators(deployment.settings)))
            listed = await operator_pb2_grpc.OperatorServiceStub(olga).ListJobs(operator_pb.ListJobsRequest())
            assert list(listed.jobs) == []
            # And the loud one again, when it has ended a call.
            calls[0].cancel()
            await own.doors.until_open(8)  # seven of it, and the other's stream
            assert (await health_pb2_grpc.HealthStub(channels[1]).Check(health_pb2.HealthCheckRequest())).status

    play(scene)


@pytest.mark.promise("Every wait has a deadline, and a job that fails says why.")
@pytest.mark.parametrize(("path", "says"), [(CONNECT, "hello: did not arrive within"), (CHECK, "request: did not")])
def test_who_does_not_say_what_it_wants_is_not_waited_for(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, path: str, says: str
) -> None:
    monkeypatch.setattr(doors, "HELLO_S", 0.2)

    async def scene() -> None:
        async with running_hub(deployment) as own, open_channel(own.address, papers(deployment, "west")) as channel:
            call = channel.stream_stream(path)()
            assert says in str(await error_of(own.address, call))

    play(scene)


def test_a_byte_now_and_then_is_not_a_hello(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that never becomes whole, though something of it comes all the time."""
    monkeypatch.setattr(doors, "HELLO_S", 0.3)
    hello = pb.SiteFrame(hello=pb.Hello(site="west", protocol=PROTOCOL, instance=bytes(16))).SerializeToString()
    message = b"\0" + len(hello).to_bytes(4, "big") + hello

    async def scene() -> None:
        async with running_hub(deployment) as own:

            def drip() -> tuple[int, bool]:
                with Dripping(own.port, papers(deployment, "west")) as slow:
                    slow.call(CONNECT)
                    return slow.drip(message, 0.05)

            sent, ended = await asyncio.to_thread(drip)
            assert ended
            assert 0 < sent < len(message)
            assert own.runner.machine.connections == {}

    play(scene)


@pytest.mark.promise("Every wait has a deadline, and a job that fails says why.")
@pytest.mark.parametrize("stage", ["nothing", "half a handshake", "a connection without a call"])
def test_a_connection_that_goes_no_further_is_ended(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_S", 1)
    monkeypatch.setattr(tls, "IDLE_S", 1)

    async def scene() -> None:
        async with running_hub(deployment) as own:

            def wait_for_the_end() -> None:
                if stage == "a connection without a call":
                    with Dripping(own.port, papers(deployment, "west")) as idle:
                        while (got := idle.next_frame(30)) is not None and got[0] != 7:
                            pass
                        assert got is not None
                    return
                with socket.create_connection(("127.0.0.1", own.port), timeout=30) as plain:
                    if stage == "half a handshake":
                        plain.sendall(bytes.fromhex("1603010200"))  # a record of 512 bytes begins
                    assert plain.recv(100) == b""

            await asyncio.to_thread(wait_for_the_end)

    play(scene)


@pytest.mark.promise("Crowds and slow callers do not keep others out.")
def test_who_asks_and_never_reads_is_cut_off(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sites, "LAST_FRAME_S", 0.1)
    small = dict(tls._BOTH_ENDS) | {"grpc.http2.lookahead_bytes": 2**16}  # what is on its way is soon full
    monkeypatch.setattr(tls, "_BOTH_ENDS", tuple(small.items()))

    async def scene() -> None:
        async with (
            running_hub(deployment, messages_waiting=100) as own,
            open_channel(own.address, papers(deployment, "west")) as channel,
        ):
            call = site_pb2_grpc.SiteServiceStub(channel).Connect()
            await call.write(pb.SiteFrame(hello=pb.Hello(site="west", protocol=PROTOCOL, instance=bytes(16))))
            question = pb.SiteFrame(ready=pb.Ready(job="x" * 1000, epoch=1))

            async def ask() -> None:
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    while True:
                        await call.write(question)

            over, ended = asyncio.Event(), own.runner.ended
            own.runner.ended = lambda *which: (ended(*which), over.set())  # type: ignore[method-assign,assignment]
            asking = asyncio.create_task(ask())
            await over.wait()
            assert own.runner.machine.connections == {}
            # It does not read that its stream is ended, either: the call counts as one of its own until it goes.
            call.cancel()
            asking.cancel()
            await own.doors.until_open(0)
            (refused,) = (vars(record) for record in caplog.records if record.message == "site refused")
            assert "(limits.messages_waiting)" in str(refused)

    play(scene)


def test_the_process_may_have_as_many_files_open_as_the_system_lets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: set_to.append(both))
    raise_open_files()
    assert set_to == [(4096, 4096)]
