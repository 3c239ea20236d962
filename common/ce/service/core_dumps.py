"""No core dumps: the memory of a daemon has keys and labels, and must not be written to a disk when it crashes."""

from __future__ import annotations

import contextlib
import resource


def forbid_core_dumps() -> None:
    """Set the limit to 0, for this process and those that it starts. The units of deploy/systemd do the same."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
