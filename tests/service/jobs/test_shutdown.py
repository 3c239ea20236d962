"""Daemons that are told to stop while others talk to them: no traceback, and a coordinator's last event is its end."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from support.processes import PATIENCE_S, Deployment, Process
from support.slow_callers import DATA, GOAWAY, HEADERS, SETTINGS, Dripping, frame

import ce
from ce.errors import Unreachable
from ce.service.checkpoints import MemoryCheckpoints
from ce.transport.frames import PROTOCOL
from ce.transport.tls import TlsCredentials
from ce_client.daemon.site_files import SiteFiles
from ce_coordinator.cli.operator_call import open_credentials as operators
from ce_coordinator.core.limits import Limits
from ce_coordinator.core.machine import Machine
from ce_coordinator.service.runner import Runner
from ce_coordinator.store.memory import MemoryStore
from ce_proto.v1 import operator_pb2 as operator_pb
from ce_proto.v1 import site_pb2 as pb

#: Daemons, and callers that gRPC would not be.
SITES, CALLERS = ("north", "south"), ("mute", "slow", "silent")
CONNECT, WATCH_JOB = "/ce.v1.SiteService/Connect", "/ce.v1.OperatorService/WatchJob"
HEALTH = "/grpc.health.v1.Health/Watch"
SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
#: Nothing may be sent to a caller who says so.
NO_ROOM = frame(SETTINGS, 0, 0, b"\0\4" + bytes(4))
END_STREAM = 1


@pytest.fixture(scope="module", name="shared")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("stopping"), [*SITES, *CALLERS], metrics=True)
    try:
        yield deployment
    finally:
        deployment.close()


@pytest.fixture(name="deployment")
def _deployment(shared: Deployment) -> Deployment:
    """Everybody up, with logs that begin now."""
    shared.close()
    shared.start("hub", {"CE_COORDINATOR_LOG_LEVEL": "debug"})
    for site in SITES:
        shared.start(site, {"CE_CLIENT_LOG_LEVEL": "debug"})
    for site in SITES:
        shared.processes[site].wait_for("connected")
    return shared


def assert_clean(process: Process) -> None:
    """Events and nothing else, no exception among them; of the C library only what it says when it begins."""
    assert not [line for line, event in zip(process.raw, process.events, strict=True) if not event["event"]]
    assert not [event for event in process.events if "trace" in event or event["level"] in ("error", "critical")]
    native = [event for event in process.events if event["logger"] == "ce.native"]
    assert not [event for event in native if "Log level INFO" not in event["text"]]


def message(content: Any) -> bytes:
    wire: bytes = content.SerializeToString()
    return b"\0" + len(wire).to_bytes(4, "big") + wire


def hello(site: str) -> bytes:
    return frame(DATA, 0, 1, message(pb.SiteFrame(hello=pb.Hello(site=site, protocol=PROTOCOL, instance=bytes(16)))))


@contextmanager
def calling(
    deployment: Deployment, credentials: TlsCredentials, path: str = "", said: bytes = b""
) -> Iterator[Dripping]:
    """A connection that answers signs of life, and takes nothing off those who write to it."""

    def answer() -> None:
        with suppress(OSError):
            while (got := caller.next_frame(PATIENCE_S)) is not None and got[0] != GOAWAY:
                if got[0] in (DATA, HEADERS):
                    answered.set()

    answered = threading.Event()
    with Dripping(deployment.port, credentials) as caller:
        if path:
            caller.call(path)
        if said:
            caller.send(said)
        answering = threading.Thread(target=answer)
        answering.start()
        try:
            if said:
                assert answered.wait(PATIENCE_S)
            yield caller
        finally:
            with suppress(OSError):
                caller._socket.shutdown(socket.SHUT_RDWR)
            answering.join(PATIENCE_S)


@contextmanager
def all_sorts_of_callers(deployment: Deployment) -> Iterator[None]:
    def own(site: str) -> TlsCredentials:
        return SiteFiles.open(deployment.sites[site]).credentials

    hub, olga = deployment.processes["hub"], operators(deployment.settings)
    job = ce.Job(name=f"waits for {hub.pid}", clusters=2, sites=CALLERS, privacy="plain")
    deployment.submit(job)
    watch = frame(DATA, END_STREAM, 1, message(operator_pb.WatchJobRequest(job=job.name)))
    question = frame(DATA, 0, 1, message(pb.SiteFrame(ready=pb.Ready(job="x" * 1000, epoch=1))))
    begun = frame(DATA, 0, 1, b"\0" + (10**6).to_bytes(4, "big") + bytes(1000))
    port = hub.wait_for("metrics")["port"]
    with ExitStack() as stack:
        for said in (b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\n\r\n"):
            stack.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(said)
        for said in (b"", bytes.fromhex("1603010200")):  # nothing of a handshake, and its beginning
            stack.enter_context(socket.create_connection(("127.0.0.1", deployment.port))).sendall(said)
        for path, said in (
            ("", b""),
            (CONNECT, b""),
            (WATCH_JOB, watch),
            (WATCH_JOB, watch),
            (HEALTH, frame(DATA, END_STREAM, 1, bytes(5))),
        ):
            stack.enter_context(calling(deployment, olga if path in (WATCH_JOB, HEALTH) else own("silent"), path, said))
        # An answer that is on its way up, and much that waits to go down to somebody who has no room for it.
        stack.enter_context(calling(deployment, own("slow"), CONNECT, hello("slow") + begun))
        stack.enter_context(calling(deployment, own("mute"), CONNECT, hello("mute") + NO_ROOM + question * 200))
        deadline = time.monotonic() + PATIENCE_S
        while deployment.scrape("hub")["ce_coordinator_frames_waiting"] < 50:
            assert time.monotonic() < deadline
        yield


@SIGNALS
def test_a_coordinator_ends_in_order_whoever_is_connected(deployment: Deployment, number: int) -> None:
    hub = deployment.processes["hub"]
    with all_sorts_of_callers(deployment):
        assert hub.stop(number) == 0
    assert_clean(hub)
    assert hub.events[-1]["event"] == "stopped"
    for site in SITES:
        deployment.processes[site].wait_for("not connected; trying again")
        assert deployment.processes[site].stop(number) == 0
        assert_clean(deployment.processes[site])


@SIGNALS
def test_a_site_ends_in_order_while_it_is_connected(deployment: Deployment, number: int) -> None:
    for site in SITES:
        assert deployment.processes[site].stop(number) == 0
        assert_clean(deployment.processes[site])
        assert deployment.processes[site].events[-1]["event"] == "disconnected"
    hub = deployment.processes["hub"]
    assert hub.stop(number) == 0
    assert_clean(hub)
    assert hub.events[-1]["event"] == "stopped"


#: A machine so busy that a line of the C library is handled when the relay is closed, and not before.
BUSY = """
import sys, threading
from ce.service import logs
from ce_coordinator.cli import main, serve

