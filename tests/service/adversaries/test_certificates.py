"""Who is not let in: every certificate, key, name or version that must be refused is, by real processes over real TLS.

Each refusal is proved twice: the caller gets one of our errors, and the log of whoever refused says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from support.forged_certificates import SERVER, FalseServer, forge, write_pair
from support.processes import PATIENCE_S, Deployment, Process, free_port

import ce
from ce.errors import CeError, ConfigError, NotAllowed, NotKnown, UnknownJob, Unreachable
from ce.identity.authority import Authority
from ce.identity.certificates import fingerprint, parse_certificate
from ce.identity.names import COORDINATOR_SERVER_NAME
from ce.identity.peers import CHANGED, UNPINNED, Peers
from ce.testing import make_sites
from ce.transport.call_errors import explain
from ce.transport.frames import PROTOCOL
from ce.transport.tls import TlsCredentials, open_channel
from ce_client.config import ClientSettings
from ce_client.daemon.connection import ended, say_hello
from ce_client.daemon.site_files import SiteFiles
from ce_proto.v1 import operator_pb2, operator_pb2_grpc, site_pb2, site_pb2_grpc

Result = TypeVar("Result")

OPERATOR_RPCS = operator_pb2.DESCRIPTOR.services_by_name["OperatorService"].methods_by_name
NOT_CONNECTED = "not connected; trying again"


@pytest.fixture(scope="module", name="deployment")
def _deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """North and south run from the beginning; west has a certificate, and is started by tests that need it."""
    directory = tmp_path_factory.mktemp("deployment")
    for name in ("north", "south", "west"):
        rows = [f"{name}{at},{at % 2},{at % 2 if at % 5 else 1 - at % 2},{at % 3}" for at in range(12)]
        (directory / f"{name}.csv").write_text("\n".join(["id,a,b,c", *rows]))
    with pytest.MonkeyPatch.context() as environment:
        # As on a machine of its own, and even where somebody wants gRPC to be silent: this process has set the one for
        # itself, and the daemons must do so for themselves.
        environment.delenv("GRPC_SSL_CIPHER_SUITES")
        environment.setenv("GRPC_VERBOSITY", "ERROR")
        with Deployment(directory, ["north", "south"]) as deployment:
            make_sites(
                directory,
                {"west": directory / "west.csv"},
                authority=deployment.authority,
                coordinator=deployment.address,
            )
            yield deployment
            for name, process in deployment.processes.items():
                unexpected = [line for line in process.raw if "Traceback" in line or '"trace"' in line]
                assert not unexpected, f"{name} was surprised: {unexpected}"


@pytest.fixture(scope="module", name="authority")
def _authority(deployment: Deployment) -> Authority:
    return deployment.authority


@pytest.fixture(name="hub")
def _hub(deployment: Deployment) -> Process:
    """The coordinator, with a log in which only this test's events are found."""
    hub = deployment.processes["hub"]
    hub.events.clear()
    return hub


# Callers.


def credentials_of(deployment: Deployment, name: str) -> TlsCredentials:
    """Those of a site's daemon, or of the operator."""
    directory = deployment.hub if name == "operator" else deployment.directory / name
    file = "operator" if name == "operator" else "site"
    return TlsCredentials(
        (directory / f"{file}.key").read_bytes(),
        (directory / f"{file}.pem").read_bytes(),
        deployment.authority.certificate.public_bytes(Encoding.PEM),
    )


def in_time(work: Coroutine[Any, Any, Result]) -> Result:
    async def bounded() -> Result:
        async with asyncio.timeout(PATIENCE_S):
            return await work

    return asyncio.run(bounded())


@contextlib.asynccontextmanager
async def calling(address: str, channel: grpc.aio.Channel) -> AsyncIterator[grpc.aio.Channel]:
    """A channel, closed at the end; what its calls fail with comes out as one of our errors."""
    try:
        yield channel
    except grpc.aio.AioRpcError as error:
        raise explain(address, error) from error
    finally:
        await channel.close()


