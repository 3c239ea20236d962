"""client.toml: where the coordinator is, where this site's files are."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ce.errors import ConfigError
from ce.identity.names import check_name
from ce.service.settings import REQUIRED, check_address, read_settings, setting

ENV_PREFIX = "CE_CLIENT_"
#: Variables that are read elsewhere than in client.toml's keys.
CONFIG_VARIABLE, PASSPHRASE_VARIABLE = "CE_CLIENT_CONFIG", "CE_CLIENT_KEY_PASSPHRASE"
FILE_NAME = "client.toml"
#: More threads than this would only wait for each other.
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


@dataclass(frozen=True)
class Limits:
    """How much a coordinator may ask of this site, whatever the sizes of single jobs."""

    jobs_at_once: int = setting(100, "Jobs that this site is in at the same time; a further one is refused.")
    jobs_remembered: int = setting(
        10_000, "Jobs of which something is noted below state; a further one is refused until ce-client forget."
    )
    sites_per_job: int = setting(200, "Sites of one job; one with more is refused.")
    ledger_bytes: int = setting(
        4 * 2**30,
        "Bytes of the ledger; then no job begins until it is moved away, and kept, while the daemon is stopped.",
    )

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            if value < 1:
                raise ConfigError(f"limits.{key} is a whole number of at least 1")


@dataclass(frozen=True)
class Log:
    """What the daemon writes to standard error."""

    level: Literal["debug", "info", "warning", "error"] = setting("info", '"debug", "info", "warning" or "error".')
    format: Literal["auto", "text", "json"] = setting(
        "auto", '"text", "json", or "auto": text on a terminal, JSON elsewhere.'
    )


@dataclass(frozen=True)
class ClientSettings:
    """All keys of client.toml. Paths are relative to the file."""

    name: str = setting(REQUIRED, "This site's name, as in its certificate.")
    coordinator: str = setting(REQUIRED, "Where the coordinator listens: host:port.")
    key: Path = setting(Path("site.key"), "This site's private key; made here, and never leaves.")
    certificate: Path = setting(Path("site.pem"), "This site's certificate, signed by the operator.")
    authority: Path = setting(Path("ca.pem"), "The certificate of the operator's authority.")
    former: Path = setting(
        Path("former"), "Directory of certificates of keys that this site had before: the ledger has their signatures."
    )
    secret: Path = setting(Path("secret"), "This site's own secret, from which its starting values are drawn.")
    peers: Path = setting(Path("peers.toml"), "The keys of the other sites, compared out of band.")
    policy: Path = setting(Path("policy.toml"), "This site's rules.")
    results: Path = setting(Path("results"), "Where results go: one directory per job.")
    for_spreadsheets: bool = setting(
        False,
        "Write an apostrophe before ids and labels in results that a spreadsheet would take for a formula and run.",
    )
    state: Path = setting(
        Path("state"), "Where the daemon notes which jobs it was in, and keeps the states of those under way."
    )
    threads: int = setting(1, "Threads for the computation of one job.")
    largest_message: int = setting(8 * 2**30, "Most bytes of arrays in one message from the coordinator.")
    largest_state: int = setting(
        8 * 2**30,
        "Most bytes of one job's state here (8 x restarts x clusters x (objects + categories)); a job that needs more "
        "is refused. Computing takes a few times as much.",
    )
    largest_checkpoint: int = setting(
        4 * 2**30, "Most bytes of one checkpoint of a job, below state; a job whose state is larger runs without."
    )
    least_free: int = setting(
        100 * 2**20,
        "Bytes that a checkpoint must leave free on its disk: the ledger and the results need them more.",
    )
    proxy: str = setting("", "HTTP proxy to dial through, like http://proxy:3128; empty: that of the environment.")
    metrics: str = setting(
        "",
        "Where to serve metrics and health over HTTP, to this machine or a network of your own: host:port, like "
        "127.0.0.1:9464. Port 0 takes a free one. Empty: nowhere.",
    )
    labels: Labels = field(default_factory=Labels)
    limits: Limits = field(default_factory=Limits)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        check_name(self.name)
        check_address("coordinator", self.coordinator)
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
