"""client.toml: where the coordinator is, where this site's files are."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ce.errors import ConfigError
from ce.identity.names import check_name
from ce.settings import REQUIRED, check_address, read_settings, setting

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
    secret: Path = setting(Path("secret"), "This site's own secret, from which its starting values are drawn.")
    peers: Path = setting(Path("peers.toml"), "The keys of the other sites, compared out of band.")
    policy: Path = setting(Path("policy.toml"), "This site's rules.")
    results: Path = setting(Path("results"), "Where results go: one directory per job.")
    state: Path = setting(Path("state"), "Where the daemon notes which jobs it was in.")
    threads: int = setting(1, "Threads for the computation of one job.")
    largest_message: int = setting(8 * 2**30, "Most bytes of arrays in one message from the coordinator.")
    largest_state: int = setting(
        8 * 2**30,
        "Most bytes of one job's state here (8 x restarts x clusters x (objects + categories)); a job that needs more "
        "is refused. Computing takes a few times as much.",
    )
    proxy: str = setting("", "HTTP proxy to dial through, like http://proxy:3128; empty: that of the environment.")
    labels: Labels = field(default_factory=Labels)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        check_name(self.name)
        check_address("coordinator", self.coordinator)
        if not 1 <= self.threads <= MOST_THREADS:
            raise ConfigError(f"threads is a whole number from 1 to {MOST_THREADS:,}")
        for key in ("largest_message", "largest_state"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key} is a whole number of at least 1")

    @classmethod
    def read(cls, path: Path) -> ClientSettings:
        return read_settings(cls, path, env_prefix=ENV_PREFIX, also=(CONFIG_VARIABLE, PASSPHRASE_VARIABLE))