def hello_frame(site: str, *, probe: bool = False) -> site_pb2.Hello:
    return site_pb2.Hello(site=site, protocol=PROTOCOL, instance=os.urandom(16), probe=probe)


def say(address: str, credentials: TlsCredentials, site: str = "ghost", *, probe: bool = True) -> site_pb2.Welcome:
    """Connect as a site's daemon does, and hang up."""

    async def run() -> site_pb2.Welcome:
        async with calling(address, open_channel(address, credentials)) as channel:
            call = site_pb2_grpc.SiteServiceStub(channel).Connect()
            return await say_hello(call, address, hello_frame(site, probe=probe))

    return in_time(run())


def list_sites(address: str, channel: Callable[[], grpc.aio.Channel]) -> operator_pb2.ListSitesResponse:
    """The simplest call of an operator, over a channel that is made where the call is."""

    async def run() -> operator_pb2.ListSitesResponse:
        async with calling(address, channel()) as opened:
            stub = operator_pb2_grpc.OperatorServiceStub(opened)
            return await stub.ListSites(operator_pb2.ListSitesRequest(), timeout=PATIENCE_S)

    return in_time(run())


def connected(deployment: Deployment) -> set[str]:
    operator = credentials_of(deployment, "operator")
    listed = list_sites(deployment.address, lambda: open_channel(deployment.address, operator))
    return {status.site for status in listed.sites if status.connected}


@contextlib.contextmanager
def denied(deployment: Deployment, credentials: TlsCredentials) -> Iterator[None]:
    """On the deny list of the running coordinator, and off it again."""
    path = deployment.settings.denied
    path.write_text(f"# lost\n{fingerprint(parse_certificate(credentials.certificate))}\n")
    try:
        yield
    finally:
        path.unlink()


# Refused by TLS, before a word is said.


@pytest.mark.promise("Only certificates of the authority are let in, over TLS 1.3, each under its own name.")
@pytest.mark.parametrize(
    ("bring", "reason"),
    [
        pytest.param(lambda ours, theirs: forge(ours, "ce://site/ghost"), "self signed certificate", id="self-signed"),
        pytest.param(
            lambda ours, theirs: forge(ours, "ce://site/ghost", signed_by=ours, from_day=-9, to_day=-1),
            "certificate has expired",
            id="expired",
        ),
        pytest.param(
            lambda ours, theirs: forge(ours, "ce://site/ghost", signed_by=ours, from_day=1, to_day=9),
            "certificate is not yet valid",
            id="not yet valid",
        ),
        pytest.param(
            lambda ours, theirs: forge(ours, "ce://site/ghost", signed_by=theirs),
            "certificate of another authority",
            id="foreign authority",
        ),
        pytest.param(
            lambda ours, theirs: forge(ours, "ce://site/ghost", signed_by=ours, usage=SERVER),
            "unsupported certificate purpose",
            id="a server's certificate",
        ),
    ],
)
def test_a_certificate_that_is_not_valid_opens_no_connection(
    deployment: Deployment,
    hub: Process,
    foreign: Authority,
    bring: Callable[[Authority, Authority], TlsCredentials],
    reason: str,
) -> None:
    credentials = bring(deployment.authority, foreign)
    with pytest.raises(
        Unreachable, match=rf"{deployment.address} closed the connection: .* not accept this certificate"
    ):
        say(deployment.address, credentials)
    hub.wait_for("connection refused", reason=reason)


