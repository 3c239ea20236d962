"""A daemon computes products on one thread: measured in a process of its own, as threads belong to a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Prints the threads of every OpenBLAS before the call, after it, and after scipy has loaded its own.
_MEASURE = """
import ctypes, sys
import numpy

def threads():
    lines = (line.split() for line in open("/proc/self/maps"))
    found = {fields[5] for fields in lines if len(fields) == 6 and "openblas" in fields[5]}
    calls = (getattr(ctypes.CDLL(path), name, None) for path in sorted(found) for name in
             ("openblas_get_num_threads", "scipy_openblas_get_num_threads", "scipy_openblas_get_num_threads64_"))
    return [call() for call in calls if call is not None]

from ce.service.blas_threads import use_one_blas_thread
print(threads())
print(use_one_blas_thread())
print(threads())
import scipy.linalg
print(threads())
"""


def measured(**variables: str) -> list[str]:
    usual = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    command = [sys.executable, "-c", _MEASURE]
    ended = subprocess.run(command, env=usual | variables, capture_output=True, text=True, check=True, timeout=60)
    return ended.stdout.splitlines()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="a system that does not list loaded libraries")
def test_loaded_libraries_and_later_ones_have_one_thread() -> None:
    before, told, after, later = measured()
    if before == "[]":
        pytest.skip("numpy has another library of linear algebra")
    assert int(told) == before.count(",") + 1
    assert set(after.strip("[]").split(", ")) == set(later.strip("[]").split(", ")) == {"1"}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="a system that does not list loaded libraries")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="there is one core")
def test_what_a_person_has_set_stays() -> None:
    before, _, after, later = measured(OPENBLAS_NUM_THREADS="2")
    assert before == after
    assert set(later.strip("[]").split(", ")) <= {"2"}
