"""coordinator.toml: where the coordinator listens, where its files are, and its limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ce.errors import ConfigError
from ce.service.settings import check_address, read_settings, setting
from ce_coordinator.core.checkpoint_schedule import CheckpointInterval
from ce_coordinator.core.limits import Limits

ENV_PREFIX = "CE_COORDINATOR_"
#: Variables that are read elsewhere than in coordinator.toml's keys.
CONFIG_VARIABLE = "CE_COORDINATOR_CONFIG"
PASSPHRASE_VARIABLE = "CE_COORDINATOR_KEY_PASSPHRASE"
AUTHORITY_PASSPHRASE_VARIABLE = "CE_COORDINATOR_AUTHORITY_PASSPHRASE"
FILE_NAME = "coordinator.toml"
LONGEST_TIMEOUT_S = 86_400
#: More threads than this would not make sums any faster.
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
class CheckpointSettings:
    """Checkpoints: snapshots of running jobs, here and at every site, from which they go on after a restart."""

    directory: Path = setting(
        Path("checkpoints"), "Where the coordinator writes its own, encrypted under a key that is made there."
    )
    every_s: float = setting(5.0, "Seconds, at least, between two checkpoints of a job: what a restart may cost.")
    every_exchanges: int = setting(
        5, "Exchanges, at least, between two checkpoints of a job, so that a large job is not slowed down by them."
    )
    largest: int = setting(4 * 2**30, "Most bytes of one checkpoint; a job whose snapshot is larger runs without.")
    least_free: int = setting(
        100 * 2**20, "Bytes that a checkpoint must leave free on its disk, for the store and for results."
    )

    def __post_init__(self) -> None:
        if not 0 <= self.every_s <= 86_400:
            raise ConfigError("checkpoints.every_s is a number of seconds from 0 to 86,400")
        for key in ("every_exchanges", "largest"):
            if getattr(self, key) < 1:
                raise ConfigError(f"checkpoints.{key} is a whole number of at least 1")
        if self.least_free < 0:
            raise ConfigError("checkpoints.least_free is a whole number of at least 0")

    @property
    def interval(self) -> CheckpointInterval:
        return CheckpointInterval(self.every_s, self.every_exchanges)


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
        Path("denied.txt"), "Fingerprints of keys that are refused, one per line; read again when the file changes."
    )
    store: Path = setting(Path("coordinator.sqlite"), "The database of jobs and sites.")
    min_cluster: int = setting(5, "Clusters with fewer objects than this are withheld from the operator's results.")
    threads: int = setting(2, "Threads for large sums and checkpoints.")
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