@pytest.fixture(scope="module", name="foreign")
def _foreign(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another operator's authority: everything about its certificates is right, but nobody here believes it."""
    begin = deployment.authority.certificate.not_valid_before_utc
    return Authority.create(tmp_path_factory.mktemp("foreign") / "authority", begin)


@pytest.mark.promise("Only certificates of the authority are let in, over TLS 1.3, each under its own name.")
@pytest.mark.parametrize("kind", ["without a certificate", "without TLS"])
def test_a_caller_who_shows_no_certificate_is_refused(deployment: Deployment, hub: Process, kind: str) -> None:
    address, roots = deployment.address, deployment.authority.certificate.public_bytes(Encoding.PEM)

    def channel() -> grpc.aio.Channel:
        if kind == "without TLS":
            return grpc.aio.insecure_channel(address)
        override = (("grpc.ssl_target_name_override", COORDINATOR_SERVER_NAME),)
        return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(roots), options=override)

    with pytest.raises(Unreachable, match=f"{address} closed the connection"):
        list_sites(address, channel)
    hub.wait_for("connection refused", reason="not TLS" if kind == "without TLS" else "no client certificate")


def test_plain_http_gets_no_answer(deployment: Deployment, hub: Process) -> None:
    with socket.create_connection(("127.0.0.1", deployment.port), PATIENCE_S) as caller:
        caller.sendall(b"GET / HTTP/1.1\r\nHost: ce-coordinator\r\n\r\n")
        assert caller.recv(1) == b""
    hub.wait_for("connection refused", reason="not TLS")


def first_bytes_over(deployment: Deployment, directory: Path, version: ssl.TLSVersion) -> bytes:
    """What the coordinator says first to a client with a good certificate that speaks just this version of TLS."""
    north = credentials_of(deployment, "north")
    context = ssl.create_default_context(cadata=north.authority.decode())
    context.load_cert_chain(*write_pair(directory, north))
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", deployment.port), PATIENCE_S) as caller,
        context.wrap_socket(caller, server_hostname=COORDINATOR_SERVER_NAME) as secured,
    ):
        return secured.recv(100)


@pytest.mark.promise("Only certificates of the authority are let in, over TLS 1.3, each under its own name.")
def test_the_coordinator_speaks_tls_1_3(deployment: Deployment, tmp_path: Path) -> None:
    assert first_bytes_over(deployment, tmp_path, ssl.TLSVersion.TLSv1_3)


@pytest.mark.promise("Only certificates of the authority are let in, over TLS 1.3, each under its own name.")
def test_the_coordinator_does_not_speak_tls_1_2(deployment: Deployment, hub: Process, tmp_path: Path) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError)):
        first_bytes_over(deployment, tmp_path, ssl.TLSVersion.TLSv1_2)
    hub.wait_for("connection refused", reason="older than TLS 1.3")


# Refused by name.


@pytest.mark.promise("Only certificates of the authority are let in, over TLS 1.3, each under its own name.")
@pytest.mark.parametrize("probe", [False, True])
def test_a_site_cannot_take_the_name_of_another(deployment: Deployment, hub: Process, probe: bool) -> None:
    with pytest.raises(NotAllowed, match="is that of site north, not of the name it gives"):
        say(deployment.address, credentials_of(deployment, "north"), "south", probe=probe)
    hub.wait_for("site refused", code="PERMISSION_DENIED", reason="that of site north")
    # Neither the thief's own stream nor that of its victim was touched.
    assert connected(deployment) >= {"north", "south"}
    assert not [entry for entry in hub.events if entry["event"] in ("site connected", "site disconnected")]


NAMELESS = {
    "no name": (),
    "another scheme": ("https://site/ghost",),
    "two names": ("ce://site/ghost", "ce://site/north"),
    "an unknown role": ("ce://king/ghost",),
    "no proper name": ("ce://site/../north",),
}


@pytest.mark.parametrize("names", NAMELESS.values(), ids=NAMELESS)
def test_a_certificate_must_name_exactly_one_caller(
    deployment: Deployment, hub: Process, names: tuple[str, ...]
) -> None:
    nameless = forge(deployment.authority, *names, signed_by=deployment.authority)
    refused_as_unknown(deployment, hub, nameless)


def test_a_key_of_another_kind_is_nobodys(deployment: Deployment, hub: Process) -> None:
    other = forge(deployment.authority, "ce://site/ghost", signed_by=deployment.authority, curve=ec.SECP384R1())
    refused_as_unknown(deployment, hub, other)


