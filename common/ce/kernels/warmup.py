"""Compile all kernels before the first one is needed: by `ce warmup`, and by the daemons before they enrol.

Machine code is stored (`ce.kernels.code_cache`), so that this takes seconds once per installation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ce.kernels import backend
from ce.kernels.code_cache import fall_back_to, writable_cache_folder

#: Written to the folder of machine code when all kernels are in it.
_COMPLETE = "complete"


@dataclass(frozen=True)
class Warmth:
    """What `warm_up` did."""

    kernels: str  # "numba" or "numpy"
    was_compiled: bool  # machine code of an earlier run was there
    seconds: float


def warm_up(announce: Callable[[str], None] | None = None) -> Warmth:
    """Compile, or load, all kernels. `announce` is told before a wait of seconds."""
    begin = time.perf_counter()
    if backend.compiled() is None:
        return Warmth("numpy", True, 0.0)
    folder = writable_cache_folder()
    was_compiled = folder is not None and (folder / _COMPLETE).exists()
    if announce is not None and not was_compiled:
        announce("compiling kernels, once per installation: some seconds")
    _call_all()
    if folder is not None:
        (folder / _COMPLETE).touch()
    return Warmth("numba", was_compiled, time.perf_counter() - begin)


def warm_daemon(state: Path, announce: Callable[[str], None]) -> None:
    """Before a daemon takes part in anything. Where its files are read-only, machine code goes to its state."""
    if backend.wanted():
        fall_back_to(state / "cache")
        warm_up(announce)


def _call_all() -> None:
    """Each kernel once, on arrays of the types that the engine passes."""
    kernels = backend.compiled()
    assert kernels is not None
    reals, words = np.ones((1, 2, 3)), np.ones((1, 2, 3), dtype=np.int64)
    codes, weights = np.zeros((1, 1, kernels.LANES), dtype=np.int32), np.ones(3, dtype=np.int64)
    table, counts = np.ones((1, 1, kernels.LANES)), np.zeros((1, 1, kernels.LANES), dtype=np.int64)
    bound = np.zeros(1, dtype=np.int64)
    kernels.posterior_sums(reals, table, codes, weights, 1.0, 1.0, words.copy(), counts, bound)
    kernels.lookup_sums(counts, codes, words.copy())
    kernels.count_sums(words, codes, weights, counts)
    kernels.dirichlet_posterior(reals, reals.copy(), np.empty((1, 1, 3)), reals.copy())
    kernels.encoded_total(reals[0], weights, 1.0, 1.0, np.empty(2, dtype=np.int64))
    kernels.log_beta(reals, np.empty((1, 3)))
    kernels.responsibilities(reals.copy(), np.empty((1, 1, 3)))
    kernels.likeliest(reals, np.empty((1, 3), dtype=np.intp))
    for of_numbers in (kernels.log, kernels.exp, kernels.digamma, kernels.trigamma):
        of_numbers(np.ones(3), np.empty(3))
    kernels.bce_sweep(
        np.zeros((1, 1), dtype=np.int32),
        np.ones(1, dtype=np.int64),
        np.full((1, 1), -1, dtype=np.int16),
        *(np.zeros((1, 2)) for _ in range(3)),
        1.0,
        1.0,
        np.zeros((1, 1)),
    )
    state = [reals.copy() for _ in range(5)]
    kernels.gaussian_sweeps(
        1, True, *state, reals, reals, np.ones(3), np.ones(3), np.ones((1, 2)), np.zeros((1, 2)), np.ones(1)
    )
