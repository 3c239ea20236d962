"""coordinator.toml: where the coordinator listens, where its files are, how much it takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ce.errors import ConfigError
from ce.settings import read_settings, setting
from ce_coordinator.core.limits import Limits

ENV_PREFIX = "CE_COORDINATOR_"
#: Variables that are read elsewhere than in coordinator.toml's keys.
CONFIG_VARIABLE = "CE_COORDINATOR_CONFIG"
PASSPHRASE_VARIABLE = "CE_COORDINATOR_KEY_PASSPHRASE"
AUTHORITY_PASSPHRASE_VARIABLE = "CE_COORDINATOR_AUTHORITY_PASSPHRASE"
FILE_NAME = "coordinator.toml"


@dataclass(frozen=True)
class Operator:
    """What the operator's commands (submit, list, watch, ...) use to call the coordinator."""

    address: str = setting("localhost:8443", "Where the coordinator listens: host:port.")
    key: Path = setting(Path("operator.key"), "The operator's private key.")
    certificate: Path = setting(Path("operator.pem"), "The operator's certificate.")
    timeout_s: float = setting(10.0, "Seconds that a call may take, except watching.")


@dataclass(frozen=True)
class Log:
    """What the daemon writes to standard error."""

    level: str = setting("info", '"debug", "info", "warning" or "error".')
    format: str = setting("auto", '"text", "json", or "auto": text on a terminal, JSON elsewhere.')


@dataclass(frozen=True)
class CoordinatorSettings:
    """All keys of coordinator.toml. Paths are relative to the file."""

    listen: str = setting("0.0.0.0:8443", "Where to listen: host:port. Port 0 takes a free one.")
    key: Path = setting(Path("coordinator.key"), "The coordinator's private key.")
    certificate: Path = setting(Path("coordinator.pem"), "The coordinator's certificate.")
    authority: Path = setting(
        Path("authority"), "The authority's directory: ca.pem and issued/; ca.key may be kept elsewhere, except to sign."
    )
    denied: Path = setting(
        Path("denied.txt"), "Fingerprints of keys that are not let in, one per line; read again when it changes."
    )
    store: Path = setting(Path("coordinator.sqlite"), "Jobs and sites are kept here.")
    min_cluster: int = setting(5, "Clusters with fewer objects than this are withheld from the operator's results.")
    threads: int = setting(2, "Threads for large sums.")
    operator: Operator = field(default_factory=Operator)
    limits: Limits = field(default_factory=Limits)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise ConfigError("listen is host:port, like 0.0.0.0:8443")
        if self.min_cluster < 1 or self.threads < 1:
            raise ConfigError("min_cluster and threads are whole numbers of at least 1")

    @classmethod
    def read(cls, path: Path) -> CoordinatorSettings:
        also = (CONFIG_VARIABLE, PASSPHRASE_VARIABLE, AUTHORITY_PASSPHRASE_VARIABLE)
        return read_settings(cls, path, env_prefix=ENV_PREFIX, also=also)