def refused_as_unknown(deployment: Deployment, hub: Process, credentials: TlsCredentials) -> None:
    with pytest.raises(NotKnown, match="the certificate of this connection"):
        say(deployment.address, credentials)
    hub.wait_for("site refused", code="UNAUTHENTICATED", reason="the certificate of this connection")
    with pytest.raises(NotKnown, match="the certificate of this connection"):
        list_sites(deployment.address, lambda: open_channel(deployment.address, credentials))
    hub.wait_for("operator refused", code="UNAUTHENTICATED", reason="the certificate of this connection")


@pytest.mark.promise("Only certificates of the authority are let in, over TLS 1.3, each under its own name.")
def test_an_operator_is_not_a_site(deployment: Deployment, hub: Process) -> None:
    with pytest.raises(NotAllowed, match="that of operator olga: this call is for sites"):
        say(deployment.address, credentials_of(deployment, "operator"), "north")
    hub.wait_for("site refused", code="PERMISSION_DENIED", reason="operator olga")


@pytest.mark.promise("Only certificates of the authority are let in, over TLS 1.3, each under its own name.")
@pytest.mark.parametrize("rpc", OPERATOR_RPCS)
def test_a_site_is_not_an_operator(deployment: Deployment, hub: Process, rpc: str) -> None:
    method = OPERATOR_RPCS[rpc]
    request = GetMessageClass(method.input_type)()
    address = deployment.address

    async def ask() -> None:
        async with calling(address, open_channel(address, credentials_of(deployment, "north"))) as channel:
            call = getattr(operator_pb2_grpc.OperatorServiceStub(channel), rpc)(request, timeout=PATIENCE_S)
            await (call.read() if method.server_streaming else call)

    with pytest.raises(NotAllowed, match="that of site north: this call is for operators"):
        in_time(ask())
    hub.wait_for("operator refused", code="PERMISSION_DENIED", reason="site north")


def test_the_operators_service_has_eight_doors() -> None:
    assert len(OPERATOR_RPCS) == 8


def test_what_the_coordinator_answers_comes_out_as_it_was_said(deployment: Deployment, hub: Process) -> None:
    request = operator_pb2.GetJobRequest(job="größer\nals")
    with pytest.raises(UnknownJob, match=r"no job is named 'größer\\nals'"):
        deployment.ask(lambda stub, timeout: stub.GetJob(request, timeout=timeout))
    hub.wait_for("operator refused", code="NOT_FOUND", reason="größer")


# Denied keys.


@pytest.mark.promise("Only certificates of the authority are let in, over TLS 1.3, each under its own name.")
def test_a_denied_key_is_refused_at_once_and_let_in_again_without_a_restart(
    deployment: Deployment, hub: Process, authority: Authority
) -> None:
    ghost = forge(authority, "ce://site/ghost", signed_by=authority)
    assert say(deployment.address, ghost).coordinator == "hub"
    with denied(deployment, ghost):
        with pytest.raises(NotAllowed, match="the key of site ghost is on the coordinator's deny list"):
            say(deployment.address, ghost)
        hub.wait_for("site refused", code="PERMISSION_DENIED", reason="deny list")
        renewed = forge(authority, "ce://site/ghost", signed_by=authority)
        assert say(deployment.address, renewed).coordinator == "hub"
    assert say(deployment.address, ghost).coordinator == "hub"


def test_a_denied_site_knocks_less_and_less_often(deployment: Deployment, hub: Process) -> None:
    with denied(deployment, credentials_of(deployment, "west")):
        if "west" in deployment.processes:
            deployment.processes["west"].stop()
        begin = time.monotonic()
        west = deployment.start("west")
        west.wait_for(NOT_CONNECTED, 20.0, reason="deny list", after_s=4)
        waited = time.monotonic() - begin
        west.stop(signal.SIGTERM)
    del deployment.processes["west"]
    pauses = [event["after_s"] for event in west.events if event["event"] == NOT_CONNECTED]
    assert pauses == [1, 2, 4]
    assert waited > 0.7 * (1 + 2)
    hub.wait_for("site refused", reason="the key of site west is on the coordinator's deny list")
    assert len([event for event in hub.events if event["event"] == "site refused"]) == len(pauses)


