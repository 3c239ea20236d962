"""Results have not changed by a bit since tests/vectors/bits.json was made (by tests/vectors/make_bits.py).

Compared exactly where numpy, scipy and the processor are those that the file was made with, elsewhere to 1e-9.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

VECTORS = Path(__file__).parents[1] / "vectors"
#: Fits here may stop at their largest number of iterations, and say so.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_bits = _load(VECTORS / "make_bits.py")
FILE = json.loads((VECTORS / "bits.json").read_text(encoding="ascii"))
EXACT = make_bits.made_with() == FILE["made with"]


def compare(found: Any, expected: Any, where: str) -> None:
    """Raise AssertionError where two results differ, with the place."""
    if isinstance(expected, dict):
        assert list(found) == list(expected), where
        for name in expected:
            compare(found[name], expected[name], f"{where}, {name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for at, (one, other) in enumerate(zip(found, expected, strict=True)):
            compare(one, other, f"{where}, {at}")
    elif isinstance(expected, str) and not EXACT:
        assert float.fromhex(found) == pytest.approx(float.fromhex(expected), rel=1e-9, abs=1e-9), where
    else:
        assert found == expected, where


def check(results: Iterable[tuple[str, dict[str, Any]]], kind: str) -> None:
    found = dict(results)
    assert set(found) == {name for name in FILE["results"] if name.startswith(kind)}
    for name, result in found.items():
        compare(result, FILE["results"][name], name)


@pytest.mark.promise("Results are those of the version before, to the bit.")
def test_the_bits_of_fits_are_those_of_the_file() -> None:
    check(make_bits.fits(), "fit ")


@pytest.mark.promise("Results are those of the version before, to the bit.")
def test_the_bits_of_simulations_are_those_of_the_file() -> None:
    check(make_bits.simulations(), "simulate ")


@pytest.mark.promise("Results are those of the version before, to the bit.")
@pytest.mark.slow
def test_the_bits_of_jobs_between_processes_are_those_of_the_file() -> None:
    check(make_bits.service(), "service ")


def test_jobs_between_processes_have_the_bits_of_simulations_with_the_same_secrets() -> None:
    """Of the file itself; tests/service/jobs/test_real_jobs.py compares them as they run."""
    results = FILE["results"]
    service, simulated = results["service arbitrary bc3e masked"], results["simulate arbitrary bc3e masked"]
    assert service["memberships"] == simulated["memberships"]


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ({"a": ["0x1.8p+1"]}, "x, a, 0"),
        ({"a": ["0x1.0p+1", "0x1.0p+1"]}, "x, a"),
        ({"b": ["0x1.0p+1"]}, "x"),
    ],
)
def test_a_difference_is_found_and_its_place_is_named(found: Any, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        compare(found, {"a": ["0x1.0p+1"]}, "x")
