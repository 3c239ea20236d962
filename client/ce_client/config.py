"""client.toml: the address of the coordinator, the paths of this site's files, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ce.errors import ConfigError
from ce.identity.names import check_name
from ce.labels.declared import KEY as CATEGORIES_KEY
from ce.labels.declared import declared_categories
from ce.labels.table import Categories
from ce.service.settings import REQUIRED, check_address, read_settings, setting

ENV_PREFIX = "CE_CLIENT_"
#: Variables with the prefix that are no key of client.toml.
CONFIG_VARIABLE, PASSPHRASE_VARIABLE = "CE_CLIENT_CONFIG", "CE_CLIENT_KEY_PASSPHRASE"
FILE_NAME = "client.toml"
#: Upper limit of `threads`.
MOST_THREADS = 1024


@dataclass(frozen=True)
class Labels:
    """How the label file is read."""

    file: Path = setting(Path("labels.csv"), "The label file: CSV or TSV, gzipped or not, or Parquet.")
    id: str = setting("id", "Name of the column with the object ids.")
    classifiers: tuple[str, ...] = setting(
        (), "Names or patterns of columns that are classifiers, beside those named clf:NAME."
    )
    noise: Literal["missing", "keep"] = setting(
        "missing", 'What a negative integer label means: "missing" (no label) or "keep" (a cluster).'
    )
    categories: Mapping[str, Categories] = setting(
        {},
        "All categories that the labels of a column may have, by column; a label outside of them is an error. Needed "
        "for every column that takes part if policy.toml says randomise: labels are replaced by one of these. Whole "
        'numbers if the labels are whole numbers, else texts, like { region = [1, 2, 3], segment = ["a", "b"] }. May '
        "also be written as a table [labels.categories].",
    )

    def __post_init__(self) -> None:
        for name, categories in self.declared.items():
            if self.noise == "missing" and any(isinstance(category, int) and category < 0 for category in categories):
                raise ConfigError(
                    f"{CATEGORIES_KEY}, column {name!r}: a negative number means no label: leave it out, or set "
                    'noise = "keep"'
                )

    @property
    def declared(self) -> dict[str, Categories]:
        """The declared categories by column, sorted; empty if none are declared."""
        return declared_categories(self.categories)


@dataclass(frozen=True)
class Limits:
    """Limits on what a coordinator may ask of this site, over all jobs."""

    jobs_at_once: int = setting(100, "Most jobs that this site is in at the same time; a further one is refused.")
    jobs_remembered: int = setting(
        10_000, "Most jobs with files below state; a further one is refused until ce-client forget."
    )
    sites_per_job: int = setting(200, "Most sites of one job; a job with more is refused.")
    attempts_per_job: int = setting(
        100,
        "Most attempts at one sealed job in which masked words leave before its tables are opened; a further one is "
        "refused. Each attempt that fails may tell a coordinator that lies one bit.",
    )
    ledger_bytes: int = setting(
        4 * 2**30,
        "Most bytes of the ledger; then no job begins until the ledger is archived, while the daemon is stopped.",
    )

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            if value < 1:
                raise ConfigError(f"limits.{key} is a whole number of at least 1")


@dataclass(frozen=True)
class Log:
    """The log that the daemon writes to standard error."""

    level: Literal["debug", "info", "warning", "error"] = setting("info", '"debug", "info", "warning" or "error".')
    format: Literal["auto", "text", "json"] = setting(
        "auto", '"text", "json", or "auto": text on a terminal, JSON elsewhere.'
    )


@dataclass(frozen=True)
class SiteIdentity:
    """The first keys of client.toml: who this site is, whom it connects to, and by which keys they know each other."""

    name: str = setting(REQUIRED, "This site's name, as in its certificate.")
    coordinator: str = setting(REQUIRED, "Address of the coordinator: host:port.")
    key: Path = setting(Path("site.key"), "This site's private key; it is made here and never sent.")
    certificate: Path = setting(Path("site.pem"), "This site's certificate, signed by the operator.")
    authority: Path = setting(Path("ca.pem"), "The certificate of the operator's authority.")
    former: Path = setting(
        Path("former"),
        "Directory of certificates of this site's former keys, which verify older signatures in the ledger.",
    )
    secret: Path = setting(Path("secret"), "This site's secret, from which its starting values are derived.")
    peers: Path = setting(Path("peers.toml"), "The fingerprints of the other sites' keys, compared out of band.")

    def __post_init__(self) -> None:
        check_name(self.name)
        check_address("coordinator", self.coordinator)


@dataclass(frozen=True)
class ClientSettings(SiteIdentity):
    """All keys of client.toml. Paths are relative to the file."""

    policy: Path = setting(Path("policy.toml"), "This site's rules.")
    results: Path = setting(Path("results"), "Directory of results: one directory per job.")
    for_spreadsheets: bool = setting(
        False,
        "Write an apostrophe before ids and labels in results that a spreadsheet would run as a formula.",
    )
    state: Path = setting(
        Path("state"), "Directory of the daemon's own files: its jobs, their checkpoints, the ledger."
    )
    threads: int = setting(1, "Threads for the computation of one job.")
    largest_message: int = setting(8 * 2**30, "Most bytes of arrays in one message from the coordinator.")
    largest_state: int = setting(
        8 * 2**30,
        "Most bytes of one job's state here (8 x restarts x clusters x (objects + categories); of a sealed job what "
        "docs/capacity.md says); a job that needs more is refused. Computing takes a few times as much.",
    )
    largest_checkpoint: int = setting(
        4 * 2**30, "Most bytes of one checkpoint of a job, below state; a job that needs more runs without checkpoints."
    )
    least_free: int = setting(
        100 * 2**20,
        "Bytes that a checkpoint must leave free on its disk, for the ledger and the results.",
    )
    proxy: str = setting("", "HTTP proxy to connect through, like http://proxy:3128; empty: that of the environment.")
    metrics: str = setting(
        "",
        "Address at which metrics and health are served over HTTP, on this machine or a private network: host:port, "
        "like 127.0.0.1:9464. Port 0 takes a free one. Empty: they are not served.",
    )
    labels: Labels = field(default_factory=Labels)
    limits: Limits = field(default_factory=Limits)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.threads <= MOST_THREADS:
            raise ConfigError(f"threads is a whole number from 1 to {MOST_THREADS:,}")
        if self.metrics:
            check_address("metrics", self.metrics, least_port=0)
        for key in ("largest_message", "largest_state", "largest_checkpoint"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} is a whole number of at least 1")
        if self.least_free < 0:
            raise ConfigError("least_free is a whole number of at least 0")

    @classmethod
    def read(cls, path: Path) -> ClientSettings:
        return read_settings(cls, path, env_prefix=ENV_PREFIX, also=(CONFIG_VARIABLE, PASSPHRASE_VARIABLE))
