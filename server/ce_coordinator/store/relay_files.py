"""Files for what the coordinator only passes on, beside the store: its memory does not grow with it.

A file has no name, so that nothing stays when the process ends, and is removed as soon as nobody reads it any more. Its
bytes are taken on the disk before any arrive: a full disk is an error with a sentence, at the beginning of a round.
What arrives is written by system calls; what is sent is read from a mapping, whose pages readers give back
(`ce.protocol.messages.rooms.give_back`).
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import weakref
from functools import cached_property
from pathlib import Path

import numpy as np

from ce.protocol.messages.rooms import Bytes, MemoryRoom, Room
from ce_coordinator.store.interface import StoreFailed

#: Fewer bytes stay in memory.
SMALLEST_FILE = 2**18


class RelayFiles:
    """Gives rooms in files of one directory. They leave `least_free` bytes of its disk free, for the store."""

    def __init__(self, directory: Path, least_free: int = 0) -> None:
        self._directory = directory
        self._least_free = least_free

    def __call__(self, size: int) -> Room:
        if size < SMALLEST_FILE:
            return MemoryRoom(size)
        try:
            if shutil.disk_usage(self._directory).free - size < self._least_free:
                raise StoreFailed(
                    f"one round of this job takes {size:,} bytes on the coordinator's disk, and would leave fewer than "
                    f"{self._least_free:,} bytes free (checkpoints.least_free): make room, then submit the job again"
                )
            return FileRoom(self._directory, size)
        except OSError as error:
            raise _failed(size, error) from error


class FileRoom:
    """Room in a file without a name."""

    def __init__(self, directory: Path, size: int) -> None:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        os.posix_fallocate(self._file, 0, size)
        self._size = size

    def write(self, begin: int, content: bytes | Bytes) -> None:
        left = np.frombuffer(content, dtype=np.uint8).data
        try:
            while left:
                written = os.pwrite(self._file, left, begin)
                left, begin = left[written:], begin + written
        except OSError as error:
            raise _failed(self._size, error) from error

    @cached_property
    def content(self) -> Bytes:
        mapped = mmap.mmap(self._file, self._size, access=mmap.ACCESS_READ)
        return np.frombuffer(mapped, dtype=np.uint8)


def _failed(size: int, error: OSError) -> StoreFailed:
    return StoreFailed(
        f"one round of this job takes {size:,} bytes on the coordinator's disk, beside its store, and they cannot be "
        f"written ({error.strerror}): make room, then submit the job again"
    )
