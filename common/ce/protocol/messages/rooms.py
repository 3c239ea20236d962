"""Room for bytes that a coordinator only passes on: written in stretches as they arrive, read when tasks are sent.

In memory by default; a daemon gives files instead, so that its memory does not grow with the number of objects
(`ce_coordinator.store.relay_files`). A room is free again when nobody refers to it, or to its content, any more.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
#: The system may map up to this many bytes before and behind those that are read, too: a huge page.
_AROUND = 2**21


class Room(Protocol):
    """So many bytes. First all are written, then they are read."""

    def write(self, begin: int, content: bytes | Bytes) -> None:
        """Raises JobFailed where there is no room after all."""

    @property
    def content(self) -> Bytes:
        """All of it, to be read; the same array at every call."""


#: Gives room for so many bytes. Raises JobFailed where there is none.
Rooms = Callable[[int], Room]


class MemoryRoom:
    """Room in memory."""

    def __init__(self, size: int) -> None:
        self.content: Bytes = np.zeros(size, dtype=np.uint8)

    def write(self, begin: int, content: bytes | Bytes) -> None:
        self.content[begin : begin + len(content)] = np.frombuffer(content, dtype=np.uint8)


def give_back(array: NDArray[Any], begin: int, end: int) -> None:
    """Bytes `begin` to `end` of an array were read and are not needed for now. If they are those of a mapped file, its
    pages no longer count as memory of this process; whoever reads them again gets them from the file."""
    whole = array
    while isinstance(whole.base, np.ndarray):
        whole = whole.base
    mapped: Any = whole.base.obj if isinstance(whole.base, memoryview) else whole.base
    if isinstance(mapped, mmap.mmap):
        at = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        first = max(at + begin - _AROUND, 0) // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, first, min(at + end + _AROUND, len(mapped)) - first)
