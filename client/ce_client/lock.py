"""One daemon per site: two with the same certificate would take the stream away from each other, for ever."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ce.errors import ConfigError

FILE_NAME = "lock"


@contextmanager
def sole_daemon(state: Path) -> Iterator[None]:
    """Hold the lock of a site's state directory. The kernel ends it with the process, however that ends."""
    path = state / FILE_NAME
    try:
        state.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"{state}: cannot be written: {error.strerror}: state is a directory that this user may write to"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"{path}: another daemon of this site is running: stop it, or give this one a directory of its own"
            ) from error
        except OSError as error:
            raise ConfigError(f"{path}: cannot be locked: {error.strerror}; keep state on a local disk") from error
        yield
    finally:
        os.close(descriptor)
