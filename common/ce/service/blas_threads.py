"""One thread of linear algebra per daemon: products of sealed jobs are small, and two threads took longer than one.

A daemon calls it when it starts. OpenBLAS, which numpy and scipy bring along, reads its environment when it is loaded;
libraries that are loaded already are told by a call.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_MAPS = Path("/proc/self/maps")
#: What the call is named in the builds of OpenBLAS that numpy, scipy and Linux distributions have.
_NAMES = tuple(
    f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("", "scipy_") for suffix in ("", "64_", "_64")
)


def use_one_blas_thread() -> int:
    """Returns how many libraries that were loaded already were told. What a person has set stays."""
    for variable in _VARIABLES:
        os.environ.setdefault(variable, "1")
    threads = int(os.environ["OPENBLAS_NUM_THREADS"]) if os.environ["OPENBLAS_NUM_THREADS"].isdigit() else 1
    return sum(_tell(library, threads) for library in _loaded())


def _loaded() -> list[str]:
    """Paths of the loaded libraries; none on a system without /proc."""
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = {fields[5] for fields in (line.split(None, 5) for line in lines) if len(fields) == 6}
    return sorted(path for path in found if "openblas" in Path(path).name)


def _tell(library: str, threads: int) -> bool:
    try:
        loaded = ctypes.CDLL(library)
    except OSError:
        return False
    for name in _NAMES:
        call = getattr(loaded, name, None)
        if call is not None:
            call(ctypes.c_int(threads))
            return True
    return False
