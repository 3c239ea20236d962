"""ce-coordinator serve and check: run the daemon; check whether it could run."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from ce.cli.entry import daemon_level, daemon_options
from ce.cli.output import format_option
from ce.cli.preflight import Checks, check_packages, check_writable
from ce.errors import ConfigError
from ce.identity.certificates import identity_of, read_certificate
from ce.kernels.warmup import warm_daemon
from ce.service.allocator import manage_memory
from ce.service.blas_threads import use_one_blas_thread
from ce.service.core_dumps import forbid_core_dumps
from ce.service.logs import configure, relay_native_stderr
from ce_coordinator.cli.options import config_option, read_config
from ce_coordinator.config import CoordinatorSettings
from ce_coordinator.store.sqlite import SqliteStore

log = logging.getLogger("ce_coordinator")

#: `check` reports certificates that expire within this time.
RENEW = timedelta(days=30)


@click.command(short_help="Run the coordinator until SIGTERM or Ctrl-C.")
@config_option
@daemon_options
def serve(config: Path, log_level: str | None, format_: str | None) -> None:
    """Run the coordinator until SIGTERM or Ctrl-C.

    It checkpoints running jobs before it stops; they go on when it is started again, also after it was killed.

    \b
    Examples:
      ce-coordinator serve --config /srv/ce
      ce-coordinator serve --config /srv/ce --format json --log-level debug
      CE_COORDINATOR_LISTEN=127.0.0.1:9000 ce-coordinator serve --config /srv/ce
    """
    settings = read_config(config)
    configure(daemon_level(log_level, settings.log.level), format=format_ or settings.log.format)  # type: ignore[arg-type]
    forbid_core_dumps()
    manage_memory()
    use_one_blas_thread()
    # Only at this level does the C library log why it refuses a handshake. It reads this when it is first used.
    os.environ["GRPC_VERBOSITY"] = "INFO"
    from ce_coordinator.daemon import serve as run

    with relay_native_stderr():
        warm_daemon(settings.store.parent, log.info)
        gc.freeze()  # modules are not searched for garbage in every exchange
        asyncio.run(run(settings))
    log.info("stopped")  # after the relay has passed on every line that the C library wrote before


@click.command(short_help="Check whether the coordinator could run.")
@config_option
@format_option
def check(config: Path, format_: str) -> None:
    """Check whether the coordinator could run: one line per check, ok or what to do.

    Ends with the exit code of the first check that fails. Changes nothing.

    \b
    Examples:
      ce-coordinator check --config /srv/ce
      ce-coordinator check --config /srv/ce --format json
    """
    checks = Checks()
    settings = checks.run("configuration", lambda: read_config(config), f"{config}: every key is known")
    if settings is not None:
        _check_all(settings, checks)
    check_packages(checks)
    checks.finish(format_)


def _check_all(settings: CoordinatorSettings, checks: Checks) -> None:
    from ce.identity.denied import DenyList
    from ce_coordinator.cli.operator_call import open_credentials as operator_credentials
    from ce_coordinator.daemon import issued_sites, open_credentials

    checks.run("certificate", lambda: open_credentials(settings), f"{settings.certificate} and its key are valid")
    operator = checks.run(
        "operator", lambda: operator_credentials(settings), f"{settings.operator.certificate} and its key are valid"
    )
    checks.run("expiry", lambda: _not_soon(settings), "all certificates have more than 30 days left")
    checks.run("denied", lambda: DenyList(settings.denied), f"{settings.denied} can be read, where there is one")
    sites = checks.run("sites", lambda: issued_sites(settings.authority), None)
    if sites is not None:
        checks.note("sites", f"{len(sites)} signed: {', '.join(sites) or 'none yet (ce-coordinator sign)'}")
    _check_place(settings, checks, can_call=operator is not None)


def _check_place(settings: CoordinatorSettings, checks: Checks, *, can_call: bool) -> None:
    """The address and the store are either free, or those of a coordinator that is running."""
    from ce_coordinator.daemon import check_free

    try:
        check_free(settings.listen)
    except ConfigError as error:
        if not can_call:
            checks.fail("listen", error)
            return
        answered = checks.run("call", lambda: _call(settings), "the operator's certificate is accepted")
        if answered is None:
            checks.fail("listen", error)
        else:
            checks.note("listen", f"{settings.listen}: a coordinator is running there")
        return
    checks.note("listen", f"{settings.listen} is free")
    if settings.metrics:
        checks.run("metrics", lambda: check_free(settings.metrics, "metrics"), f"{settings.metrics} is free")
    checks.run("store", lambda: _check_store(settings.store), f"{settings.store} can be used")


def _call(settings: CoordinatorSettings) -> object:
    from ce_coordinator.cli.operator_call import call
    from ce_proto.v1 import operator_pb2 as pb

    return call(settings, lambda stub, timeout: stub.ListSites(pb.ListSitesRequest(), timeout=timeout))


def _check_store(path: Path) -> None:
    # Not created here: it would belong to the user who checks, not to the user who serves.
    if path.exists():
        SqliteStore(path).close()
    else:
        check_writable(path.parent)


def _not_soon(settings: CoordinatorSettings) -> None:
    """Raises ConfigError when a certificate expires soon. Sites whose certificates have expired have left: no error."""
    authority = settings.authority / "ca.pem"
    paths = [authority, settings.certificate, settings.operator.certificate]
    paths += sorted((settings.authority / "issued").glob("site-*.pem"))
    ending = []
    for path in filter(Path.exists, paths):  # missing files are reported by other checks
        certificate = read_certificate(path)
        whose = "the authority" if path == authority else str(identity_of(certificate, str(path)))
        left = certificate.not_valid_after_utc - datetime.now(UTC)
        if timedelta(0) < left < RENEW:
            ending.append(f"that of {whose} in {left.days} days")
    if ending:
        raise ConfigError(f"certificates expire soon: {', '.join(ending)}; sign new ones, or renew your own")
