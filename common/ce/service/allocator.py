"""Memory of a daemon: what is freed is used again, and what is still free some seconds later returns to the system.

By default glibc has one pool of memory for each thread, and returns it only above a size that grows with the arrays it
has freed. With these defaults a coordinator of twelve sites held 50 % more memory than it needed, and arrays of one
job did not fit into the gaps that another job left. To return every array as soon as it is freed is expensive, too:
the system clears memory page by page when it gives it out again, and an exchange of 14 MB took 2.5 times as long.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
#: Arrays of at least this many bytes return to the system as soon as they are freed; glibc allows no larger number.
LARGE = 2**25
#: Free bytes at the end of a pool above which they return to the system at once.
SPARE = 2**26
#: Pools of memory, for all threads together.
ARENAS = 1
#: Seconds between two times at which all free pages of a pool, also those in its middle, return to the system.
RETURN_S = 5.0


def manage_memory() -> bool:
    """Apply the settings, and return free pages to the system from time to time, on a thread of its own. False: this
    system has another allocator, which is left as it is."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        library = ctypes.CDLL(None)
        mallopt, malloc_trim = library.mallopt, library.malloc_trim
    except AttributeError:  # not glibc
        return False
    wanted = ((_M_MMAP_THRESHOLD, LARGE), (_M_TRIM_THRESHOLD, SPARE), (_M_ARENA_MAX, ARENAS))
    applied = all(mallopt(name, value) == 1 for name, value in wanted)
    threading.Thread(target=_return_free_pages, args=(malloc_trim,), name="ce memory", daemon=True).start()
    return applied


def _return_free_pages(malloc_trim: Any) -> None:
    while True:
        time.sleep(RETURN_S)
        malloc_trim(0)
