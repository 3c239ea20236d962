"""Small JSON files in a site's state directory: there as a whole or not at all, and nobody else's to read.

The daemon and the commands of the same site write them; each sees what the other wrote last.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ce.errors import ConfigError
from ce.service.atomic_files import atomic_write, make_directory


def name_of(job: str) -> str:
    """What a job's files are called here. Its own name is not a file's name: any text may be one."""
    return hashlib.sha256(job.encode()).hexdigest()[:32]


def write_json(path: Path, content: Any) -> None:
    """Write anew; ConfigError when that is not possible, and then what was there stays."""
    try:
        with atomic_write(path) as file:
            file.write(json.dumps(content, allow_nan=False).encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}: make room or set permissions") from error


def read_json(path: Path) -> Any:
    """What was written; None when there is nothing; ConfigError when it cannot be read or is damaged."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}: run this as the daemon's user") from error
    except (ValueError, RecursionError) as error:
        raise damaged(path) from error


def damaged(path: Path) -> ConfigError:
    return ConfigError(f"{path}: is damaged: restore it from a backup, or ask who changed it before you remove it")


def remove(path: Path) -> bool:
    """Whether there was anything to remove."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigError(f"{path}: cannot be removed: {error.strerror}") from error
    return True


@contextlib.contextmanager
def turn(directory: Path) -> Iterator[None]:
    """Read, change and write a file of this directory with nobody else in between."""
    try:
        make_directory(directory)
        handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"{directory}: cannot be used: {error.strerror}: run this as the daemon's user") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
