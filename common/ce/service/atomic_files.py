"""Files that are there as a whole or not at all, whatever happens while they are written, and nobody else's to read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

PRIVATE, PRIVATE_DIRECTORY = 0o600, 0o700


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Write the file anew. It takes its place, on the disk, when the block ends; after an error nothing has changed.

    Raises OSError.
    """
    aside = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        make_directory(path.parent)
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _give_away(aside)
        aside.replace(path)
        _sync_directory(path.parent)
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def make_directory(directory: Path) -> None:
    if not directory.is_dir():
        directory.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        _give_away(directory)


def _sync_directory(directory: Path) -> None:
    """The new name, too, is on the disk."""
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _give_away(path: Path) -> None:
    """What an administrator's command makes belongs to whom the directory belongs to: the daemon must read it."""
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
