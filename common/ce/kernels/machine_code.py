"""How kernels are compiled, and where machine code goes. Needs numba.

Kernels may use additions, multiplications, divisions and integer operations only; no option that lets a compiler
reorder or fuse floating point is set. Threads are the caller's: a kernel releases the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numba
import numpy as np

from ce.kernels import elementary
from ce.kernels.code_cache import writable_cache_folder


@contextmanager
def stored() -> Iterator[Callable[[Any], Any]]:
    """A decorator that compiles, and stores machine code in ce's folder instead of numba's.

    Where that folder cannot be written, nothing is stored: each process compiles what it needs.
    """
    folder = writable_cache_folder()
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = "" if folder is None else str(folder)
    try:
        yield numba.njit(cache=folder is not None, nogil=True, error_model="numpy")
    finally:
        config.CACHE_DIR = before


def inlined(function: Any, known: dict[str, Any]) -> Any:
    """A function of arrays or numbers for single numbers, compiled into its callers. `known` replaces what it calls."""
    rebound = FunctionType(function.__code__, {**function.__globals__, **known}, function.__name__)
    return numba.njit(forceinline=True, error_model="numpy")(rebound)


of_numbers: dict[str, Any] = {
    "bits_of": numba.njit(forceinline=True)(lambda x: np.float64(x).view(np.int64)),
    "number_of": numba.njit(forceinline=True)(lambda bits: np.int64(bits).view(np.float64)),
    "chosen": numba.njit(forceinline=True)(lambda condition, one, other: one if condition else other),
}
#: The functions of `ce.kernels.elementary` for single numbers.
for _name in ("_power_of_two", "log", "exp", "digamma", "log_gamma", "trigamma", "_towards_omega", "wright_omega"):
    of_numbers[_name] = inlined(getattr(elementary, _name), of_numbers)
