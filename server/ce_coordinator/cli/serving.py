"""ce-coordinator serve and check: the daemon, and whether it could run."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from ce.cli.checking import Checks
from ce.cli.options import format_option
from ce.errors import CeError, ConfigError, Unreachable
from ce.identity.certificates import read_certificate
from ce.logs import configure, relay_native_stderr
from ce_coordinator.cli.options import config_option, read_config
from ce_coordinator.config import CoordinatorSettings
from ce_coordinator.store.sqlite import SqliteStore

#: A certificate that ends sooner than this is worth a word.
RENEW = timedelta(days=30)


@click.command()
@config_option
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Instead of log.level.")
def serve(config: Path, log_level: str | None) -> None:
    """Run the coordinator until it is told to stop (SIGTERM, Ctrl-C).

    \b
    Examples:
      ce-coordinator serve --config /srv/ce
      CE_COORDINATOR_LISTEN=127.0.0.1:9000 ce-coordinator serve --config /srv/ce
    """
    settings = read_config(config)
    configure(log_level or settings.log.level, format=settings.log.format)  # type: ignore[arg-type]
    # The C library says only here why it refuses a handshake. It reads this when it is first imported.
    os.environ["GRPC_VERBOSITY"] = "INFO"
    from ce_coordinator.daemon import serve as run

    with relay_native_stderr():
        asyncio.run(run(settings))


@click.command()
@config_option
@format_option
def check(config: Path, format_: str) -> None:
    """Whether the coordinator could run: one line for each thing, ok or what to do.

    \b
    Examples:
      ce-coordinator check --config /srv/ce
      ce-coordinator check --config /srv/ce --format json
    """
    checks = Checks()
    settings = checks.run("configuration", lambda: read_config(config), "every key is known")
    if settings is not None:
        _check_all(settings, checks)
    checks.finish(format_)


def _check_all(settings: CoordinatorSettings, checks: Checks) -> None:
    from ce_coordinator.cli.calling import open_credentials as operator_credentials
    from ce_coordinator.daemon import issued_sites, open_credentials

    checks.run("certificate", lambda: open_credentials(settings), f"{settings.certificate} and its key are valid")
    checks.run("expiry", lambda: _not_soon(settings.certificate), "more than 30 days left")
    checks.run("operator", lambda: operator_credentials(settings), f"{settings.operator.certificate} is valid")
    sites = checks.run("sites", lambda: issued_sites(settings.authority), None)
    if sites is not None:
        checks.note("sites", f"{len(sites)} signed: {', '.join(sites) or 'none yet (ce-coordinator sign)'}")
    running = _is_running(settings)
    if running:
        checks.note("listen", f"{settings.listen}: a coordinator is running there")
        checks.run("call", _caller(settings), "the operator's certificate is let in")
    else:
        checks.run("listen", lambda: _listen(settings.listen), f"{settings.listen} is free")
        checks.run("store", lambda: SqliteStore(settings.store).close(), f"{settings.store} can be used")


def _caller(settings: CoordinatorSettings) -> Callable[[], object]:
    from ce_coordinator.cli.calling import call
    from ce_proto.v1 import operator_pb2 as pb

    return lambda: call(settings, lambda stub, timeout: stub.ListSites(pb.ListSitesRequest(), timeout=timeout))


def _is_running(settings: CoordinatorSettings) -> bool:
    try:
        _caller(settings)()
    except Unreachable:
        return False
    except CeError:
        return True
    return True


def _not_soon(path: Path) -> None:
    left = read_certificate(path).not_valid_after_utc - datetime.now(UTC)
    if left < RENEW:
        raise ConfigError(f"{path} ends in {left.days} days: sign a new one")


def _listen(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        raise ConfigError(f"cannot listen at {address}: {error.strerror}: change listen, or stop what is there") from error