def test_a_key_that_is_denied_while_its_stream_is_open_is_refused_at_its_next_frame(
    deployment: Deployment, hub: Process, authority: Authority
) -> None:
    ghost = forge(authority, "ce://site/ghost", signed_by=authority)
    frame = site_pb2.SiteFrame(ready=site_pb2.Ready(job="of-long-ago", epoch=1))

    async def speak_twice() -> None:
        async with calling(deployment.address, open_channel(deployment.address, ghost)) as channel:
            call = site_pb2_grpc.SiteServiceStub(channel).Connect()
            await say_hello(call, deployment.address, hello_frame("ghost"))
            await call.write(frame)
            assert (await call.read()).ended.job == "of-long-ago"
            with denied(deployment, ghost):
                # The file is looked at at most every few milliseconds, so that one more frame may slip through.
                await call.write(frame)
                while await call.read() is not grpc.aio.EOF:
                    await call.write(frame)
            raise await ended(call, deployment.address)

    with pytest.raises(NotAllowed, match="the key of site ghost is on the coordinator's deny list"):
        in_time(speak_twice())
    hub.wait_for("site refused", code="PERMISSION_DENIED", reason="deny list")
    hub.wait_for("site disconnected", site="ghost", reason="deny list")


def test_an_operator_who_is_denied_while_watching_sees_no_more(
    deployment: Deployment, hub: Process, authority: Authority
) -> None:
    otto = forge(authority, "ce://operator/otto", signed_by=authority)
    # Its site has a certificate, but nobody runs it: the job waits.
    absent = make_sites(deployment.directory, {"absent": deployment.directory / "none.csv"}, authority=authority)
    deployment.submit(job("waiting", *absent))

    async def watch() -> None:
        async with calling(deployment.address, open_channel(deployment.address, otto)) as channel:
            stub = operator_pb2_grpc.OperatorServiceStub(channel)
            call = stub.WatchJob(operator_pb2.WatchJobRequest(job="waiting"), timeout=PATIENCE_S)
            assert (await call.read()).state == "enrolling"
            with denied(deployment, otto):
                while await call.read() is not grpc.aio.EOF:
                    pass

    with pytest.raises(NotAllowed, match="the key of operator otto is on the coordinator's deny list"):
        in_time(watch())
    hub.wait_for("operator refused", code="PERMISSION_DENIED", reason="operator otto")
    request = operator_pb2.CancelJobRequest(job="waiting")
    assert deployment.ask(lambda stub, timeout: stub.CancelJob(request, timeout=timeout)).state == "cancelled"


def test_a_job_waits_while_a_site_is_denied_and_goes_on_when_it_is_let_in(deployment: Deployment, hub: Process) -> None:
    south = deployment.processes["south"]
    south.events.clear()
    with denied(deployment, credentials_of(deployment, "south")):
        deployment.submit(job("interrupted", "north", "south"))
        hub.wait_for("site refused", code="PERMISSION_DENIED", reason="key of site south")
        south.wait_for(NOT_CONNECTED, level="error", reason="key of site south is on the coordinator's deny list")
        assert "south" not in connected(deployment)
    south.wait_for("connected")
    status = deployment.wait("interrupted")
    assert (status.state, status.reason) == ("done", "")


# Between sites.


def job(name: str, *sites: str) -> ce.Job:
    return ce.Job(name=name, clusters=2, restarts=1, max_iterations=5, sites=sites, privacy="plain")


@pytest.fixture(name="pins")
def _pins(deployment: Deployment) -> Iterator[Peers]:
    """North's pins, which are put back; west runs, and trusts north."""
    path = deployment.sites["north"].peers
    before = path.read_bytes()
    if "west" not in deployment.processes:
        north = parse_certificate(credentials_of(deployment, "north").certificate)
        Peers.read(deployment.directory / "west" / "peers.toml").trust("north", fingerprint(north))
        deployment.allow("north", "west")
        deployment.start("west").wait_for("connected")
    yield Peers.read(path)
    path.write_bytes(before)


