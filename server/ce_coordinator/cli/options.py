"""Options that the commands share, and where the configuration is found."""

from __future__ import annotations

import shlex
from pathlib import Path

from ce.cli import configuration
from ce_coordinator.config import CONFIG_VARIABLE, FILE_NAME, CoordinatorSettings

config_option = configuration.config_option(FILE_NAME, CONFIG_VARIABLE)


def read_config(path: Path) -> CoordinatorSettings:
    return configuration.read_from(path, FILE_NAME, "ce-coordinator init DIR", CoordinatorSettings.read)


def next_command(*words: str, config: Path) -> str:
    """The next command to type, quoted for a shell."""
    return shlex.join(["ce-coordinator", *words, "--config", str(config)])
