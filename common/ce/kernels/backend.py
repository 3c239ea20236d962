"""Which kernels run: compiled ones where numba is installed (`pip install 'ce[fast]'`), else those of numpy.

Both give the same bits; only the time differs. $CE_KERNELS chooses: "numba", "numpy", or nothing for the faster one
that is there. numba is imported with the first kernel that runs, not before: it takes longer to import than all of ce.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from types import ModuleType

import numpy as np

from ce.errors import InputError
from ce.ring import Reals

CHOICES = ("numba", "numpy")

#: Read once: every call of a kernel asks for it.
_chosen = os.environ.get("CE_KERNELS", "")


def compiled() -> ModuleType | None:
    """The compiled kernels; None: those of numpy run."""
    return _load(_chosen)


def wanted() -> bool:
    """Whether compiled kernels would run, without importing them."""
    return _chosen != "numpy" and find_spec("numba") is not None


@contextmanager
def using(choice: str) -> Iterator[None]:
    """Within it, the whole process uses these kernels; for comparisons of both."""
    global _chosen
    before, _chosen = _chosen, choice
    try:
        yield
    finally:
        _chosen = before


@cache
def _load(choice: str) -> ModuleType | None:
    if choice not in ("", *CHOICES):
        raise InputError(f"CE_KERNELS is one of {', '.join(CHOICES)}, or not set")
    if choice == "numpy":
        return None
    try:
        from ce.kernels import compiled as kernels
    except ImportError as error:
        if choice == "numba":
            raise InputError("CE_KERNELS=numba, but numba cannot be imported: pip install 'ce[fast]'") from error
        return None
    return kernels


def plain(array: Reals) -> Reals:
    """The array as kernels expect it, contiguous and writable: for another kind they would be compiled once more."""
    return array if array.flags.carray else np.require(array, requirements=("C", "W"))
