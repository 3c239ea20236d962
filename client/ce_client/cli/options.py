"""Options that the commands share, and where the configuration is found."""

from __future__ import annotations

from pathlib import Path

import click

from ce.errors import ConfigError
from ce_client.config import CONFIG_VARIABLE, FILE_NAME, ClientSettings

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar=CONFIG_VARIABLE,
    default=Path(FILE_NAME),
    show_default=True,
    help=f"The configuration file, or its directory. Also {CONFIG_VARIABLE}.",
)


def read_config(path: Path) -> ClientSettings:
    path = path / FILE_NAME if path.is_dir() else path
    if not path.exists():
        raise ConfigError(
            f"{path}: there is no configuration: run `ce-client init DIR --name NAME` once, then give --config DIR"
        )
    return ClientSettings.read(path)