def refused_by_north(deployment: Deployment, hub: Process, name: str, rule: str) -> str:
    """Run a job of north and west that north refuses; returns the reason that the operator reads."""
    north = deployment.processes["north"]
    north.events.clear()
    status = deployment.run(job(name, "north", "west"))
    assert (status.state, status.rule, status.exit_code) == ("failed", rule, 6)
    hub.wait_for("site refuses job", job=name, site="north", rule=rule)
    refused = north.wait_for("job refused", job=name, error="Refused")
    assert "west" in refused["message"]
    assert rule in refused["message"]
    assert not (deployment.directory / "west" / "results" / name).exists()
    return status.reason


@pytest.mark.promise("A site believes only peers whose keys it has pinned, and only what they have signed.")
def test_a_site_refuses_a_peer_that_it_has_not_pinned(deployment: Deployment, hub: Process, pins: Peers) -> None:
    assert pins.pinned("west") is None
    reason = refused_by_north(deployment, hub, "unpinned", UNPINNED)
    assert reason.startswith("north: west is not among the peers that this site trusts")


@pytest.mark.promise("A site believes only peers whose keys it has pinned, and only what they have signed.")
def test_a_site_refuses_a_peer_whose_key_is_not_the_pinned_one(
    deployment: Deployment, hub: Process, pins: Peers, authority: Authority
) -> None:
    # What an operator could do: a valid certificate with the name of west, for a key that west never had.
    met = forge(authority, "ce://site/west", signed_by=authority)
    pins.trust("west", fingerprint(parse_certificate(met.certificate)))
    reason = refused_by_north(deployment, hub, "changed", CHANGED)
    assert reason.startswith("north: west has another key than the one that this site trusts")

    # The same daemons, without a restart, once a person has compared the key.
    own = credentials_of(deployment, "west")
    pins.trust("west", fingerprint(parse_certificate(own.certificate)), replace=True)
    assert deployment.run(job("compared", "north", "west")).state == "done"


# What a site and an operator's command refuse.


def test_a_site_talks_to_nobody_but_its_coordinator(
    deployment: Deployment, authority: Authority, foreign: Authority, tmp_path: Path
) -> None:
    hub = ("ce://coordinator/hub",)
    dns = (COORDINATOR_SERVER_NAME,)
    of_another = forge(authority, *hub, dns=dns, usage=SERVER, signed_by=foreign)
    outdated = forge(authority, *hub, dns=dns, usage=SERVER, signed_by=authority)
    posing = credentials_of(deployment, "west")
    with FalseServer(tmp_path) as server:
        server.show(of_another)
        make_sites(tmp_path, {"lone": tmp_path / "none.csv"}, authority=authority, coordinator=server.address)
        lone = Process("ce_client.cli.main", ["run", "--config", str(tmp_path / "lone")])
        try:
            lone.wait_for(NOT_CONNECTED, level="error", reason=f"{server.address} shows is not valid here")
            server.show(outdated, ssl.TLSVersion.TLSv1_2)
            lone.wait_for(NOT_CONNECTED, level="error", reason=f"{server.address} does not speak TLS 1.3")
            server.show(posing)
            lone.wait_for(NOT_CONNECTED, level="error", reason=f"what answers at {server.address} is not a coordinator")
        finally:
            lone.stop()
        assert server.heard == []


