"""Played sites: their directories (key, certificate, pins, policy, labels), and the daemon's parts in memory."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.serialization import Encoding

from ce.identity.authority import Authority
from ce.identity.certificates import fingerprint
from ce.identity.keys import make_key, write_key
from ce.identity.names import Identity
from ce.identity.peers import Peers
from ce.labels import LabelTable
from ce_client.attempt.attempt import SiteAttempt
from ce_client.config import ClientSettings
from ce_client.daemon.jobs import SiteJobs
from ce_client.daemon.site_files import SiteFiles
from ce_client.state.ledger import FILE_NAME as LEDGER
from ce_client.state.ledger import Ledger

#: The name by which played sites know their coordinator.
COORDINATOR_NAME = "table"

#: A policy under which a site takes part in anything.
PERMISSIVE = """weakest_privacy = "plain"
min_sites = 1
min_objects = 1
min_foreign_columns = 0
min_classifiers = 0
shared_objects = "totals"
min_cluster = 1
max_definitions = 1000000
max_smoothing = 1000000
max_restarts = 10000
max_local_loops = 1000000
max_clusters = 1000000
max_epsilon = 1000000
max_delta = 0.5
min_collusion = 0
allow_exact = true
"""


def make_sites(
    directory: Path,
    labels: Mapping[str, Path | LabelTable],
    secrets: Mapping[str, bytes] | None = None,
    *,
    authority: Authority | None = None,
    policy: str = PERMISSIVE,
    coordinator: str = "localhost:1",
) -> dict[str, ClientSettings]:
    """Make a directory for each site, with a key, a certificate, the pins of the other sites and a policy.

    - `labels`: by site name, a label file, or a table that is written to `directory/NAME.csv`.
    - `secrets`: by site name, 32 bytes that its random starts are derived from; random where not given.
    - `authority`: who signs the certificates; a new one in `directory/authority` where not given.
    - `policy`: the text of every site's policy.toml; the default allows anything.
    - `coordinator`: the address in client.toml; played coordinators need none.

    Returns the settings of each site, from which `FrameByFrame` and `PlayedWorld` open it.
    """
    now = datetime.now(UTC)
    authority = authority or Authority.create(directory / "authority", now)
    settings: dict[str, ClientSettings] = {}
    prints: dict[str, str] = {}
    for site, source in labels.items():
        home = directory / site
        home.mkdir()
        if isinstance(source, LabelTable):
            file = directory / f"{site}.csv"
            write_labels(file, source)
        else:
            file = source
        key = make_key()
        write_key(home / "site.key", key)
        certificate = authority.issue(Identity("site", site), key, now)
        (home / "site.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
        (home / "ca.pem").write_bytes(authority.certificate.public_bytes(Encoding.PEM))
        (home / "policy.toml").write_text(policy)
        secret = (secrets or {}).get(site, os.urandom(32))
        (home / "secret").touch(mode=0o600)
        (home / "secret").write_text(secret.hex())
        prints[site] = fingerprint(certificate)
        (home / "client.toml").write_text(
            f'name = "{site}"\ncoordinator = "{coordinator}"\n[labels]\nfile = "{file}"\n'
        )
        settings[site] = ClientSettings.read(home / "client.toml")
    for site in labels:
        peers = Peers.read(directory / site / "peers.toml")
        for peer, print_ in prints.items():
            if peer != site:
                peers.trust(peer, print_)
    return settings


def write_labels(path: Path, table: LabelTable) -> None:
    """Write a label file (docs/formats.md); a soft column becomes one column per category."""
    header: list[str] = ["id"]
    columns: list[list[object]] = []
    for column in table.columns:
        prefix = "clf:" if column.kind == "classifier" else ""
        if column.codes is not None:
            header.append(prefix + column.name)
            columns.append(["" if code < 0 else column.categories[code] for code in column.codes])
            continue
        assert column.probabilities is not None
        for at, category in enumerate(column.categories):
            header.append(f"{prefix or 'soft:'}{column.name}={category}")
            columns.append(["" if np.isnan(p) else repr(float(p)) for p in column.probabilities[:, at]])
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(zip(table.ids, *columns, strict=True))


@dataclass
class PlayedSite:
    """One site: its settings, its files, its ledger and its jobs, as the daemon holds them; `session` is its stream."""

    settings: ClientSettings
    site_files: SiteFiles
    ledger: Ledger
    site_jobs: SiteJobs
    session: int | None = None

    @property
    def site_attempts(self) -> dict[str, SiteAttempt]:
        """Attempts under way, by job."""
        return self.site_jobs.site_attempts


class _Ledger(Ledger):
    """Closed when it is no longer referenced: tests open very many sites, and select() takes few open files."""

    def __del__(self) -> None:
        self.close()


def open_site(settings: ClientSettings) -> PlayedSite:
    """Open a site from its directory, as its daemon does when it starts."""
    site_files = SiteFiles.open(settings)
    ledger = _Ledger(settings.state / LEDGER, settings.name)
    site_jobs = SiteJobs(site_files, ledger)
    site_jobs.coordinator = COORDINATOR_NAME
    return PlayedSite(settings, site_files, ledger, site_jobs)


def fingerprints_of(sites: Mapping[str, ClientSettings]) -> dict[str, str]:
    """The fingerprint of each site's certificate."""
    return {name: fingerprint(open_site(settings).site_files.certificate) for name, settings in sites.items()}
