"""A daemon computes products on one thread: measured in a process of its own, as threads belong to a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_THREADS = """
import ctypes, sys
import numpy

def threads():
    lines = (line.split() for line in open("/proc/self/maps"))
    found = {fields[5] for fields in lines if len(fields) == 6 and "openblas" in fields[5]}
    calls = (getattr(ctypes.CDLL(path), name, None) for path in sorted(found) for name in
             ("openblas_get_num_threads", "scipy_openblas_get_num_threads", "scipy_openblas_get_num_threads64_"))
    return [call() for call in calls if call is not None]
"""
#: Prints the threads of every OpenBLAS before the call, after it, and after scipy has loaded its own.
_MEASURE = f"""{_THREADS}
from ce.service.blas_threads import use_one_blas_thread
print(threads())
print(use_one_blas_thread())
print(threads())
import scipy.linalg
print(threads())
"""
#: Runs a daemon's command up to where its life begins, and prints the threads there and then.
_DAEMON = f"""{_THREADS}
from pathlib import Path
from types import SimpleNamespace
import scipy.linalg
print(threads())

def begins(*_):
    print(threads())
    sys.exit()

settings = SimpleNamespace(log=SimpleNamespace(level="info", format="text"), store=Path("anywhere"))
if sys.argv[1] == "coordinator":
    import ce_coordinator.cli.serve as module
    import ce_coordinator.daemon
    ce_coordinator.daemon.serve = begins
    command = module.serve
else:
    import ce_client.cli.run as module
    module._use_proxy = lambda _: None
    module.SiteFiles = SimpleNamespace(open=begins)
    command = module.run
module.read_config = lambda _: settings
command.main(["--config", "anywhere"], standalone_mode=False)
"""
needs_maps = pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="a system that does not list loaded libraries"
)
needs_cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="there is one core")


def measured(script: str = _MEASURE, *words: str, **variables: str) -> list[str]:
    usual = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    command = [sys.executable, "-c", script, *words]
    ended = subprocess.run(command, env=usual | variables, capture_output=True, text=True, check=True, timeout=60)
    return ended.stdout.splitlines()


@needs_maps
def test_loaded_libraries_and_later_ones_have_one_thread() -> None:
    before, told, after, later = measured()
    if before == "[]":
        pytest.skip("numpy has another library of linear algebra")
    assert int(told) == before.count(",") + 1
    assert set(after.strip("[]").split(", ")) == set(later.strip("[]").split(", ")) == {"1"}


@needs_maps
@needs_cores
def test_what_a_person_has_set_stays() -> None:
    before, _, after, later = measured(OPENBLAS_NUM_THREADS="2")
    assert before == after
    assert set(later.strip("[]").split(", ")) <= {"2"}


@needs_maps
@needs_cores
@pytest.mark.parametrize("daemon", ["coordinator", pytest.param("client", marks=pytest.mark.slow)])
def test_a_daemon_begins_its_life_with_one_thread(daemon: str) -> None:
    before, after = measured(_DAEMON, daemon)
    if before == "[]":
        pytest.skip("numpy has another library of linear algebra")
    assert "1" not in before
    assert set(after.strip("[]").split(", ")) == {"1"}
