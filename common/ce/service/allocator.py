"""Settings of the C library's allocator for a daemon, so that memory of large arrays returns to the system.

By default glibc has one pool of memory for each thread, and returns arrays to the system only above a size that grows
with the arrays it has freed. With these defaults a coordinator of twelve sites held 50 % more memory than it needed,
and arrays of one job did not fit into the gaps that another job left.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
#: Arrays of at least this many bytes are returned to the system as soon as they are freed.
LARGE = 2**16
#: Pools of memory, for all threads together.
ARENAS = 1


def give_back_large_arrays() -> bool:
    """Apply the settings. False: this system has another allocator, which is left as it is."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # not glibc
        return False
    wanted = ((_M_MMAP_THRESHOLD, LARGE), (_M_TRIM_THRESHOLD, LARGE), (_M_ARENA_MAX, ARENAS))
    return all(mallopt(name, value) == 1 for name, value in wanted)
