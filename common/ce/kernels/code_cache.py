"""Where compiled kernels are stored: in $CE_CACHE_DIR, or in the folder ce of the user's cache.

The folder's name contains a digest of the kernels' sources, so that machine code is never older than they. Whoever can
write there decides what ce runs: it is made readable by its user alone.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

VARIABLE = "CE_CACHE_DIR"
_SOURCES = (
    "compiled_cells.py",
    "compiled_gaussian.py",
    "compiled_objects.py",
    "elementary.py",
    "gaussian.py",
    "lanes.py",
    "machine_code.py",
)


def cache_folder() -> Path:
    """The folder of the machine code of these sources."""
    here = Path(__file__).parent
    digest = hashlib.sha256(b"".join((here / name).read_bytes() for name in _SOURCES)).hexdigest()[:16]
    return _base() / f"kernels-{digest}"


def writable_cache_folder() -> Path | None:
    """The same folder, made if it is not there; None: nothing can be written there."""
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return None
    return folder if os.access(folder, os.W_OK) else None


def fall_back_to(folder: Path) -> None:
    """Store machine code here if it cannot be stored in the user's cache: the files of a container are read-only.

    A daemon calls it with a folder of its state, before the first kernel runs.
    """
    if VARIABLE not in os.environ and writable_cache_folder() is None:
        os.environ[VARIABLE] = str(folder)


def _base() -> Path:
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    users = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(users) / "ce"
