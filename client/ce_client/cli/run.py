"""ce-client run and check: start the daemon; check that it could take part in a job."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from ce.cli.entry import daemon_level, daemon_options, run_async
from ce.cli.output import format_option
from ce.cli.preflight import Checks, check_packages, check_writable
from ce.declarations.registry import find_model
from ce.errors import ConfigError, InputError
from ce.identity.peers import Peers
from ce.kernels.warmup import warm_daemon
from ce.labels import LabelTable
from ce.labels.randomised import Randomisation, randomise
from ce.policy import Policy
from ce.service.allocator import manage_memory
from ce.service.blas_threads import use_one_blas_thread
from ce.service.core_dumps import forbid_core_dumps
from ce.service.logs import configure, relay_native_stderr
from ce_client.cli.options import config_option, read_config
from ce_client.config import ClientSettings
from ce_client.daemon.single_instance import WAKE, sole_daemon
from ce_client.daemon.site_files import SiteFiles, read_labels
from ce_client.state.disclosures import DIRECTORY as DISCLOSURES
from ce_client.state.disclosures import Disclosures
from ce_client.state.ledger import FILE_NAME as LEDGER
from ce_client.state.ledger import entries, verify
from ce_client.state.randomisations import Randomisations, draws_of, epsilon_sentence
from ce_client.state.releases.accounts import epsilon_words
from ce_client.state.releases.database import FILE_NAME as RELEASES
from ce_client.state.releases.store import Releases

log = logging.getLogger("ce_client")

#: `check` reports a certificate that ends sooner than this.
RENEW = timedelta(days=30)
_CLOCK_SLACK_S = 60.0


@click.command(short_help="Run this site's daemon until it is stopped.")
@config_option
@daemon_options
def run(config: Path, log_level: str | None, format_: str | None) -> None:
    """Run this site's daemon until it is stopped (SIGTERM, Ctrl-C).

    It connects to the coordinator, and again whenever the connection breaks. It listens on no port, unless `metrics` is
    set. Labels, policy and peers are read anew for every job.

    \b
    Examples:
      ce-client run --config /srv/ce-site
      ce-client run --config /srv/ce-site --format json --log-level debug
      CE_CLIENT_KEY_PASSPHRASE=... ce-client run --config /srv/ce-site
    """
    settings = read_config(config)
    configure(daemon_level(log_level, settings.log.level), format=format_ or settings.log.format)  # type: ignore[arg-type]
    forbid_core_dumps()
    manage_memory()
    use_one_blas_thread()
    _use_proxy(settings)
    site_files = SiteFiles.open(settings)
    # Errors in these files are reported now rather than when a job is offered.
    site_files.policy()
    site_files.peers()
    check_writable(settings.results)
    with sole_daemon(settings.state), relay_native_stderr():
        warm_daemon(settings.state, log.info)
        busy = asyncio.run(_run(site_files))
    sys.stdout.flush()
    if busy:
        # A computation may take minutes more, and its result can no longer be sent.
        os._exit(0)


async def _run(site_files: SiteFiles) -> bool:
    from ce_client.daemon.daemon import Daemon

    daemon = Daemon(site_files)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.stop)
    loop.add_signal_handler(WAKE, daemon.reconsider)
    gc.freeze()  # modules are not searched for garbage in every exchange
    await daemon.run()
    # The loop removes its handlers when it ends; without one, the signal would end the process before its last lines.
    loop.remove_signal_handler(WAKE)
    signal.signal(WAKE, signal.SIG_IGN)
    return daemon.busy


@click.command(short_help="Check that this site could take part in a job.")
@config_option
@format_option
def check(config: Path, format_: str) -> None:
    """Check that this site could take part in a job: one line for each check, ok or what to do.

    Ends with the exit code of the first check that fails. Changes nothing, and does not disturb a running daemon.

    \b
    Examples:
      ce-client check --config /srv/ce-site
      ce-client check --config /srv/ce-site --format json
    """
    checks = Checks()
    settings = checks.run("configuration", lambda: read_config(config), f"{config}: every key is known")
    if settings is not None:
        _check_all(settings, checks)
    check_packages(checks)
    checks.finish(format_)


def _check_all(settings: ClientSettings, checks: Checks) -> None:
    site_files = checks.run(
        "certificate", lambda: SiteFiles.open(settings), f"of site {settings.name}; key and ca.pem go with it"
    )
    if site_files is not None:
        checks.run("expiry", lambda: _check_expiry(site_files), "more than 30 days left")
    policy = checks.run("policy", lambda: Policy.read(settings.policy), None)
    if policy is not None:
        privacy, least = policy.weakest_privacy, policy.min_sites
        checks.note("policy", f'sends sums as "{privacy}" or better, in jobs of {least} sites or more')
        checks.note("rules", _rules(policy))
    peers = checks.run("peers", lambda: _some_peers(settings.peers), None)
    if peers is not None:
        checks.note("peers", f"trusts {', '.join(peers.pins)}")
    table = checks.run("labels", lambda: read_labels(settings.labels), None)
    if table is not None:
        checks.note(
            "labels",
            f"{table.n_objects:,} objects, {len(table.clusterings)} clusterings, {len(table.classifiers)} classifiers",
        )
    if policy is not None and table is not None and site_files is not None and not settings.state.is_file():
        told = checks.run("randomise", lambda: _randomised(settings, policy, table, site_files.secret), None)
        if told:
            checks.note("randomise", told)
    for name, directory in (("results", settings.results), ("state", settings.state)):
        checks.run(name, lambda directory=directory: check_writable(directory), f"{directory} can be written")  # type: ignore[misc]
    if not (settings.state / LEDGER).exists():
        checks.note("ledger", "nothing has left this site yet")
    elif site_files is not None:
        recorded = checks.run("ledger", lambda: _verified(settings.state / LEDGER, site_files), None)
        if recorded is not None:
            checks.note("ledger", recorded)
    definitions = checks.run("definitions", lambda: _definitions(settings.state, policy), None)
    if definitions is not None:
        checks.note("definitions", definitions)
    spent = checks.run("budget", lambda: _budget(settings.state, policy), None)
    if spent is not None:
        checks.note("budget", spent)
    if site_files is not None:
        _use_proxy(settings)
        ahead_s = checks.run("coordinator", lambda: run_async(_call(site_files)), None)
        if ahead_s is not None:
            checks.note("coordinator", f"{settings.coordinator} lets this site in")
            checks.run("clock", lambda: _check_clock(ahead_s), "agrees with the coordinator's")


def _rules(policy: Policy) -> str:
    minimums = ("min_sites", "min_objects", "min_foreign_columns", "min_classifiers", "min_cluster")
    required = ", ".join(f"{name} {getattr(policy, name)}" for name in minimums)
    below = "is excluded" if policy.below_minimum == "exclude" else "makes this site refuse"
    shared = {
        "sealed": "take part in sealed jobs only",
        "exclude": "take no part",
        "totals": "are in totals that are opened",
    }[policy.shared_objects]
    begins = "by itself" if policy.consent == "auto" else "when it is approved here"
    return f"{required}; what is below {below}; objects that other sites hold too {shared}; a job begins {begins}"


def _randomised(settings: ClientSettings, policy: Policy, table: LabelTable, secret: bytes) -> str:
    """How labels are randomised and the epsilon of all draws, as a sentence; empty: labels are sent as they are.

    Raises Refused as a job of the most demanding model of the policy would be.
    """
    votes = any(find_model(model).takes_classes for model in policy.models)
    used = table.select(columns=[column.name for column in (table.columns if votes else table.clusterings)])
    how = Randomisation(policy.randomise, settings.labels.declared, policy.randomise_columns)
    randomise(used, how, secret)
    names = [column.name for column in used.columns]
    draws, randomisations = draws_of(how, names, secret), Randomisations(settings.state)
    randomisations.check(draws)
    if not how.p:
        return ""
    accounted = randomisations.accounted(draws)
    sampled = f"; of each object {how.sampled} of {len(how.categories)} columns take part" if how.samples else ""
    epsilon = epsilon_sentence({name: accounted.columns[name] for name in names}, accounted.row)
    return f"each label is replaced with probability {how.p:g}{sampled}: {epsilon}"


def _verified(path: Path, site_files: SiteFiles) -> str:
    found = verify(path, *site_files.signers)
    if not found.ok:
        raise InputError(f"{path}, {found.sentence}")
    return found.sentence


def _definitions(state: Path, policy: Policy | None) -> str:
    """How much of the budget of definitions is used. Raises InputError if a file that the ledger names has changed."""
    disclosures = Disclosures(state)
    usage = disclosures.usage()
    named = {line["definition"]: line["sha256"] for line in entries(state / LEDGER) if line["kind"] == "disclosure"}
    changed = [definition for definition, sha256 in named.items() if disclosures.digest(definition) != sha256]
    if changed:
        raise InputError(
            f"{state / DISCLOSURES}: {len(changed):,} of the {len(named):,} files that the ledger names are missing or "
            f"are not as the daemon wrote them (the first: {min(changed)}.ids), so that fewer definitions may be "
            "counted than have opened totals: restore them from a backup, or ask who changed them"
        )
    if not usage:
        return "no job has opened totals of objects that other sites hold too"
    limit = "" if policy is None else f" of {policy.max_definitions:,}"
    return ", ".join(f"{number:,}{limit} definitions used for {objects:,} objects" for number, objects in usage.items())


def _budget(state: Path, policy: Policy | None) -> str:
    """How much sealed jobs have told. Raises InputError if the database lacks what the ledger has charged."""
    found = Releases(state).budget((policy or Policy()).max_delta)
    lacking, charged = Releases(state).lacking(state / LEDGER)
    if lacking:
        raise InputError(
            f"{state / RELEASES}: lacks {lacking:,} of the {charged:,} releases that the ledger has charged, so that "
            "sealed jobs would tell more than the policy allows, and are refused: restore it from a backup, or ask who "
            "changed it"
        )
    if not found.spent:
        return "no sealed job has opened anything of this site"
    limit = "" if policy is None else f" of {policy.max_epsilon:g}"
    return f"epsilon {epsilon_words(next(iter(found.spent)))}{limit} spent at most; ce-client budget says more"


def _some_peers(path: Path) -> Peers:
    peers = Peers.read(path)
    if not peers.pins:
        raise ConfigError(
            "no other site is trusted yet, so no job with another site can begin: exchange fingerprints by telephone, "
            "then run ce-client trust NAME SHA256:..."
        )
    return peers


async def _call(site_files: SiteFiles) -> float:
    """Connect to the coordinator once. Returns by how many seconds its clock is ahead of this one."""
    from ce_client.daemon.connection import probe

    return await probe(site_files) - time.time()


def _check_clock(ahead_s: float) -> None:
    if abs(ahead_s) > _CLOCK_SLACK_S:
        which = "behind" if ahead_s > 0 else "ahead of"
        raise ConfigError(
            f"this machine's clock is {abs(ahead_s):,.0f} s {which} the coordinator's: set the wrong one (NTP), or "
            "certificates may seem invalid"
        )


def _check_expiry(site_files: SiteFiles) -> None:
    left = site_files.certificate.not_valid_after_utc - datetime.now(UTC)
    if left < RENEW:
        raise ConfigError(
            f"the certificate ends in {left.days} days: ask the operator to sign the request (ce-client request) again"
        )


def _use_proxy(settings: ClientSettings) -> None:
    if settings.proxy:
        os.environ["grpc_proxy"] = settings.proxy  # noqa: SIM112 (the name that gRPC reads)
