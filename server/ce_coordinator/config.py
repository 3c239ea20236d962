"""coordinator.toml: where the coordinator listens, where its files are, how much it takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ce.errors import ConfigError
from ce.service.settings import check_address, read_settings, setting
from ce_coordinator.core.checkpoint_schedule import CheckpointSettings
from ce_coordinator.core.limits import Limits

ENV_PREFIX = "CE_COORDINATOR_"
#: Variables that are read elsewhere than in coordinator.toml's keys.
CONFIG_VARIABLE = "CE_COORDINATOR_CONFIG"
PASSPHRASE_VARIABLE = "CE_COORDINATOR_KEY_PASSPHRASE"
AUTHORITY_PASSPHRASE_VARIABLE = "CE_COORDINATOR_AUTHORITY_PASSPHRASE"
FILE_NAME = "coordinator.toml"
LONGEST_TIMEOUT_S = 86_400
#: More threads than this would only wait for each other.
MOST_THREADS = 1024


@dataclass(frozen=True)
class Operator:
    """What the operator's commands (submit, list, watch, ...) use to call the coordinator."""

    address: str = setting("localhost:8443", "Where the coordinator listens: host:port.")
    key: Path = setting(Path("operator.key"), "The operator's private key.")
    certificate: Path = setting(Path("operator.pem"), "The operator's certificate.")
    timeout_s: float = setting(10.0, "Seconds that a call may take, except watching.")

    def __post_init__(self) -> None:
        check_address("operator.address", self.address)
        if not 0 < self.timeout_s <= LONGEST_TIMEOUT_S:
            raise ConfigError(f"operator.timeout_s is more than 0 and at most {LONGEST_TIMEOUT_S:,} seconds")


@dataclass(frozen=True)
class Log:
    """What the daemon writes to standard error."""

    level: Literal["debug", "info", "warning", "error"] = setting("info", '"debug", "info", "warning" or "error".')
    format: Literal["auto", "text", "json"] = setting(
        "auto", '"text", "json", or "auto": text on a terminal, JSON elsewhere.'
    )


@dataclass(frozen=True)
class CoordinatorSettings:
    """All keys of coordinator.toml. Paths are relative to the file."""

    listen: str = setting("0.0.0.0:8443", "Where to listen: host:port. Port 0 takes a free one.")
    key: Path = setting(Path("coordinator.key"), "The coordinator's private key.")
    certificate: Path = setting(Path("coordinator.pem"), "The coordinator's certificate.")
    authority: Path = setting(
        Path("authority"), "The authority's directory: ca.pem, issued/, and ca.key, which only signing needs."
    )
    denied: Path = setting(
        Path("denied.txt"), "Fingerprints of keys that are not let in, one per line; read again when it changes."
    )
    store: Path = setting(Path("coordinator.sqlite"), "Jobs and sites are kept here.")
    min_cluster: int = setting(5, "Clusters with fewer objects than this are withheld from the operator's results.")
    threads: int = setting(2, "Threads for large sums.")
    metrics: str = setting(
        "",
        "Where to serve metrics and health over HTTP, to this machine or a network of your own: host:port, like "
        "127.0.0.1:9464. Port 0 takes a free one. Empty: nowhere.",
    )
    operator: Operator = field(default_factory=Operator)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    limits: Limits = field(default_factory=Limits)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        check_address("listen", self.listen, least_port=0)
        if self.min_cluster < 1:
            raise ConfigError("min_cluster is a whole number of at least 1")
        if not 1 <= self.threads <= MOST_THREADS:
            raise ConfigError(f"threads is a whole number from 1 to {MOST_THREADS:,}")
        if self.metrics:
            check_address("metrics", self.metrics, least_port=0)

    @classmethod
    def read(cls, path: Path) -> CoordinatorSettings:
        also = (CONFIG_VARIABLE, PASSPHRASE_VARIABLE, AUTHORITY_PASSPHRASE_VARIABLE)
        return read_settings(cls, path, env_prefix=ENV_PREFIX, also=also)
