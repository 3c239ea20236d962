"""Small JSON files in a site's state directory. Each is replaced as a whole, and only the site's user can read it.

The daemon and the commands of the same site write them; each reads what the other wrote last.
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
    """The name of a job's files: a hash, because any text may be the name of a job."""
    return hashlib.sha256(job.encode()).hexdigest()[:32]


def write_json(path: Path, content: Any) -> None:
    """Replace the file. If that fails, raises ConfigError and leaves the old file."""
    try:
        with atomic_write(path) as file:
            file.write(json.dumps(content, allow_nan=False).encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}: make room or set permissions") from error


def read_json(path: Path) -> Any:
    """The content; None if there is no file; ConfigError if it cannot be read or is not JSON."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}: run this as the daemon's user") from error
    except (ValueError, RecursionError) as error:
        raise damaged(path) from error


def damaged(path: Path) -> ConfigError:
    """The error for a file whose content is not what a daemon or a command wrote."""
    return ConfigError(f"{path}: is damaged: restore it from a backup, or ask who changed it before you remove it")


def remove(path: Path) -> bool:
    """Remove the file; False if there was none."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigError(f"{path}: cannot be removed: {error.strerror}") from error
    return True


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Lock the directory, so that no other process changes a file between this one's read and write."""
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
