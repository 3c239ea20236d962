"""The option --config, and how the configuration is read."""

from __future__ import annotations

from pathlib import Path

from ce.cli import configuration
from ce_client.config import CONFIG_VARIABLE, FILE_NAME, ClientSettings

config_option = configuration.config_option(FILE_NAME, CONFIG_VARIABLE)


def read_config(path: Path) -> ClientSettings:
    return configuration.read_from(path, FILE_NAME, "ce-client init DIR --name NAME", ClientSettings.read)
