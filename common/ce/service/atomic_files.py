"""Files that are replaced as a whole, even if the process is killed, and that only their owner can read."""

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
    """Replace a file: what the block writes takes its place, on the disk, when the block ends.

    After an error the old file is unchanged. Raises OSError.
    """
    partial = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        make_directory(path.parent)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _give_to_owner(partial)
        partial.replace(path)
        _sync_directory(path.parent)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def make_directory(directory: Path) -> None:
    """Make a directory, and its parents, that only its owner can read; an existing one stays as it is."""
    if not directory.is_dir():
        directory.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        _give_to_owner(directory)


def _sync_directory(directory: Path) -> None:
    """Write the directory, and with it the new name of a file, to the disk."""
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _give_to_owner(path: Path) -> None:
    """If root made the file, give it to the owner of its directory: the daemon must be able to read it."""
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
