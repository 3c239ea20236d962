"""Memory that is given back: how the C library's allocator is set up in a daemon, which lives long and works in bursts.

By itself glibc keeps one pool of memory for each thread, and the larger the arrays that come and go, the larger the
ones that it keeps instead of returning them: a coordinator of twelve sites held half as much again as it needed. Nor do
arrays of many jobs fit into the holes that those of others leave.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
#: Arrays of at least this many bytes are returned to the system as soon as they are free.
LARGE = 2**16
ARENAS = 1


def give_back_large_arrays() -> bool:
    """Whether the allocator could be told so; other systems have others, and nothing is lost there."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # not glibc
        return False
    wanted = ((_M_MMAP_THRESHOLD, LARGE), (_M_TRIM_THRESHOLD, LARGE), (_M_ARENA_MAX, ARENAS))
    return all(mallopt(name, value) == 1 for name, value in wanted)
