"""`ce-coordinator serve`: the machine, its store and its services, from start to a clean stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from ce import __version__
from ce.errors import ConfigError, Unreachable
from ce.identity.certificates import fingerprint, identity_of, read_certificate
from ce.identity.credentials import Credentials
from ce.identity.denied import DenyList
from ce.service.checkpoints import CheckpointFiles, local_key
from ce.service.logs import fields
from ce.service.metrics_http import MetricsServer
from ce.transport.byte_counters import CountingInterceptor
from ce.transport.tls import TlsCredentials, make_server
from ce_coordinator.config import PASSPHRASE_VARIABLE, CoordinatorSettings
from ce_coordinator.core.machine import Machine
from ce_coordinator.service.authorisation import Authorisation
from ce_coordinator.service.call_limits import CallLimits
from ce_coordinator.service.operator_service import OperatorService
from ce_coordinator.service.runner import Runner
from ce_coordinator.service.site_service import SiteService
from ce_coordinator.store.relay_files import RelayFiles
from ce_coordinator.store.sqlite import SqliteStore
from ce_proto.v1 import operator_pb2, operator_pb2_grpc, site_pb2, site_pb2_grpc

log = logging.getLogger("ce_coordinator")

#: Seconds within which open calls may end when the daemon stops.
GRACE_S = 1.0


def open_credentials(settings: CoordinatorSettings, now: datetime | None = None) -> tuple[str, TlsCredentials]:
    """The coordinator's name, key and certificate. Raises ConfigError with what to do."""
    credentials = Credentials.open(
        settings.key,
        settings.certificate,
        settings.authority / "ca.pem",
        role="coordinator",
        passphrase_variable=PASSPHRASE_VARIABLE,
        now=now,
    )
    return credentials.identity.name, TlsCredentials.of(credentials)


def open_checkpoints(settings: CoordinatorSettings) -> CheckpointFiles:
    """The checkpoint files, encrypted under a key of this machine. Raises ConfigError."""
    directory, limits = settings.checkpoints.directory, settings.checkpoints
    try:
        return CheckpointFiles(directory, local_key(directory / "key"), limits.largest, limits.least_free)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{directory}: cannot be used: checkpoints.directory is one that the coordinator may write to"
        ) from error


def issued_sites(authority: Path) -> dict[str, str]:
    """Sites that have a certificate, and the fingerprints of their keys; needs no private key of the authority."""
    found: dict[str, str] = {}
    for path in sorted((authority / "issued").glob("site-*.pem")):
        certificate = read_certificate(path)
        found[identity_of(certificate, str(path)).name] = fingerprint(certificate)
    return found


def check_free(address: str, key: str = "listen") -> None:
    """Raises ConfigError, with the reason, unless this machine could listen there."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            probe.listen(1)
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {address}: {error.strerror}: stop what is there, or change {key} in the configuration"
        ) from error


def raise_open_files() -> None:
    """Allow as many open files as the system permits: each connection takes one, before its certificate is checked."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def serve(settings: CoordinatorSettings, on_ready: Callable[[int], None] = lambda port: None) -> None:
    """Serve until SIGTERM or SIGINT. `on_ready` is called with the port. The caller logs that it has stopped."""
    raise_open_files()
    name, credentials = open_credentials(settings)
    access = Authorisation(DenyList(settings.denied))
    store = SqliteStore(settings.store)
    try:
        checkpoints = open_checkpoints(settings)
        machine = Machine(
            name,
            __version__,
            settings.limits,
            settings.min_cluster,
            store.jobs(),
            store.sites(),
            settings.checkpoints.interval,
            store.job,
            RelayFiles(settings.store.parent, settings.checkpoints.least_free),
        )
        machine.know(issued_sites(settings.authority))
        runner = Runner(machine, store, checkpoints, settings.threads)
        server, port, health = _server(settings, credentials, runner, access)
        metrics_server = MetricsServer(runner.metrics.registry.text, lambda: _health(runner))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, runner.stopping.set)
        if settings.metrics:
            await metrics_server.start(settings.metrics)
        await server.start()
        runner.start()
        log.info("listening", extra=fields(address=settings.listen, port=port, coordinator=name))
        on_ready(port)
        await runner.stopping.wait()
        log.info("stopping")
        await health.enter_graceful_shutdown()
        await runner.drain()
        await runner.stop(Unreachable("the coordinator is stopping: connect again"))
        await server.stop(GRACE_S)
        await metrics_server.close()
        await _end_calls()
    finally:
        store.close()


async def _end_calls() -> None:
    """Wait for the handlers of calls that were cut off, at most GRACE_S seconds.

    A gRPC server that has stopped has ended its calls, but not their handlers. A handler that is left when the event
    loop ends is cancelled, and gRPC then writes a traceback.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GRACE_S):
            while left := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(left)


def _health(runner: Runner) -> tuple[bool, str]:
    return (False, "stopping") if runner.stopping.is_set() else (True, "ok")


def _server(
    settings: CoordinatorSettings, credentials: TlsCredentials, runner: Runner, access: Authorisation
) -> tuple[Any, int, Any]:
    check_free(settings.listen)  # gRPC itself gives no reason
    try:
        limits = settings.limits
        counting = CountingInterceptor(runner.metrics.sent, runner.metrics.received)
        # More than may be open, so that CallLimits can refuse the others with a reason.
        most = 2 * limits.streams_per_certificate
        server, port = make_server(credentials, settings.listen, [counting, CallLimits(limits)], most_streams=most)
    except OSError as error:
        raise ConfigError(f"cannot listen at {settings.listen}: change listen in the configuration") from error
    site_pb2_grpc.add_SiteServiceServicer_to_server(SiteService(runner, access), server)
    operators = OperatorService(runner, access, lambda: issued_sites(settings.authority))
    operator_pb2_grpc.add_OperatorServiceServicer_to_server(operators, server)
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    services = [
        site_pb2.DESCRIPTOR.services_by_name["SiteService"].full_name,
        operator_pb2.DESCRIPTOR.services_by_name["OperatorService"].full_name,
        health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
        reflection.SERVICE_NAME,
    ]
    reflection.enable_server_reflection(services, server)
    return server, port, health