@pytest.mark.parametrize(
    ("show", "error", "sentence"),
    [
        pytest.param(
            lambda ours, theirs: forge(ours, dns=["ce-coordinator"], usage=SERVER, signed_by=theirs),
            ConfigError,
            "is ca.pem the one of this coordinator",
            id="of another authority",
        ),
        pytest.param(
            lambda ours, theirs: forge(
                ours, dns=["ce-coordinator"], usage=SERVER, signed_by=ours, from_day=-9, to_day=-1
            ),
            ConfigError,
            "is not valid here",
            id="expired",
        ),
        pytest.param(
            lambda ours, theirs: forge(ours, "ce://site/south", signed_by=ours),
            ConfigError,
            "is not a coordinator",
            id="a site",
        ),
        pytest.param(
            lambda ours, theirs: forge(ours, dns=["elsewhere"], usage=SERVER, signed_by=ours),
            ConfigError,
            "is not a coordinator",
            id="another server",
        ),
        pytest.param(None, ConfigError, "does not speak TLS", id="no TLS"),
    ],
)
def test_a_caller_is_told_why_it_does_not_believe_a_server(
    deployment: Deployment,
    foreign: Authority,
    tmp_path: Path,
    show: Callable[[Authority, Authority], TlsCredentials] | None,
    error: type[CeError],
    sentence: str,
) -> None:
    with FalseServer(tmp_path) as server:
        if show is not None:
            server.show(show(deployment.authority, foreign))
        with pytest.raises(error, match=rf"(?s){server.address}.*{sentence}|{sentence}.*{server.address}"):
            say(server.address, credentials_of(deployment, "north"), "north")
        assert server.heard == []


def test_a_caller_is_told_that_nothing_listens(deployment: Deployment) -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(Unreachable, match=f"nothing listens at {address}"):
        say(address, credentials_of(deployment, "north"), "north")


@pytest.mark.parametrize(
    ("bring", "sentence"),
    [
        pytest.param(
            lambda ours, theirs: "south", "is the certificate of site south, not of site north", id="another's"
        ),
        pytest.param(
            lambda ours, theirs: forge(ours, "ce://site/north", signed_by=ours, from_day=-9, to_day=-1),
            "expired on",
            id="expired",
        ),
        pytest.param(
            lambda ours, theirs: forge(ours, "ce://site/north", signed_by=theirs),
            "was not signed by this CA",
            id="of another authority",
        ),
        pytest.param(
            lambda ours, theirs: forge(ours, "ce://site/north"), "was not signed by this CA", id="self-signed"
        ),
        pytest.param(lambda ours, theirs: forge(ours, signed_by=ours), "names 0 identities", id="nameless"),
    ],
)
def test_a_site_does_not_begin_with_a_certificate_that_would_be_refused(
    deployment: Deployment, foreign: Authority, tmp_path: Path, bring: Callable[..., Any], sentence: str
) -> None:
    (north,) = make_sites(tmp_path, {"north": tmp_path / "none.csv"}).values()
    shown = bring(deployment.authority, foreign)
    credentials = credentials_of(deployment, shown) if isinstance(shown, str) else shown
    north.key.write_bytes(credentials.key)
    north.certificate.write_bytes(credentials.certificate)
    north.authority.write_bytes(credentials.authority)
    with pytest.raises(ConfigError, match=sentence):
        SiteFiles.open(ClientSettings.read(tmp_path / "north" / "client.toml"))


# Who may ask how the coordinator is.


@pytest.mark.parametrize("who", ["north", "operator", "somebody without a name"])
def test_everybody_with_a_valid_certificate_may_ask_for_health_and_services(
    deployment: Deployment, authority: Authority, who: str
) -> None:
    named = who in ("north", "operator")
    credentials = credentials_of(deployment, who) if named else forge(authority, signed_by=authority)

    async def ask() -> tuple[int, set[str]]:
        async with calling(deployment.address, open_channel(deployment.address, credentials)) as channel:
            health = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=PATIENCE_S
            )
            asked = reflection_pb2.ServerReflectionRequest(list_services="")
            call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(timeout=PATIENCE_S)
            await call.write(asked)
            answer = await call.read()
            await call.done_writing()
            return health.status, {service.name for service in answer.list_services_response.service}

    assert in_time(ask()) == (
        health_pb2.HealthCheckResponse.SERVING,
        {
            "ce.v1.SiteService",
            "ce.v1.OperatorService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        },
    )