closing = threading.Event()

class Late(logs.NativeStderr):
    def __init__(self):
        super().__init__(lambda line: closing.wait(60) and logs.log_native_line(line))
    def close(self):
        closing.set()
        super().close()

serve.relay_native_stderr = Late
main.main(sys.argv[1:])
"""


def test_what_the_c_library_wrote_is_logged_before_the_end(shared: Deployment) -> None:
    shared.close()
    words = ["--log-level", "debug", "serve", "--config", str(shared.hub), "--format", "json"]
    with subprocess.Popen([sys.executable, "-c", BUSY, *words], stderr=subprocess.PIPE, text=True) as serving:
        assert serving.stderr is not None
        events = []
        for line in serving.stderr:
            events.append(json.loads(line))
            if events[-1]["event"] == "listening":
                serving.terminate()
        assert serving.wait(PATIENCE_S) == 0
    names = [event["event"] for event in events]
    assert names.count("native output") == 1
    assert names.index("native output") > names.index("stopping")
    assert names[-1] == "stopped"


def test_a_stream_that_opens_while_all_are_closed_is_closed_too() -> None:
    async def open_late() -> None:
        runner = Runner(Machine("hub", "test", Limits(), 1), MemoryStore(), MemoryCheckpoints())
        await runner.stop(error := Unreachable("the end"))
        closed = runner.opened(1).closed
        assert closed.done()
        assert closed.result() is error

    asyncio.run(open_late())
