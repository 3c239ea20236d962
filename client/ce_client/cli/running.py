"""ce-client run and check: the daemon, and whether it could take part."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from ce.cli.checking import Checks
from ce.cli.options import format_option
from ce.errors import ConfigError, InputError
from ce.logs import configure, relay_native_stderr
from ce_client.cli.options import config_option, read_config
from ce_client.config import ClientSettings
from ce_client.resources import Resources

#: A certificate that ends sooner than this is worth a word.
RENEW = timedelta(days=30)
_CLOCK_SLACK_S = 60.0


@click.command()
@config_option
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Instead of log.level.")
def run(config: Path, log_level: str | None) -> None:
    """Run this site's daemon until it is told to stop (SIGTERM, Ctrl-C).

    It dials the coordinator, and again whenever the connection breaks. Nobody can connect to it.

    \b
    Examples:
      ce-client run --config /srv/ce-site
      CE_CLIENT_KEY_PASSPHRASE=... ce-client run --config /srv/ce-site
    """
    settings = read_config(config)
    configure(log_level or settings.log.level, format=settings.log.format)  # type: ignore[arg-type]
    _use_proxy(settings)
    resources = Resources.open(settings)
    with relay_native_stderr():
        busy = asyncio.run(_run(resources))
    sys.stdout.flush()
    if busy:
        # A computation may take minutes yet, and what it computes has nowhere to go.
        os._exit(0)


async def _run(resources: Resources) -> bool:
    from ce_client.daemon import Daemon

    daemon = Daemon(resources)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, daemon.stop)
    await daemon.run()
    return daemon.busy


@click.command()
@config_option
@format_option
def check(config: Path, format_: str) -> None:
    """Whether this site could take part in a job: one line for each thing, ok or what to do.

    \b
    Examples:
      ce-client check --config /srv/ce-site
      ce-client check --config /srv/ce-site --format json
    """
    checks = Checks()
    settings = checks.run("configuration", lambda: read_config(config), "every key is known")
    if settings is not None:
        _check_all(settings, checks)
    checks.finish(format_)


def _check_all(settings: ClientSettings, checks: Checks) -> None:
    resources = checks.run("certificate", lambda: Resources.open(settings), f"site {settings.name}, key and CA fit")
    if resources is not None:
        checks.run("expiry", lambda: _not_soon(resources), "more than 30 days left")
        policy = checks.run("policy", resources.policy, None)
        if policy is not None:
            checks.note("policy", f'sends sums as "{policy.weakest_privacy}" or better, to {policy.min_sites} sites or more')
        peers = checks.run("peers", resources.peers, None)
        if peers is not None:
            names = ", ".join(peers.pins) or "none yet: ce-client trust NAME SHA256:..."
            checks.note("peers", f"trusts {names}")
        table = checks.run("labels", resources.labels, None)
        if table is not None:
            checks.note(
                "labels",
                f"{table.n_objects:,} objects, {len(table.clusterings)} clusterings, {len(table.classifiers)} classifiers",
            )
    for name, directory in (("results", settings.results), ("state", settings.state)):
        checks.run(name, lambda directory=directory: _writable(directory), f"{directory} can be written")  # type: ignore[misc]
    if resources is not None:
        _use_proxy(settings)
        apart = checks.run("coordinator", lambda: asyncio.run(_call(resources)), None)
        if apart is not None:
            checks.note("coordinator", f"{settings.coordinator} lets this site in")
            checks.run("clock", lambda: _near(apart), "agrees with the coordinator's")


async def _call(resources: Resources) -> float:
    """Say Hello to the coordinator, and goodbye. How far apart the clocks are, in seconds."""
    from ce_client.greeting import greet

    return await greet(resources) - time.time()


def _near(apart: float) -> None:
    if abs(apart) > _CLOCK_SLACK_S:
        raise ConfigError(f"this machine's clock is {abs(apart):.0f} s off the coordinator's: set it (NTP)")


def _not_soon(resources: Resources) -> None:
    left = resources.certificate.not_valid_after_utc - datetime.now(UTC)
    if left < RENEW:
        raise ConfigError(f"the certificate ends in {left.days} days: ask the operator to sign the request again")


def _writable(directory: Path) -> None:
    probe = directory / f".{os.getpid()}.probe"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"{directory}: cannot be written: {error.strerror}") from error


def _use_proxy(settings: ClientSettings) -> None:
    if settings.proxy:
        os.environ["grpc_proxy"] = settings.proxy
