"""Options that the commands share, and where the configuration is found."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from ce.errors import ConfigError
from ce_coordinator.config import CONFIG_VARIABLE, FILE_NAME, CoordinatorSettings

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar=CONFIG_VARIABLE,
    default=Path(FILE_NAME),
    show_default=True,
    help=f"The configuration file, or its directory. Also {CONFIG_VARIABLE}.",
)


def read_config(path: Path) -> CoordinatorSettings:
    path = path / FILE_NAME if path.is_dir() else path
    if not path.exists():
        raise ConfigError(
            f"{path}: there is no configuration: run `ce-coordinator init DIR` once, then give --config DIR"
        )
    return CoordinatorSettings.read(path)


def next_command(*words: str, config: Path) -> str:
    """A command to type next, as a shell takes it."""
    return shlex.join(["ce-coordinator", *words, "--config", str(config)])
