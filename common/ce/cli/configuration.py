"""The option `--config` of the daemons' commands: a configuration file, or the directory that `init` made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from ce.errors import ConfigError

Settings = TypeVar("Settings")
Command = TypeVar("Command", bound=Callable[..., object])


def config_option(file_name: str, variable: str) -> Callable[[Command], Command]:
    """The option `--config`, which can also be given by an environment variable."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        envvar=variable,
        default=Path(file_name),
        show_default=True,
        help=f"The configuration file, or its directory. Also {variable}.",
    )


def read_from(path: Path, file_name: str, init: str, read: Callable[[Path], Settings]) -> Settings:
    """The settings in `path`. Raises ConfigError if there is no file; `init` is the command that makes it."""
    path = path / file_name if path.is_dir() else path
    if not path.exists():
        raise ConfigError(f"{path}: there is no configuration: run `{init}` once, then give --config DIR")
    return read(path)
